"""Messages of one deployment -> units in event order. Decides duplicate, late, quarantined; applies nothing.

Laws: every unit that comes in is settled here or released exactly once; a refusal changes nothing but counters;
redelivered units (below the offset already read) are not counted again; steps of a message that are in order, new and
neither late nor ahead are taken in together, with the outcome that each would have had; of two contents under one
identity neither is released, unless the first had been when the second came: then it stands, and the second is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add, xor
from typing import Any

import msgspec

from schemas.changes import Skipped, Tick
from schemas.codec import Decoded
from schemas.lineage import Offset
from schemas.steps import Step, StepBatch
from schemas.topics import TOPICS
from twin.accounting import Accounts, Outcome
from twin.clock import EventClock, Original, Position, ReorderBuffer, StepRun, Unit
from twin.door import objection, passes
from twin.identity import Identities, Seen, same_identity

SNAPSHOT_ORIGINALS_BYTES = 1 << 20
"""Of the messages of units that wait, a snapshot holds so much: those held for their clock, then the newest. A unit of
any other that is refused after a restart is given back encoded anew."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a log for one deployment. `decoded` is None for a tombstone (null value) of `key`; `original` is
    what a refusal of a unit of it gives back, now or later."""

    topic: str
    partition: int
    offset: int
    decoded: Decoded | None
    key: bytes = b""
    original: Original | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A unit that will not be applied: where it stood, how it ended, why. The record is there if it could be read, its
    message if that is known."""

    position: Position
    outcome: Outcome
    reason: str
    record: Any = None
    original: Original | None = None


class Intake:
    """The buffer between the wire and the state. `lateness_us` names the sources that the watermark waits for."""

    def __init__(self, lateness_us: dict[str, int]) -> None:
        self.clock = EventClock(lateness_us)
        self.accounts = Accounts()
        self._buffer = ReorderBuffer()
        self._identities = Identities()
        self._next_offset: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        """Units waiting for the watermark."""
        return len(self._buffer)

    def accept(self, message: Message) -> list[Refusal]:
        """Take in a message; return the units of it, or held before it, that are refused."""
        source = (message.topic, message.partition)
        if message.offset < self._next_offset.get(source, 0):
            return []
        self._next_offset[source] = message.offset + 1
        where = Position(message.topic, message.partition, message.offset)
        if message.decoded is None:
            self.accounts.receive()
            self.accounts.settle(Outcome.TOMBSTONE)
            return []
        self.accounts.receive(message.decoded.units)
        refusals = []
        for index, error in message.decoded.refused:
            position = Position(where.topic, where.partition, where.offset, index)
            refusal = Refusal(position, Outcome.DEAD_LETTER, error.reason, original=message.original)
            refusals.append(self._refuse(refusal))
        record = message.decoded.record
        if not isinstance(record, StepBatch):
            refusals += self._admit(Unit(record.at_us, where, record, original=message.original))
        elif not self._admit_together(where, message.decoded, message.original):
            for unit in _steps(where, message.decoded, message.original):
                refusals += self._admit(unit)
        self.clock.advance()
        return refusals

    def _admit_together(self, where: Position, decoded: Decoded, original: Original | None) -> bool:
        """Take in all steps of a message at once; False, and nothing changed, if they need a look at each."""
        batch: StepBatch = decoded.record
        if not batch.steps:
            return True
        starts_us = [step.start_us for step in batch.steps]
        durations_us = [step.duration_us for step in batch.steps]
        at_us = list(map(add, starts_us, durations_us))
        numbers = [step.step for step in batch.steps]
        first = numbers[0]
        if not (
            passes(min(durations_us), max(durations_us))
            and at_us == sorted(at_us)
            and numbers == list(range(first, first + len(numbers)))
            and self._identities.is_beyond(batch.engine, batch.epoch, first)
            and self.clock.is_plain(where.topic, at_us[0], at_us[-1])
        ):
            return False
        self._identities.remember(batch.engine, batch.epoch, first, list(map(xor, starts_us, durations_us)))
        self.clock.move(where.topic, at_us[-1])
        indexes = _indexes(decoded)
        at_first = where.at(indexes[0]) if indexes[0] else where
        self._buffer.push_run(StepRun(at_first, batch.engine, batch.epoch, batch.steps, at_us, indexes, original))
        return True

    def _admit(self, unit: Unit) -> list[Refusal]:
        if isinstance(unit.record, Skipped):  # for who simulates; it tells no time and no news
            self.accounts.settle(Outcome.APPLIED)
            return []
        reason = objection(unit.record)
        if reason is not None:
            return [self._refuse_unit(unit, Outcome.QUARANTINED, reason)]
        seen = self._identities.check(unit)
        if seen is Seen.SAME:
            self.accounts.settle(Outcome.DUPLICATE)
            return []
        if seen is Seen.CONFLICT:
            return self._refuse_conflict(unit)
        if isinstance(unit.record, Tick):
            if unit.at_us < self.clock.watermark_us:
                self.accounts.settle(Outcome.DUPLICATE)  # records have told the time already
                return []
            self.clock.tick(unit.at_us)
        if self.clock.is_plain(unit.position.topic, unit.at_us, unit.at_us):
            self.clock.move(unit.position.topic, unit.at_us)
            self._buffer.push(unit)
            return []
        accepted, from_the_future = self.clock.admit(unit)
        refusals = [self._refuse_unit(held, Outcome.QUARANTINED, "future_clock") for held in from_the_future]
        for each in accepted:
            if self.clock.is_late(each):
                refusals.append(self._refuse_unit(each, Outcome.LATE, "late"))
            else:
                self._buffer.push(each)
        return refusals

    def _refuse_conflict(self, unit: Unit) -> list[Refusal]:
        """Another content under a known identity: what was told first goes too if it still waits, and else it stands.

        Records without a name of their own are known by their time; of these the first stands.
        """
        find = same_identity(unit)
        first = None if find is None else self._buffer.withdraw(find) or self.clock.withdraw(find)
        if first is None:
            return [self._refuse_unit(unit, Outcome.QUARANTINED, "id_conflict")]
        self._identities.disown(unit)
        return [self._refuse_unit(each, Outcome.QUARANTINED, "id_conflict") for each in (first, unit)]

    def _refuse_unit(self, unit: Unit, outcome: Outcome, reason: str) -> Refusal:
        return self._refuse(Refusal(unit.position, outcome, reason, unit.record, unit.original))

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.accounts.settle(refusal.outcome, reason=refusal.reason)
        return refusal

    def next_at_us(self) -> int | None:
        """Event time of the next unit to be released, None when none waits."""
        return self._buffer.next_at_us()

    def release(self, until_us: int) -> Iterator[Unit | StepRun]:
        """Units up to an event time at or below the watermark, in order, steps that follow each other as one run;
        each unit counts as applied."""
        for item in self._buffer.pop_until(min(until_us, self.clock.watermark_us)):
            self.accounts.settle(Outcome.APPLIED, 1 if isinstance(item, Unit) else len(item))
            yield item

    def offsets(self) -> tuple[Offset, ...]:
        """The next offset to read, per topic and partition that was seen."""
        return tuple(
            Offset(topic=topic, partition=partition, next_offset=offset)
            for (topic, partition), offset in sorted(self._next_offset.items())
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data, units in the buffer included, and messages that these came in."""
        waiting, held = self._buffer.units(), self.clock.held()
        return {
            "clock": self.clock.snapshot(),
            "accounts": self.accounts.snapshot(),
            "identities": self._identities.snapshot(),
            "buffered": [_plain(unit) for unit in waiting],
            "held": [_plain(unit) for unit in held],
            "originals": _plain_originals([*held, *reversed(waiting)]),
        }

    def restore(self, data: dict[str, Any], offsets: tuple[Offset, ...]) -> None:
        """Take over what `snapshot` and `offsets` gave."""
        originals = _originals(data.get("originals", []))  # older snapshots have none
        self.clock.restore(data["clock"], [_unit(item, originals) for item in data["held"]])
        self.accounts.restore(data["accounts"])
        self._identities.restore(data["identities"])
        for item in data["buffered"]:
            self._buffer.push(_unit(item, originals))
        self._next_offset = {(offset.topic, offset.partition): offset.next_offset for offset in offsets}


def _steps(where: Position, decoded: Decoded, original: Original | None) -> Iterator[Unit]:
    batch: StepBatch = decoded.record
    for index, step in zip(_indexes(decoded), batch.steps, strict=True):
        yield Unit(step.at_us, where.at(index), step, batch.engine, batch.epoch, original)


def _indexes(decoded: Decoded) -> Sequence[int]:
    """Places in the message of the steps that could be read."""
    if not decoded.refused:
        return range(decoded.units)
    refused = {index for index, _ in decoded.refused}
    return [index for index in range(decoded.units) if index not in refused]


def _plain(unit: Unit) -> dict[str, Any]:
    position = unit.position
    return {
        "position": [position.topic, position.partition, position.offset, position.index],
        "engine": unit.engine,
        "epoch": unit.epoch,
        "record": msgspec.to_builtins(unit.record),
    }


def _plain_originals(units: Iterable[Unit]) -> list[list[Any]]:
    """Topic, partition, offset and content of the messages of these units, the first ones within the bound."""
    found: dict[tuple[str, int, int], Original] = {}
    left_bytes = SNAPSHOT_ORIGINALS_BYTES
    for unit in units:
        original, place = unit.original, _place(unit.position)
        if original is not None and place not in found:
            left_bytes -= len(original.value or b"")
            if left_bytes < 0:
                break
            found[place] = original
    return [[*place, msgspec.to_builtins(found[place])] for place in sorted(found)]


def _originals(data: Sequence[Sequence[Any]]) -> dict[tuple[str, int, int], Original]:
    return {(item[0], item[1], item[2]): msgspec.convert(item[3], Original) for item in data}


def _place(position: Position) -> tuple[str, int, int]:
    return (position.topic, position.partition, position.offset)


def _unit(item: dict[str, Any], originals: Mapping[tuple[str, int, int], Original]) -> Unit:
    position = Position(*item["position"])
    kind = Step if item["engine"] else TOPICS[position.topic].type
    record = msgspec.convert(item["record"], kind)
    return Unit(record.at_us, position, record, item["engine"], item["epoch"], originals.get(_place(position)))
