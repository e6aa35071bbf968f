"""What keeps the records of an embedded log: the promises that memory and files fulfil. No asyncio, no group rules.

Law: see `pipelines.log`; additionally, a store's methods return at once and never wait for other records.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from pipelines.log import Header, LogRecord, TopicPartition, TopicSpec


class NewRecord(NamedTuple):
    """A record on its way into a partition."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Partition(Protocol):
    """The records of one partition."""

    def append(self, records: Sequence[NewRecord]) -> int:
        """Store all or none; return the offset of the first."""

    def read(self, offset: int, max_records: int) -> list[LogRecord]:
        """Records from an offset on, [] at the end. Raises OffsetOutOfRangeError."""

    def bounds(self) -> tuple[int, int]:
        """Begin and end offset."""

    def offset_at(self, time_ms: int) -> int | None:
        """First offset with a timestamp at or after a time."""

    def delete_before(self, offset: int) -> None:
        """Give up earlier records. Raises OffsetOutOfRangeError past the end."""


class Store(Protocol):
    """Topics with their partitions, and the committed offsets of groups."""

    @property
    def name(self) -> str:
        """What and where, for people."""

    @property
    def poll_interval_s(self) -> float | None:
        """How often to look for records of other processes; None where there can be none."""

    def topics(self) -> Mapping[str, TopicSpec]:
        """The topics there are."""

    def create(self, spec: TopicSpec) -> bool:
        """Create a topic; False when it exists."""

    def partition(self, where: TopicPartition) -> Partition:
        """The partition, which must exist."""

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """Committed offsets of a group."""

    def save_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Add to the committed offsets of a group."""

    def membership(self, group: str) -> AbstractContextManager[None]:
        """Held while this process has a member in the group. Raises GroupBusyError when another has."""

    def close(self) -> None:
        """Let go of files."""
