"""The ingest stage on a log: raw topics of any key in, records of deployments out. Maps no span itself.

Its offsets are committed to a group of its own, for every record of which no span is held, once what came of it is
stored. Partitions are read side by side and told in the order of their timestamps: after a pause one of them would be
minutes ahead of another, and all that the other holds would be late. Spans of one trace are joined where one worker
reads them: with several workers their producer must put them into one partition, as the Collector's
`partition_traces_by_id` does.

Law: a kill loses no span; it repeats records since the oldest span held, which their identities make harmless.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from pipelines.ingest.otlp import Span
from pipelines.ingest.raw_stage import Ingested, RawStage
from pipelines.log import GroupBusyError, Log, LogRecord, Member, TopicPartition
from pipelines.outbox import Outbox
from pipelines.outputs import Outgoing, dead_letter
from schemas.codec import SchemaError, encode
from schemas.topics import RAW_INPUTS

log = logging.getLogger("twincast.ingest")

RAW_NAMES = tuple(topic.name for topic in RAW_INPUTS)
READ_RECORDS = 200
READ_TIMEOUT_S = 1.0
PATIENCE_S = 2.0
"""How long to wait for records that an end offset promises before taking them for a gap in the log."""
MAX_HELD_BYTES = 64 << 20
"""Bytes waiting for records of other partitions above which order is given up."""
MAX_OPEN_RECORDS = 100_000
"""Records read above which the oldest are committed although spans of theirs are held: no trace holds up the rest."""


class Abreast:
    """Records of several partitions, by their timestamps. Reads from no log.

    It works in rounds, each up to end offsets asked for after its first record had come. Laws: records of a partition
    come out in order, each once; none comes out while a partition of which more is known has none here, unless patience
    or room is at an end.
    """

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[LogRecord]] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._held_bytes = 0

    def push(self, record: LogRecord) -> None:
        """A record was read."""
        self._queues.setdefault(TopicPartition(record.topic, record.partition), deque()).append(record)
        self._held_bytes += len(record.value or b"")

    @property
    def must_ask(self) -> bool:
        """Whether records are here of which none belongs to the round, so that ends must be asked for."""
        return any(self._queues.values()) and not self._ready()

    def learn_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """End offsets of all partitions, asked for after the last record was read: the next round."""
        self._ends = dict(ends)

    def pop(self, positions: Mapping[TopicPartition, int], *, patient: bool) -> LogRecord | None:
        """The next record of the round. `positions` are the offsets of the next records to be read."""
        ready = self._ready()
        if not ready:
            return None
        awaited = any(
            positions.get(place, end) < end for place, end in self._ends.items() if not self._queues.get(place)
        )
        if awaited and patient and self._held_bytes < MAX_HELD_BYTES:
            return None
        record = min(ready, key=lambda queue: queue[0].timestamp_ms).popleft()
        self._held_bytes -= len(record.value or b"")
        return record

    def forget(self, lost: Iterable[TopicPartition]) -> None:
        """Partitions are another's now."""
        for place in lost:
            self._held_bytes -= sum(len(record.value or b"") for record in self._queues.pop(place, ()))
            self._ends.pop(place, None)

    def _ready(self) -> list[deque[LogRecord]]:
        return [queue for place, queue in self._queues.items() if queue and queue[0].offset < self._ends.get(place, 0)]


class Progress:
    """Records read, by number in the order of reading, and the offsets that may be committed.

    Law: an offset is given once every record below it is settled, and never twice.
    """

    def __init__(self) -> None:
        self.number = 0
        """How many records were read; the number of the next one."""
        self._open: deque[tuple[int, TopicPartition, int]] = deque()
        self._settled: dict[TopicPartition, int] = {}

    def read(self, record: LogRecord) -> None:
        """A record was read and handed on."""
        self._open.append((self.number, TopicPartition(record.topic, record.partition), record.offset + 1))
        self.number += 1

    def settle(self, oldest: int | None) -> None:
        """All records with a number below `oldest` are done with, all of them where it is None."""
        least = self.number if oldest is None else max(oldest, self.number - MAX_OPEN_RECORDS)
        while self._open and self._open[0][0] < least:
            _, place, offset = self._open.popleft()
            self._settled[place] = offset

    def forget(self, lost: Iterable[TopicPartition]) -> None:
        """Partitions are another's now."""
        gone = frozenset(lost)
        self._open = deque(entry for entry in self._open if entry[1] not in gone)
        self._settled = {place: offset for place, offset in self._settled.items() if place not in gone}

    def take(self) -> dict[TopicPartition, int]:
        """Offsets to commit."""
        settled, self._settled = self._settled, {}
        return settled


async def ingest(log_: Log, outbox: Outbox, stage: RawStage, group: str) -> None:
    """Read until cancelled."""
    abreast, progress = Abreast(), Progress()

    async def assigned(owned: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {}

    async def revoked(lost: frozenset[TopicPartition]) -> None:
        abreast.forget(lost)
        progress.forget(lost)

    silent_since_s = time.monotonic()
    async with log_.member(f"{group}-ingest", RAW_NAMES, on_assigned=assigned, on_revoked=revoked) as member:
        while True:
            for record in await member.get(max_records=READ_RECORDS, timeout_s=READ_TIMEOUT_S):
                abreast.push(record)
                silent_since_s = time.monotonic()
            if abreast.must_ask:
                abreast.learn_ends(await log_.end_offsets(member.assignment))
            patient = time.monotonic() - silent_since_s < PATIENCE_S
            positions = {place: member.position(place) for place in member.assignment}
            while (next_ := abreast.pop(positions, patient=patient)) is not None:
                for message in messages_of(next_, stage.handle(next_.topic, next_.value, progress.number)):
                    await outbox.write(message)
                progress.read(next_)
                await asyncio.sleep(0)  # an export may hold hundreds of spans
            progress.settle(stage.oldest_mark)
            settled = progress.take()
            if settled:
                await outbox.flush()
                await _commit(member, settled)


async def _commit(member: Member, offsets: Mapping[TopicPartition, int]) -> None:
    """Store offsets; where a partition was just lost, its new owner reads the records again."""
    try:
        await member.commit(offsets)
    except GroupBusyError as error:
        log.info("%s", error)


def messages_of(record: LogRecord, found: Ingested) -> list[Outgoing]:
    """What a raw record became: records of deployments, then one dead letter if anything of it was refused, then one
    for each span refused that had come earlier."""
    messages = [
        Outgoing(e.topic, e.record.deployment, e.key.encode(), encode(e.record), (), e.at_us) for e in found.events
    ]
    if found.refused:
        messages.append(
            dead_letter(
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                key=record.key,
                value=record.value,
                headers=record.headers,
                reason=",".join(sorted({error.reason for _, error in found.refused})),
                detail="; ".join(str(error) for _, error in found.refused[:3]),
                indexes=tuple(sorted(index for index, _ in found.refused if index is not None)),
            )
        )
    return messages + [_letter_of(record, span, error) for span, error in found.refused_spans]


def _letter_of(record: LogRecord, span: Span, error: SchemaError) -> Outgoing:
    """A span refused after its own record had gone by: encoded again, at the position of the record that showed it."""
    return dead_letter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=None,
        value=msgspec.json.encode(span),
        headers=(),
        reason=error.reason,
        detail=f"a span held since an earlier record: {error}",
    )
