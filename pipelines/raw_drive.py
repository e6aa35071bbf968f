"""The ingest stage on a log: raw topics of any key in, records of deployments out. Maps no span itself.

Its offsets are committed to a group of its own, for every record of which no span is held, once what came of it is
stored. Laws: a kill loses no span; it repeats records since the oldest span held, which their identities make harmless.
Spans of one trace are joined where one worker reads them: with several workers their producer must put them into one
partition, as the Collector's `partition_traces_by_id` does.
"""

import logging
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
MAX_OPEN_RECORDS = 100_000
"""Records read above which the oldest are committed although spans of theirs are held: no trace holds up the rest."""


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
    progress = Progress()

    async def assigned(owned: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {}

    async def revoked(lost: frozenset[TopicPartition]) -> None:
        progress.forget(lost)

    async with log_.member(f"{group}-ingest", RAW_NAMES, on_assigned=assigned, on_revoked=revoked) as member:
        while True:
            for record in await member.get(max_records=READ_RECORDS, timeout_s=1.0):
                for message in messages_of(record, stage.handle(record.topic, record.value, progress.number)):
                    await outbox.write(message)
                progress.read(record)
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
