"""What the shell asks of a log, whatever keeps it: Kafka, memory or files. Holds no implementation and no policy.

**Offset** means everywhere: the number of the next record to read. The first record of a partition has offset 0; the
begin offset is the first that can still be read, the end offset the one that the next record will get; a position,
a committed offset and an offset in a snapshot name the first record *not* yet dealt with. Offsets of one partition
rise and may have gaps.

Laws (one suite, tests/contract, holds every implementation to them): records of one partition come back in the order
sent, bytes, headers and timestamps unchanged; what `flush` has returned for is never lost; a refusal changes nothing.
Delivery is at least once: after a failure a record may stand in the log twice, never zero times.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self

from pipelines.errors import ConfigError
from schemas.topics import Topic

MAX_RECORD_BYTES = 1_000_000
"""Key, value and headers together. Just below what a Kafka broker takes if nobody set it otherwise."""
MAX_AHEAD_MS = 3_600_000
"""A broker refuses timestamps further ahead of its clock, and with one record the whole batch that it came in."""
FOREVER_MS = -1
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

Header = tuple[str, bytes]


class TopicPartition(NamedTuple):
    """One partition of one topic, counted from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class LogRecord(NamedTuple):
    """One record as read. `value` None is a tombstone.

    `timestamp_ms` is the sender's (`timestamp_type` 0), unless a topic of somebody else's says "when appended" (1).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_type: int = 0

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create. `retention_ms` -1 keeps records for ever, as replays with old timestamps need."""

    name: str
    partitions: int
    policy: Literal["delete", "compact"] = "delete"
    retention_ms: int = FOREVER_MS
    max_record_bytes: int = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        if not TOPIC_NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise ConfigError(f"topic name {self.name!r} must be 1 to 249 of a-z A-Z 0-9 . _ -; rename it")
        if self.partitions < 1:
            raise ConfigError(f"topic {self.name} must have at least 1 partition, got {self.partitions}; raise it")

    @classmethod
    def of(cls, topic: Topic, *, partitions: int, retention_ms: int | None = None) -> Self:
        """The topic of the project's table, with a retention of its own where one is given."""
        kept_ms = topic.retention_ms if retention_ms is None else retention_ms
        return cls(name=topic.name, partitions=partitions, policy=topic.policy, retention_ms=kept_ms)


class LogUnavailableError(ConfigError):
    """The log did not answer in time: a wrong address, a broker that is down, a network that is cut."""


class UnknownTopicError(ConfigError):
    """A topic or partition that the log does not have."""


class TopicMismatchError(ConfigError):
    """A topic exists with another number of partitions than it must have."""


class GroupBusyError(ConfigError):
    """The group has members, so offsets are theirs to commit; or, in files, another process is the member."""


class RecordRefusedError(ValueError):
    """The record breaks a limit of the log and was not sent: the caller's fault."""


class OffsetOutOfRangeError(LookupError):
    """A position before the begin or after the end offset: the records are gone, or never were."""

    def __init__(self, where: TopicPartition, offset: int, begin: int, end: int) -> None:
        super().__init__(where, offset, begin, end)
        self.where, self.offset, self.begin, self.end = where, offset, begin, end

    def __str__(self) -> str:
        held = f"the log holds {self.begin} to {self.end}"
        return f"{self.where}@{self.offset} is out of range, {held}; seek to one of these"


class Producer(Protocol):
    """Sends records. One per task; close it, or use `async with`."""

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
        """Take a record for sending; wait only while the send buffer is full.

        `partition` None means murmur2(key) modulo the partitions, any partition for a null key; `timestamp_ms` None
        means now. Raises RecordRefusedError (limits above), UnknownTopicError, or the reason why an earlier record
        was lost for good.
        """

    async def flush(self, timeout_s: float = 60.0) -> None:
        """Return when every record sent before is stored. Raises LogUnavailableError when that takes longer;
        the records stay queued and a later flush may succeed."""

    async def close(self) -> None:
        """Flush, then let go of connections; harmless a second time."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *failure: object) -> None: ...


class Reader(Protocol):
    """Reads some partitions, each from a position of its own. Belongs to no group."""

    async def get(self, *, max_records: int = 500, timeout_s: float = 1.0) -> list[LogRecord]:
        """Up to `max_records`, as soon as there are any; [] when none came within `timeout_s`.

        Each partition's records come in offset order and once. Raises OffsetOutOfRangeError.
        """

    def position(self, where: TopicPartition) -> int:
        """Offset of the next record that `get` will return of this partition."""

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at another offset; nothing from before is returned after this."""

    async def close(self) -> None:
        """Let go of connections; harmless a second time."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *failure: object) -> None: ...


class Member(Reader, Protocol):
    """A reader whose partitions are dealt out among the members of a group. Callbacks run inside `get`."""

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's now."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets for the group. Raises GroupBusyError when a partition is no longer this member's."""


OnAssigned = Callable[[frozenset[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
"""Told of all partitions that are the member's from now on; returns where to start those that it knows better than
the group's committed offsets do (a snapshot's). The others start at the committed offset, or at the beginning."""
OnRevoked = Callable[[frozenset[TopicPartition]], Awaitable[None]]
"""Told of partitions before anybody else gets them: the last moment to commit."""


class Log(Protocol):
    """A log. Open it with `async with`; every call on a log that does not answer raises LogUnavailableError."""

    @property
    def name(self) -> str:
        """What and where, for people: `Kafka at 127.0.0.1:9092`."""

    async def create_topics(self, specs: Iterable[TopicSpec]) -> list[str]:
        """Create the topics that are missing and return their names. Raises TopicMismatchError for any that exists
        with another number of partitions, before creating anything."""

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that exists; the others are left out."""

    async def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset that can be read. Raises UnknownTopicError."""

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Offset that the next record will get. Raises UnknownTopicError."""

    async def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """First offset with a timestamp at or after the given one; None where there is none."""

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Committed offsets of a group; None where it has none."""

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets for a group that has no members. Raises GroupBusyError when it has."""

    async def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Give up all records before these offsets. Raises OffsetOutOfRangeError past the end."""

    def producer(self, *, max_record_bytes: int = MAX_RECORD_BYTES) -> Producer:
        """A new producer; use it with `async with`."""

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        """A new reader of these partitions from these offsets; use it with `async with`."""

    def member(self, group: str, topics: Iterable[str], *, on_assigned: OnAssigned, on_revoked: OnRevoked) -> Member:
        """A new member of a group; use it with `async with`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *failure: object) -> None: ...


def require_partitions(specs: Iterable[TopicSpec], found: Mapping[str, int]) -> None:
    """Raise TopicMismatchError naming every topic of `specs` that was found with another number of partitions."""
    wrong: dict[tuple[int, int], list[str]] = {}
    for spec in specs:
        if found.get(spec.name, spec.partitions) != spec.partitions:
            wrong.setdefault((found[spec.name], spec.partitions), []).append(spec.name)
    if wrong:
        told = [_mismatch(names, have, expected) for (have, expected), names in wrong.items()]
        raise TopicMismatchError("; ".join(told))


def _mismatch(names: list[str], have: int, expected: int) -> str:
    if len(names) == 1:
        return (
            f"topic {names[0]} has {have} partitions, expected {expected}; delete the topic, or set the number of "
            f"partitions (TWINCAST_PARTITIONS) to {have}"
        )
    return (
        f"{len(names)} topics have {have} partitions, expected {expected}: {', '.join(names)}; delete them, or set the "
        f"number of partitions (TWINCAST_PARTITIONS) to {have}"
    )


def require_topics(names: Iterable[str], found: Mapping[str, int], log_name: str) -> None:
    """Raise UnknownTopicError naming every topic that was not found."""
    missing = [name for name in names if name not in found]
    if missing:
        raise UnknownTopicError(
            f"{log_name} has no topic {', '.join(sorted(missing))}; create it with `twincast topics create`"
        )


def require_sendable(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    timestamp_ms: int | None,
    *,
    max_record_bytes: int,
    now_ms: int,
) -> None:
    """Raise RecordRefusedError for a record that a broker would refuse, since that costs its whole batch."""
    if key is None and value is None:
        raise RecordRefusedError(f"a record for {topic} needs a key or a value; give one of them")
    size_bytes = len(key or b"") + len(value or b"")
    if headers:
        size_bytes += sum(len(name) + len(text) for name, text in headers)
    if size_bytes > max_record_bytes:
        raise RecordRefusedError(
            f"a record of {size_bytes} bytes for {topic} is over the limit of {max_record_bytes}; trim or split it"
        )
    if timestamp_ms is not None and not 0 <= timestamp_ms <= now_ms + MAX_AHEAD_MS:
        raise RecordRefusedError(
            f"timestamp_ms for {topic} must be 0 to {MAX_AHEAD_MS} after now ({now_ms}), got {timestamp_ms}; correct it"
        )
