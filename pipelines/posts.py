"""A partition at work: what a worker holds of it, and how it tells of itself. Does no work.

Law: a report is made of what is there; making one changes nothing.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from pipelines.errors import ConfigError
from pipelines.jobs import Jobs
from pipelines.lanes import INPUT_NAMES, Lane
from pipelines.log import LogRecord, TopicPartition
from pipelines.runtime import Incoming
from pipelines.silence import Silence


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker stands: its partitions, the account of units, per topic and partition the offset handled up to,
    records read and not handled, simulations not done, whether those can run and whether there is nothing to do,
    rounds of snapshots, records written per topic, what became of raw spans."""

    partitions: tuple[int, ...]
    balance: dict[str, int]
    handed: dict[str, int]
    held: int
    outstanding: int
    simulators_ready: bool
    idle: bool
    snapshots: int
    written: dict[str, int]
    ingested: dict[str, int] = {}


@dataclass(slots=True)
class Post:
    """A partition at work."""

    lane: Lane
    jobs: Jobs
    wake: asyncio.Event
    saved_ticks: dict[str, int] = field(default_factory=dict)
    silence: Silence = field(default_factory=Silence)
    holding: bool = False
    closing: bool = False
    idle: bool = False
    task: "asyncio.Task[None] | None" = None
    moved_s: float = field(default_factory=time.monotonic)
    looked_s: float = 0.0


def incoming(record: LogRecord) -> Incoming:
    """A record of a log as the runtime takes it."""
    return Incoming(record.topic, record.partition, record.offset, record.key, record.value, record.headers)


def whole_partitions(owned: Iterable[TopicPartition]) -> list[int]:
    """Numbers of partitions of which every input topic is here. Raises ConfigError where one is missing."""
    by_number: dict[int, set[str]] = {}
    for place in owned:
        by_number.setdefault(place.partition, set()).add(place.topic)
    for number, topics in sorted(by_number.items()):
        missing = [topic for topic in INPUT_NAMES if topic not in topics]
        if missing:
            raise ConfigError(
                f"partition {number} came without {', '.join(missing)}; all members of a group must read the same "
                "topics with the same partitioning: stop the others"
            )
    return sorted(by_number)


def brief(offsets: Mapping[str, int]) -> str:
    """Offsets per topic in a line of a log, those at 0 left out."""
    shown = [
        f"{topic.split('.')[-2] if '.' in topic else topic}@{offset}" for topic, offset in offsets.items() if offset
    ]
    return " ".join(shown) or "the beginning"
