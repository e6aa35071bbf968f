"""Event time of one deployment: the watermark and the buffer that puts records in order. Knows no wall clock.

Laws: the watermark never falls; what is released is in (at_us, topic, partition, offset, index) order and does not
depend on the order of arrival within the lateness bound; one clock in the future moves nothing.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

US_PER_S = 1_000_000
MAX_JUMP_US = 60 * US_PER_S
JUMP_CONFIRMATIONS = 3


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a unit stands on the wire; `index` is its place in a message of many."""

    topic: str
    partition: int
    offset: int
    index: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    """One input unit: its event time, its position, its record, and the engine run it belongs to (steps only)."""

    at_us: int
    position: Position
    record: Any
    engine: str = ""
    epoch: int = 0

    def order(self) -> tuple[int, Position]:
        """The key by which units are applied."""
        return (self.at_us, self.position)


@dataclass(slots=True)
class _Source:
    lateness_us: int
    newest_us: int = 0
    suspects: list[Unit] = field(default_factory=list)


class EventClock:
    """Watermark over several sources: the minimum of (newest event time - lateness) over those that count.

    A source counts from the start if it is declared, so that a slow one is waited for. `admit` says what becomes of a
    unit; a jump of more than 60 s is held back until three units in a row agree, and refused when an honest one comes.
    """

    def __init__(self, lateness_us: dict[str, int]) -> None:
        self._sources = {name: _Source(lateness_us=value) for name, value in lateness_us.items()}
        self.watermark_us = 0

    def admit(self, unit: Unit) -> tuple[list[Unit], list[Unit]]:
        """Take a unit of a declared source; return (units to buffer, units refused as `future_clock`)."""
        source = self._sources.get(unit.position.topic)
        if source is None:
            return [unit], []
        if source.newest_us and unit.at_us > source.newest_us + MAX_JUMP_US:
            source.suspects.append(unit)
            if len(source.suspects) < JUMP_CONFIRMATIONS:
                return [], []
            confirmed, source.suspects = source.suspects, []
            source.newest_us = max(source.newest_us, min(suspect.at_us for suspect in confirmed))
            return confirmed, []
        refused, source.suspects = source.suspects, []
        source.newest_us = max(source.newest_us, unit.at_us)
        return [unit], refused

    def is_late(self, unit: Unit) -> bool:
        """Below the watermark on arrival."""
        return unit.at_us < self.watermark_us

    def advance(self) -> int:
        """Recompute the watermark and return it."""
        low = min((s.newest_us - s.lateness_us for s in self._sources.values()), default=0)
        self.watermark_us = max(self.watermark_us, low)
        return self.watermark_us

    def tick(self, at_us: int) -> None:
        """Every source was read to its end at `at_us`: a silent source holds nothing back."""
        for source in self._sources.values():
            source.newest_us = max(source.newest_us, at_us + source.lateness_us)

    def held(self) -> list[Unit]:
        """Units that wait for confirmation."""
        return [unit for source in self._sources.values() for unit in source.suspects]

    def snapshot(self) -> dict[str, Any]:
        """Plain data, without the held units (see `held`)."""
        newest = {name: source.newest_us for name, source in self._sources.items()}
        return {"watermark_us": self.watermark_us, "newest_us": newest}

    def restore(self, data: dict[str, Any], held: list[Unit]) -> None:
        """Take over what `snapshot` gave and the units that were held."""
        self.watermark_us = data["watermark_us"]
        for name, newest_us in data["newest_us"].items():
            if name in self._sources:
                self._sources[name].newest_us = newest_us
        for unit in held:
            self._sources[unit.position.topic].suspects.append(unit)


class ReorderBuffer:
    """Units waiting for the watermark, released in order. Does not judge them."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, Position], Unit]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, unit: Unit) -> None:
        """Add a unit."""
        heapq.heappush(self._heap, (unit.order(), unit))

    def next_at_us(self) -> int | None:
        """Event time of the next unit, None when empty."""
        return self._heap[0][1].at_us if self._heap else None

    def pop_until(self, at_us: int) -> Iterator[Unit]:
        """Release units with event time <= `at_us`, in order."""
        while self._heap and self._heap[0][1].at_us <= at_us:
            yield heapq.heappop(self._heap)[1]

    def units(self) -> list[Unit]:
        """All units still waiting, in order."""
        return [unit for _, unit in sorted(self._heap)]
