"""Which records were seen before. Tells a duplicate from a conflict by payload; forgets the oldest beyond a bound.

Redelivered units are told by their offsets before they come here; this is for producers that send a record twice.
Steps of an engine are numbered, so those above every number known are new without a look at each.
Laws: memory is bounded, and within the bound a record is new exactly once; a run is what its steps would be; an
identity that was disowned is in conflict with everything.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from schemas.requests import RequestRecord
from schemas.steps import Step
from twin.clock import Find, StepRun, Unit

REMEMBERED_REQUEST_EVENTS = 16_384
REMEMBERED_STEPS = 4_096
MAX_PLACES = 2 * REMEMBERED_STEPS
_DISOWNED = -1
"""In place of a checksum, of which none is negative."""


class Seen(Enum):
    """The answer to "have I seen this record?"."""

    NEW = "new"
    SAME = "same"
    CONFLICT = "conflict"


class _Run(NamedTuple):
    """Steps `first`, `first` + 1, ... of one run of an engine, by the checksums of their payloads."""

    engine: str
    epoch: int
    first: int
    checksums: Sequence[int]


class Identities:
    """(request_id, event) and (engine, epoch, step) -> checksum of the payload, for the newest of each."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, int] = OrderedDict()
        self._steps: OrderedDict[str, int] = OrderedDict()
        self._runs: deque[_Run] = deque()
        """Steps remembered after those in `_steps`, not put there yet."""
        self._in_runs = 0
        self._highest: dict[tuple[str, int], int] = {}
        """Per engine and epoch a number at or above all that are known."""

    def check(self, unit: Unit) -> Seen:
        """Remember a unit; say whether its identity was known, and with which payload."""
        record = unit.record
        if isinstance(record, Step):
            self._unfold()
            self._raise_highest(unit.engine, unit.epoch, record.step)
            key = _step_key(unit.engine, unit.epoch, record.step)
            return _check(self._steps, REMEMBERED_STEPS, key, record.start_us ^ record.duration_us)
        return _check(self._events, REMEMBERED_REQUEST_EVENTS, _event_key(unit), crc32(msgspec.json.encode(record)))

    def disown(self, unit: Unit) -> None:
        """Let nothing that claims this identity, which is known, be believed any more."""
        if isinstance(unit.record, Step):
            self._steps[_step_key(unit.engine, unit.epoch, unit.record.step)] = _DISOWNED
        else:
            self._events[_event_key(unit)] = _DISOWNED

    def is_beyond(self, engine: str, epoch: int, first: int) -> bool:
        """Whether step `first` and all above it are new."""
        return first > self._highest.get((engine, epoch), -1)

    def remember(self, engine: str, epoch: int, first: int, checksums: Sequence[int]) -> None:
        """Remember steps `first`, `first` + 1, ..., which are new, by start XOR duration in microseconds."""
        self._runs.append(_Run(engine, epoch, first, checksums))
        self._in_runs += len(checksums)
        while self._in_runs - len(self._runs[0].checksums) >= REMEMBERED_STEPS:
            self._in_runs -= len(self._runs.popleft().checksums)
            self._steps.clear()  # all of them are older
        self._raise_highest(engine, epoch, first + len(checksums) - 1)

    def _raise_highest(self, engine: str, epoch: int, step: int) -> None:
        if step > self._highest.get((engine, epoch), -1):
            self._highest[engine, epoch] = step
            if len(self._highest) > MAX_PLACES:
                self._unfold()
                self._highest = {**_highest_of(self._steps), (engine, epoch): step}

    def _unfold(self) -> None:
        """Put the steps of runs with the others, as many as may stay."""
        while self._runs:
            engine, epoch, first, checksums = self._runs.popleft()
            for step, checksum in enumerate(checksums, first):
                self._steps[_step_key(engine, epoch, step)] = checksum
        self._in_runs = 0
        for key in list(islice(self._steps, max(len(self._steps) - REMEMBERED_STEPS, 0))):
            del self._steps[key]

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Plain data, oldest first."""
        self._unfold()
        return {"events": dict(self._events), "steps": dict(self._steps)}

    def restore(self, data: dict[str, dict[str, int]]) -> None:
        """Take over what `snapshot` gave."""
        self._events = OrderedDict(data["events"])
        self._steps = OrderedDict(data["steps"])
        self._runs.clear()
        self._in_runs = 0
        self._highest = _highest_of(self._steps)


def _check(known: OrderedDict[str, int], capacity: int, key: str, checksum: int) -> Seen:
    before = known.get(key)
    if before is not None:
        return Seen.SAME if before == checksum else Seen.CONFLICT
    known[key] = checksum
    if len(known) > capacity:
        known.popitem(last=False)
    return Seen.NEW


def _step_key(engine: str, epoch: int, step: int) -> str:
    return f"{engine}/{epoch}/{step}"


def _highest_of(keys: Iterable[str]) -> dict[tuple[str, int], int]:
    """Per engine and epoch the highest step among keys."""
    highest: dict[tuple[str, int], int] = {}
    for key in keys:
        engine, epoch, step = key.rsplit("/", 2)
        place = (engine, int(epoch))
        highest[place] = max(int(step), highest.get(place, -1))
    return highest


def same_identity(unit: Unit) -> Find | None:
    """How to find another unit of the same identity; None for a record that has no name of its own, only a time."""
    record = unit.record
    if isinstance(record, Step):
        return lambda item: _place_of_step(item, unit.engine, unit.epoch, record.step)
    if not isinstance(record, RequestRecord):
        return None
    kind, request_id = type(record), record.request_id
    return lambda item: (
        0 if isinstance(item, Unit) and type(item.record) is kind and item.record.request_id == request_id else None
    )


def _place_of_step(item: Unit | StepRun, engine: str, epoch: int, step: int) -> int | None:
    """Steps of a run are numbered one after another."""
    if (item.engine, item.epoch) != (engine, epoch):
        return None
    if isinstance(item, Unit):
        return 0 if isinstance(item.record, Step) and item.record.step == step else None
    place = step - item.steps[0].step
    return place if 0 <= place < len(item) else None


def _event_key(unit: Unit) -> str:
    record: Any = unit.record
    tag = type(record).__struct_config__.tag
    request_id = getattr(record, "request_id", None)
    return f"{tag}/{request_id}" if request_id is not None else f"{tag}/{getattr(record, 'engine', '')}/{record.at_us}"
