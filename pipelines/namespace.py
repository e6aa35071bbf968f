"""A log whose topics and groups carry a prefix that its user does not see. Stores nothing.

Law: with prefix "x", topic "t" here is topic "x.t" there, both ways, in every call; nothing else changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from pipelines.log import (
    MAX_RECORD_BYTES,
    Header,
    Log,
    LogRecord,
    Member,
    OnAssigned,
    OnRevoked,
    Producer,
    Reader,
    TopicPartition,
    TopicSpec,
)


def in_namespace(log: Log, namespace: str) -> Log:
    """The log itself where `namespace` is empty."""
    return NamespacedLog(log, namespace) if namespace else log


class NamespacedLog:
    """See `Log`."""

    def __init__(self, log: Log, namespace: str) -> None:
        self._log = log
        self._prefix = f"{namespace}."

    @property
    def name(self) -> str:
        """See `Log`."""
        return f"{self._log.name}, namespace {self._prefix[:-1]}"

    async def __aenter__(self) -> Self:
        await self._log.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._log.__aexit__(*failure)

    async def create_topics(self, specs: Iterable[TopicSpec]) -> list[str]:
        """See `Log`."""
        made = await self._log.create_topics([replace(spec, name=self._prefix + spec.name) for spec in specs])
        return [name.removeprefix(self._prefix) for name in made]

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """See `Log`."""
        found = await self._log.partition_counts([self._prefix + topic for topic in topics])
        return {topic.removeprefix(self._prefix): count for topic, count in found.items()}

    async def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        return self._inward(await self._log.begin_offsets(map(self.outer, partitions)))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        return self._inward(await self._log.end_offsets(map(self.outer, partitions)))

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        found = await self._log.offsets_for_times(self._outward(times_ms))
        return {self.inner(where): offset for where, offset in found.items()}

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        found = await self._log.committed(self._prefix + group, map(self.outer, partitions))
        return {self.inner(where): offset for where, offset in found.items()}

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        await self._log.commit(self._prefix + group, self._outward(offsets))

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        await self._log.delete_before(self._outward(offsets))

    def producer(self, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Producer:
        """See `Log`."""
        return _Producer(self._log.producer(max_record_bytes=max_record_bytes), self._prefix)

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """See `Log`."""
        return _Reader(self._log.reader(self._outward(positions)), self)

    def member(self, group: str, topics: Iterable[str], *, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Member:
        """See `Log`."""

        async def assigned(owned: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
            return self._outward(await on_assigned(frozenset(map(self.inner, owned))))

        async def revoked(lost: frozenset[TopicPartition]) -> None:
            await on_revoked(frozenset(map(self.inner, lost)))

        member = self._log.member(
            self._prefix + group,
            [self._prefix + topic for topic in topics],
            on_assigned=assigned,
            on_revoked=revoked,
        )
        return _Member(member, self)

    def outer(self, where: TopicPartition) -> TopicPartition:
        """The partition as the log below knows it."""
        return where._replace(topic=self._prefix + where.topic)

    def inner(self, where: TopicPartition) -> TopicPartition:
        """The partition as the user knows it."""
        return where._replace(topic=where.topic.removeprefix(self._prefix))

    def record(self, record: LogRecord) -> LogRecord:
        """A record as the user knows it."""
        return record._replace(topic=record.topic.removeprefix(self._prefix))

    def _outward(self, values: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {self.outer(where): value for where, value in values.items()}

    def _inward(self, values: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {self.inner(where): value for where, value in values.items()}


class _Producer:
    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer = producer
        self._prefix = prefix

    async def send(
        self,
        topic: str,
        *,
        key: bytes | None = None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        await self._producer.send(
            self._prefix + topic, key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    async def flush(self, timeout_s: float = 60.0) -> None:
        await self._producer.flush(timeout_s)

    async def close(self) -> None:
        await self._producer.close()

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._producer.__aexit__(*failure)


class _Reader:
    def __init__(self, reader: Reader, names: NamespacedLog) -> None:
        self._reader = reader
        self._names = names

    async def get(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[LogRecord]:
        found = await self._reader.get(max_records=max_records, timeout_s=timeout_s)
        return [self._names.record(record) for record in found]

    def position(self, where: TopicPartition) -> int:
        return self._reader.position(self._names.outer(where))

    def seek(self, where: TopicPartition, offset: int) -> None:
        self._reader.seek(self._names.outer(where), offset)

    async def close(self) -> None:
        await self._reader.close()

    async def __aenter__(self) -> Self:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._reader.__aexit__(*failure)


class _Member(_Reader):
    def __init__(self, member: Member, names: NamespacedLog) -> None:
        super().__init__(member, names)
        self._member = member

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(map(self._names.inner, self._member.assignment))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._member.commit({self._names.outer(where): offset for where, offset in offsets.items()})
