"""Records in memory: for tests, first steps and demonstrations. Gone with the process.

Law: a compacted topic keeps at least the last record of every key, and never more than twice as many records as keys
plus `SLACK_RECORDS`.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipelines.local.stores import NewRecord, Partition
from pipelines.log import LogRecord, OffsetOutOfRangeError, TopicPartition, TopicSpec

SLACK_RECORDS = 1024


class MemoryPartition:
    """Records of one partition in a list; offsets may have gaps after compaction."""

    def __init__(self, where: TopicPartition, *, compact: bool) -> None:
        self._where = where
        self._compact = compact
        self._records: list[LogRecord] = []
        self._offsets: list[int] = []
        self._keys: set[bytes | None] = set()
        self._begin = 0
        self._end = 0

    def append(self, records: Sequence[NewRecord]) -> int:
        """See `Partition`."""
        first = self._end
        topic, partition = self._where
        for offset, record in enumerate(records, first):
            self._records.append(LogRecord(topic, partition, offset, *record))
            self._offsets.append(offset)
        self._end = first + len(records)
        if self._compact:
            self._keys.update(record.key for record in records)
            if len(self._records) > 2 * len(self._keys) + SLACK_RECORDS:
                self._keep(list({record.key: record for record in self._records}.values()))
        return first

    def read(self, offset: int, max_records: int) -> list[LogRecord]:
        """See `Partition`."""
        self._require(offset)
        at = bisect_left(self._offsets, offset)
        return self._records[at : at + max_records]

    def bounds(self) -> tuple[int, int]:
        """See `Partition`."""
        return self._begin, self._end

    def offset_at(self, time_ms: int) -> int | None:
        """See `Partition`."""
        return next((record.offset for record in self._records if record.timestamp_ms >= time_ms), None)

    def delete_before(self, offset: int) -> None:
        """See `Partition`."""
        if offset > self._end:
            raise OffsetOutOfRangeError(self._where, offset, self._begin, self._end)
        self._begin = max(self._begin, offset)
        self._keep([record for record in self._records if record.offset >= self._begin])

    def _keep(self, records: list[LogRecord]) -> None:
        self._records = sorted(records, key=lambda record: record.offset)
        self._offsets = [record.offset for record in self._records]
        self._keys = {record.key for record in self._records}

    def _require(self, offset: int) -> None:
        if not self._begin <= offset <= self._end:
            raise OffsetOutOfRangeError(self._where, offset, self._begin, self._end)


class MemoryStore:
    """All of an embedded log in memory."""

    name = "the embedded log in memory"
    poll_interval_s = None

    def __init__(self) -> None:
        self._topics: dict[str, TopicSpec] = {}
        self._partitions: dict[TopicPartition, MemoryPartition] = {}
        self._groups: dict[str, dict[TopicPartition, int]] = {}

    def topics(self) -> Mapping[str, TopicSpec]:
        """See `Store`."""
        return self._topics

    def create(self, spec: TopicSpec) -> bool:
        """See `Store`."""
        if spec.name in self._topics:
            return False
        self._topics[spec.name] = spec
        for number in range(spec.partitions):
            where = TopicPartition(spec.name, number)
            self._partitions[where] = MemoryPartition(where, compact=spec.policy == "compact")
        return True

    def partition(self, where: TopicPartition) -> Partition:
        """See `Store`."""
        return self._partitions[where]

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """See `Store`."""
        return dict(self._groups.get(group, {}))

    def save_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Store`."""
        self._groups.setdefault(group, {}).update(offsets)

    @contextmanager
    def membership(self, group: str) -> Iterator[None]:
        """See `Store`; there is no other process."""
        yield

    def close(self) -> None:
        """See `Store`; the records stay, so that a log can be opened on them again."""
