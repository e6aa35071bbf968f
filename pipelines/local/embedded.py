"""The embedded log: `pipelines.log` without a broker, over a store in memory or in files. For one event loop.

Not a broker: nothing listens on a port, nothing is replicated. Law: see `pipelines.log`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from pipelines.local.clients import LocalMember, LocalProducer, LocalReader
from pipelines.local.files import FileStore
from pipelines.local.groups import Group, Seat
from pipelines.local.memory import MemoryStore
from pipelines.local.stores import Partition, Store
from pipelines.log import (
    MAX_RECORD_BYTES,
    GroupBusyError,
    OnAssigned,
    OnRevoked,
    TopicPartition,
    TopicSpec,
    UnknownTopicError,
    require_partitions,
    require_topics,
)


def memory_log() -> "LocalLog":
    """A log that is gone with the process."""
    return LocalLog(MemoryStore())


def file_log(directory: Path) -> "LocalLog":
    """A log in a directory, made where missing. Raises ConfigError when the directory cannot be used."""
    return LocalLog(FileStore(directory))


class LocalLog:
    """See `Log`. `clock_ms` gives the timestamp of records that bring none."""

    def __init__(self, store: Store, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._waiting: set[asyncio.Future[None]] = set()
        self._groups: dict[str, Group] = {}
        self._memberships: dict[str, contextlib.ExitStack] = {}

    @property
    def name(self) -> str:
        """See `Log`."""
        return self._store.name

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        for held in self._memberships.values():
            held.close()
        self._memberships.clear()
        self._store.close()

    async def create_topics(self, specs: Iterable[TopicSpec]) -> list[str]:
        """See `Log`."""
        wanted = list(specs)
        require_partitions(wanted, await self.partition_counts(spec.name for spec in wanted))
        return [spec.name for spec in wanted if self._store.create(spec)]

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """See `Log`."""
        known = self._store.topics()
        return {topic: known[topic].partitions for topic in topics if topic in known}

    async def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        return {where: self.partition(where).bounds()[0] for where in partitions}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Log`."""
        return {where: self.partition(where).bounds()[1] for where in partitions}

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        return {where: self.partition(where).offset_at(time_ms) for where, time_ms in times_ms.items()}

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `Log`."""
        known = self._store.offsets(group)
        return {where: known.get(where) for where in partitions}

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        if group in self._groups and self._groups[group].seats:
            raise GroupBusyError(f"group {group} of {self.name} has members; let them commit, or stop them")
        with self._store.membership(group):
            self.save_offsets(group, offsets)

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Log`."""
        for where, offset in offsets.items():
            self.partition(where).delete_before(offset)

    def producer(self, *, max_record_bytes: int = MAX_RECORD_BYTES) -> LocalProducer:
        """See `Log`."""
        return LocalProducer(self, max_record_bytes=max_record_bytes)

    def reader(self, positions: Mapping[TopicPartition, int]) -> LocalReader:
        """See `Log`."""
        return LocalReader(self, positions)

    def member(
        self, group: str, topics: Iterable[str], *, on_assigned: OnAssigned, on_revoked: OnRevoked
    ) -> LocalMember:
        """See `Log`."""
        return LocalMember(self, group, topics, on_assigned=on_assigned, on_revoked=on_revoked)

    def now_ms(self) -> int:
        """The clock of this log."""
        return self._clock_ms()

    def spec(self, topic: str) -> TopicSpec:
        """What a topic was created as. Raises UnknownTopicError."""
        known = self._store.topics()
        require_topics([topic], dict.fromkeys(known, 0), self.name)
        return known[topic]

    def partition(self, where: TopicPartition) -> Partition:
        """Where a partition's records are. Raises UnknownTopicError."""
        count = self.spec(where.topic).partitions
        if not 0 <= where.partition < count:
            raise UnknownTopicError(f"{self.name} has no {where}; {where.topic} has {count} partitions")
        return self._store.partition(where)

    def save_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets of a group, checked to be of partitions that exist."""
        for where in offsets:
            self.partition(where)
        self._store.save_offsets(group, offsets)

    def join(self, group: str, topics: Iterable[str]) -> tuple[Group, Seat]:
        """Become a member. Raises GroupBusyError when another process has members in the group."""
        if group not in self._memberships:
            held = contextlib.ExitStack()
            held.enter_context(self._store.membership(group))
            self._memberships[group] = held
        members = self._groups.setdefault(group, Group())
        seat = members.join(topics)
        self.wake()
        return members, seat

    def leave(self, group: str, seat: Seat) -> None:
        """Be a member no longer."""
        members = self._groups[group]
        members.leave(seat)
        if not members.seats:
            self._memberships.pop(group).close()
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def news(self, timeout_s: float) -> None:
        """Return when something may have changed, at the latest after a time."""
        poll_interval_s = self._store.poll_interval_s
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=min(timeout_s, poll_interval_s or timeout_s))
        finally:
            self._waiting.discard(future)
