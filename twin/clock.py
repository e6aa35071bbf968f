"""Event time of one deployment: the watermark and the buffer that puts records in order. Knows no wall clock.

Steps of one message travel together as long as nothing comes between them: one entry of the buffer, not fifty.

Laws: the watermark never falls; what is released is in (at_us, topic, partition, offset, index) order and does not
depend on the order of arrival within the lateness bound; one clock in the future moves nothing; a run of steps is
admitted, ordered and released as its units would be.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.steps import Step

US_PER_S = 1_000_000
MAX_JUMP_US = 60 * US_PER_S
JUMP_CONFIRMATIONS = 3


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a unit stands on the wire; `index` is its place in a message of many."""

    topic: str
    partition: int
    offset: int
    index: int = 0

    def at(self, index: int) -> "Position":
        """The position of another unit of the message."""
        return Position(self.topic, self.partition, self.offset, index)


class Original(msgspec.Struct, frozen=True, gc=False):
    """A message as its producer sent it, to be given back whole if a unit of it is refused. Nobody here reads it."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


class Unit(msgspec.Struct, frozen=True, gc=False):
    """One input unit: its event time, its position, its record, the engine run it belongs to (steps only), and the
    message it came in where that is known.

    A struct, as one is made for every record and a dataclass takes four times as long.
    """

    at_us: int
    position: Position
    record: Any
    engine: str = ""
    epoch: int = 0
    original: Original | None = None

    def order(self) -> tuple[int, Position]:
        """The key by which units are applied."""
        return (self.at_us, self.position)


class StepRun(msgspec.Struct, frozen=True, gc=False):
    """Steps of one engine out of one message, n >= 1, rising in (event time, index).

    `position` is that of the first; `at_us` (n) are event times, `indexes` (n) the places in the message.
    """

    position: Position
    engine: str
    epoch: int
    steps: Sequence[Step]
    at_us: Sequence[int]
    indexes: Sequence[int]
    original: Original | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, begin: int, end: int) -> "StepRun":
        """Steps `begin` to `end` - 1 as a run."""
        if begin == 0 and end == len(self.steps):
            return self
        first, inside = self.position.at(self.indexes[begin]), slice(begin, end)
        steps, at_us, indexes = self.steps[inside], self.at_us[inside], self.indexes[inside]
        return StepRun(first, self.engine, self.epoch, steps, at_us, indexes, self.original)

    def units(self) -> Iterator[Unit]:
        """The steps one by one."""
        for at_us, index, step in zip(self.at_us, self.indexes, self.steps, strict=True):
            yield Unit(at_us, self.position.at(index), step, self.engine, self.epoch, self.original)


Find = Callable[["Unit | StepRun"], "int | None"]
"""Says at which place of an entry the unit sought is (0 for a single one); None where it is not."""


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

    @property
    def newest_us(self) -> int:
        """Newest event time of any source, 0 before the first."""
        return max((source.newest_us for source in self._sources.values()), default=0)

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

    def is_plain(self, topic: str, first_us: int, last_us: int) -> bool:
        """Whether units from `first_us` to `last_us`, in order, would all be admitted, none late, and no other
        refused by them."""
        if first_us < self.watermark_us:
            return False
        source = self._sources.get(topic)
        return source is None or (not source.suspects and last_us <= (source.newest_us or first_us) + MAX_JUMP_US)

    def move(self, topic: str, at_us: int) -> None:
        """What `admit` does to the clock for units up to `at_us` that are plain."""
        source = self._sources.get(topic)
        if source is not None and at_us > source.newest_us:
            source.newest_us = at_us

    def is_late(self, unit: Unit) -> bool:
        """Below the watermark on arrival."""
        return unit.at_us < self.watermark_us

    def advance(self) -> int:
        """Recompute the watermark and return it."""
        low = min([source.newest_us - source.lateness_us for source in self._sources.values()], default=0)
        if low > self.watermark_us:
            self.watermark_us = low
        return self.watermark_us

    def tick(self, at_us: int) -> None:
        """Every source was read to its end at `at_us`: a silent source holds nothing back."""
        for source in self._sources.values():
            source.newest_us = max(source.newest_us, at_us + source.lateness_us)

    def withdraw(self, find: Find) -> Unit | None:
        """Take out the unit sought if it waits for confirmation."""
        for source in self._sources.values():
            for number, unit in enumerate(source.suspects):
                if find(unit) is not None:
                    return source.suspects.pop(number)
        return None

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
        self._heap: list[tuple[int, Position, Unit | StepRun, int]] = []
        """Keys of the first unit, and for a run how many of its steps are gone."""
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def push(self, unit: Unit) -> None:
        """Add a unit."""
        heapq.heappush(self._heap, (unit.at_us, unit.position, unit, 0))
        self._waiting += 1

    def push_run(self, run: StepRun) -> None:
        """Add all units of a run."""
        heapq.heappush(self._heap, (run.at_us[0], run.position, run, 0))
        self._waiting += len(run.steps)

    def withdraw(self, find: Find) -> Unit | None:
        """Take out the unit sought, None if it does not wait. Looks at every entry: it is for what is rare."""
        for number, (_, _, item, begin) in enumerate(self._heap):
            place = find(item)
            if place is None or place < begin:
                continue
            self._heap[number] = self._heap[-1]
            self._heap.pop()
            heapq.heapify(self._heap)
            if isinstance(item, Unit):
                self._waiting -= 1
                return item
            self._waiting -= len(item) - begin
            for part in ((begin, place), (place + 1, len(item))):
                if part[0] < part[1]:
                    self.push_run(item.part(*part))
            return next(item.part(place, place + 1).units())
        return None

    def next_at_us(self) -> int | None:
        """Event time of the next unit, None when empty."""
        return self._heap[0][0] if self._heap else None

    def pop_until(self, at_us: int) -> Iterator[Unit | StepRun]:
        """Release units with event time <= `at_us`, in order; steps that follow each other come as one run."""
        heap = self._heap
        while heap and heap[0][0] <= at_us:
            _, _, item, begin = heapq.heappop(heap)
            if isinstance(item, Unit):
                self._waiting -= 1
                yield item
                continue
            end = self._reach(item, begin, at_us)
            if end < len(item.steps):
                position = item.position.at(item.indexes[end])
                heapq.heappush(heap, (item.at_us[end], position, item, end))
            self._waiting -= end - begin
            yield item.part(begin, end)

    def _reach(self, run: StepRun, begin: int, until_us: int) -> int:
        """How far a run goes on before another unit's turn or `until_us`."""
        if not self._heap or self._heap[0][0] > until_us:
            return bisect_right(run.at_us, until_us, begin)
        next_us, next_position = self._heap[0][:2]
        end = bisect_left(run.at_us, next_us, begin)
        while end < len(run.at_us) and run.at_us[end] == next_us:
            if run.position.at(run.indexes[end]) > next_position:
                break
            end += 1
        return end

    def units(self) -> list[Unit]:
        """All units still waiting, in order."""
        found: list[Unit] = []
        for _, _, item, begin in self._heap:
            found += [item] if isinstance(item, Unit) else item.part(begin, len(item.steps)).units()
        return sorted(found, key=Unit.order)
