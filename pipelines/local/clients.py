"""Producer, reader and member of the embedded log. Stores nothing itself.

Law: see `pipelines.log`. A producer writes its records together as soon as the event loop turns.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from pipelines.errors import ConfigError
from pipelines.local.groups import Group, Seat
from pipelines.local.stores import NewRecord
from pipelines.log import (
    GroupBusyError,
    Header,
    LogRecord,
    OnAssigned,
    OnRevoked,
    RecordRefusedError,
    TopicPartition,
    TopicSpec,
    require_sendable,
    require_topics,
)
from pipelines.partitions import partition_of

if TYPE_CHECKING:
    from pipelines.local.embedded import LocalLog

BUFFER_BYTES = 1 << 20


class LocalProducer:
    """See `Producer`."""

    def __init__(self, log: "LocalLog", *, max_record_bytes: int) -> None:
        self._log = log
        self._max_record_bytes = max_record_bytes
        self._buffers: dict[TopicPartition, list[NewRecord]] = {}
        self._buffered_bytes = 0
        self._specs: dict[str, TopicSpec] = {}
        self._keyless = 0
        self._scheduled = False
        self._failure: ConfigError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

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
        """See `Producer`."""
        now_ms = self._log.now_ms()
        limit = self._max_record_bytes
        require_sendable(topic, key, value, headers, timestamp_ms, max_record_bytes=limit, now_ms=now_ms)
        where = self._choose(topic, key, partition)
        self._raise_failure()
        record = NewRecord(now_ms if timestamp_ms is None else timestamp_ms, key, value, tuple(headers))
        self._buffers.setdefault(where, []).append(record)
        self._buffered_bytes += len(key or b"") + len(value or b"")
        if self._buffered_bytes >= BUFFER_BYTES:
            self._drain()
            await asyncio.sleep(0)
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    async def flush(self, timeout_s: float = 60.0) -> None:
        """See `Producer`."""
        self._drain()
        self._raise_failure()

    async def close(self) -> None:
        """See `Producer`."""
        await self.flush()

    def _choose(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        if topic not in self._specs:
            self._specs[topic] = self._log.spec(topic)
        spec = self._specs[topic]
        if spec.policy == "compact" and key is None:
            raise RecordRefusedError(f"a record without a key for {topic}, which keeps the last of each key; add a key")
        if partition is None:
            self._keyless += key is None
            partition = self._keyless % spec.partitions if key is None else partition_of(key, spec.partitions)
        where = TopicPartition(topic, partition)
        if not 0 <= partition < spec.partitions:
            self._log.partition(where)
        return where

    def _drain(self) -> None:
        self._scheduled = False
        try:
            for where in list(self._buffers):
                self._log.partition(where).append(self._buffers[where])
                del self._buffers[where]
            self._buffered_bytes = 0
        except ConfigError as error:  # told to whoever sends or flushes next; the records stay for another try
            self._failure = error
        self._log.wake()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class LocalReader:
    """See `Reader`."""

    def __init__(self, log: "LocalLog", positions: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._positions = dict(positions)

    async def __aenter__(self) -> Self:
        for where in self._positions:
            self._log.partition(where)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    async def get(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[LogRecord]:
        """See `Reader`."""
        deadline_s = time.monotonic() + timeout_s
        await asyncio.sleep(0)  # a reader that always finds records must not keep the others from running
        while True:
            await self._prepare()
            records = self._take(max_records)
            remaining_s = deadline_s - time.monotonic()
            if records or remaining_s <= 0:
                return records
            await self._log.news(remaining_s)

    def position(self, where: TopicPartition) -> int:
        """See `Reader`."""
        return self._positions[where]

    def seek(self, where: TopicPartition, offset: int) -> None:
        """See `Reader`."""
        if where not in self._positions:
            raise KeyError(where)
        self._positions[where] = offset

    async def close(self) -> None:
        """See `Reader`."""

    async def _prepare(self) -> None:
        """Nothing to do before reading, unless in a group."""

    def _take(self, max_records: int) -> list[LogRecord]:
        records: list[LogRecord] = []
        for where in list(self._positions):
            found = self._log.partition(where).read(self._positions[where], max_records - len(records))
            if found:
                records += found
                # Behind the others, so that a full partition does not starve them.
                del self._positions[where]
                self._positions[where] = found[-1].offset + 1
            if len(records) == max_records:
                break
        return records


class LocalMember(LocalReader):
    """See `Member`."""

    def __init__(
        self, log: "LocalLog", group: str, topics: Iterable[str], *, on_assigned: OnAssigned, on_revoked: OnRevoked
    ) -> None:
        super().__init__(log, {})
        self._group_name = group
        self._topics = tuple(topics)
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._joined: tuple[Group, Seat] | None = None

    async def __aenter__(self) -> Self:
        require_topics(self._topics, await self._log.partition_counts(self._topics), self._log.name)
        self._joined = self._log.join(self._group_name, self._topics)
        return self

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """See `Member`."""
        return self._joined[1].owned if self._joined else frozenset()

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Member`."""
        lost = [str(where) for where in offsets if where not in self.assignment]
        if lost:
            raise GroupBusyError(f"{', '.join(lost)} belongs to another member of group {self._group_name}; drop it")
        self._log.save_offsets(self._group_name, offsets)

    async def close(self) -> None:
        """See `Reader`; the partitions are given up first, as in a rebalance."""
        if self._joined is None:
            return
        _, seat = self._joined
        try:
            if seat.owned:
                await self._on_revoked(seat.owned)
        finally:
            self._positions, self._joined = {}, None
            self._log.leave(self._group_name, seat)

    async def _prepare(self) -> None:
        if self._joined is None:
            return
        group, seat = self._joined
        while group.must_give_up(seat):
            if seat.owned:
                await self._on_revoked(seat.owned)
            self._positions = {}
            group.give_up(seat)
            self._log.wake()
        if group.may_take(seat):
            owned = group.take(seat, await self._log.partition_counts(self._topics))
            starts = dict(await self._on_assigned(owned))
            committed = await self._log.committed(self._group_name, owned)
            begins = await self._log.begin_offsets(owned)
            for where in sorted(owned):
                known = committed[where]
                self._positions[where] = starts.get(where, begins[where] if known is None else known)
