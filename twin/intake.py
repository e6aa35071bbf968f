"""Messages of one deployment -> units in event order. Decides duplicate, late, quarantined; applies nothing.

Laws: every unit that comes in is settled here or released exactly once; a refusal changes nothing but counters;
redelivered units (below the offset already read) are not counted again; steps of a message that are in order, new and
neither late nor ahead are taken in together, with the outcome that each would have had.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.changes import Skipped, Tick
from schemas.codec import Decoded
from schemas.lineage import Offset
from schemas.steps import Step, StepBatch
from schemas.topics import TOPICS
from twin.accounting import Accounts, Outcome
from twin.clock import EventClock, Position, ReorderBuffer, StepRun, Unit
from twin.door import objection, passes
from twin.identity import Identities, Seen


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message of a log for one deployment. `decoded` is None for a tombstone (null value) of `key`."""

    topic: str
    partition: int
    offset: int
    decoded: Decoded | None
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A unit that will not be applied: where it stood, how it ended, why. The record is there if it could be read."""

    position: Position
    outcome: Outcome
    reason: str
    record: Any = None


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
            refusals.append(self._refuse(Refusal(position, Outcome.DEAD_LETTER, error.reason)))
        record = message.decoded.record
        if not isinstance(record, StepBatch):
            refusals += self._admit(Unit(record.at_us, where, record))
        elif not self._admit_together(where, message.decoded):
            for unit in _steps(where, message.decoded):
                refusals += self._admit(unit)
        self.clock.advance()
        return refusals

    def _admit_together(self, where: Position, decoded: Decoded) -> bool:
        """Take in all steps of a message at once; False, and nothing changed, if they need a look at each."""
        batch: StepBatch = decoded.record
        if not batch.steps:
            return True
        durations_us = [step.duration_us for step in batch.steps]
        at_us = [step.start_us + step.duration_us for step in batch.steps]
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
        checksums = [step.start_us ^ step.duration_us for step in batch.steps]
        self._identities.remember(batch.engine, batch.epoch, first, checksums)
        self.clock.move(where.topic, at_us[-1])
        indexes = _indexes(decoded)
        at_first = where.at(indexes[0]) if indexes[0] else where
        self._buffer.push_run(StepRun(at_first, batch.engine, batch.epoch, batch.steps, at_us, indexes))
        return True

    def _admit(self, unit: Unit) -> list[Refusal]:
        if isinstance(unit.record, Skipped):  # for who simulates; it tells no time and no news
            self.accounts.settle(Outcome.APPLIED)
            return []
        reason = objection(unit.record)
        if reason is not None:
            return [self._refuse(Refusal(unit.position, Outcome.QUARANTINED, reason, unit.record))]
        seen = self._identities.check(unit)
        if seen is Seen.SAME:
            self.accounts.settle(Outcome.DUPLICATE)
            return []
        if seen is Seen.CONFLICT:
            return [self._refuse(Refusal(unit.position, Outcome.QUARANTINED, "id_conflict", unit.record))]
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
        refusals = [
            self._refuse(Refusal(held.position, Outcome.QUARANTINED, "future_clock", held.record))
            for held in from_the_future
        ]
        for each in accepted:
            if self.clock.is_late(each):
                refusals.append(self._refuse(Refusal(each.position, Outcome.LATE, "late", each.record)))
            else:
                self._buffer.push(each)
        return refusals

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
        """Plain data, units in the buffer included."""
        return {
            "clock": self.clock.snapshot(),
            "accounts": self.accounts.snapshot(),
            "identities": self._identities.snapshot(),
            "buffered": [_plain(unit) for unit in self._buffer.units()],
            "held": [_plain(unit) for unit in self.clock.held()],
        }

    def restore(self, data: dict[str, Any], offsets: tuple[Offset, ...]) -> None:
        """Take over what `snapshot` and `offsets` gave."""
        self.clock.restore(data["clock"], [_unit(item) for item in data["held"]])
        self.accounts.restore(data["accounts"])
        self._identities.restore(data["identities"])
        for item in data["buffered"]:
            self._buffer.push(_unit(item))
        self._next_offset = {(offset.topic, offset.partition): offset.next_offset for offset in offsets}


def _steps(where: Position, decoded: Decoded) -> Iterator[Unit]:
    batch: StepBatch = decoded.record
    for index, step in zip(_indexes(decoded), batch.steps, strict=True):
        yield Unit(step.at_us, where.at(index), step, engine=batch.engine, epoch=batch.epoch)


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


def _unit(item: dict[str, Any]) -> Unit:
    position = Position(*item["position"])
    kind = Step if item["engine"] else TOPICS[position.topic].type
    record = msgspec.convert(item["record"], kind)
    return Unit(record.at_us, position, record, engine=item["engine"], epoch=item["epoch"])
