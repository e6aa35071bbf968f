"""Which records were seen before. Tells a duplicate from a conflict by payload; forgets the oldest beyond a bound.

Redelivered units are told by their offsets before they come here; this is for producers that send a record twice.
Law: memory is bounded, and within the bound a record is new exactly once.
"""

from collections import OrderedDict
from enum import Enum
from typing import Any
from zlib import crc32

import msgspec

from schemas.steps import Step
from twin.clock import Unit

REMEMBERED_REQUEST_EVENTS = 16_384
REMEMBERED_STEPS = 4_096


class Seen(Enum):
    """The answer to "have I seen this record?"."""

    NEW = "new"
    SAME = "same"
    CONFLICT = "conflict"


class Identities:
    """(request_id, event) and (engine, epoch, step) -> checksum of the payload, for the newest of each."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, int] = OrderedDict()
        self._steps: OrderedDict[str, int] = OrderedDict()

    def check(self, unit: Unit) -> Seen:
        """Remember a unit; say whether its identity was known, and with which payload."""
        record = unit.record
        if isinstance(record, Step):
            key = f"{unit.engine}/{unit.epoch}/{record.step}"
            return _check(self._steps, REMEMBERED_STEPS, key, record.start_us ^ record.duration_us)
        return _check(self._events, REMEMBERED_REQUEST_EVENTS, _event_key(unit), crc32(msgspec.json.encode(record)))

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Plain data, oldest first."""
        return {"events": dict(self._events), "steps": dict(self._steps)}

    def restore(self, data: dict[str, dict[str, int]]) -> None:
        """Take over what `snapshot` gave."""
        self._events = OrderedDict(data["events"])
        self._steps = OrderedDict(data["steps"])


def _check(known: OrderedDict[str, int], capacity: int, key: str, checksum: int) -> Seen:
    before = known.get(key)
    if before is not None:
        return Seen.SAME if before == checksum else Seen.CONFLICT
    known[key] = checksum
    if len(known) > capacity:
        known.popitem(last=False)
    return Seen.NEW


def _event_key(unit: Unit) -> str:
    record: Any = unit.record
    tag = type(record).__struct_config__.tag
    request_id = getattr(record, "request_id", None)
    return f"{tag}/{request_id}" if request_id is not None else f"{tag}/{getattr(record, 'engine', '')}/{record.at_us}"
