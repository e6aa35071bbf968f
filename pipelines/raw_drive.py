"""The ingest stage on a log: raw topics of any key in, records of deployments out. Maps no span itself.

Its offsets are committed to a group of its own once what came of the records is stored and no span is held, so a kill
repeats records, which their identities make harmless, and loses none.
"""

import logging
from collections.abc import Mapping

from pipelines.ingest.raw_stage import Ingested, RawStage
from pipelines.log import GroupBusyError, Log, LogRecord, Member, TopicPartition
from pipelines.outbox import Outbox
from pipelines.outputs import Outgoing, dead_letter
from schemas.codec import encode
from schemas.topics import RAW_INPUTS

log = logging.getLogger("twincast.ingest")

RAW_NAMES = tuple(topic.name for topic in RAW_INPUTS)
READ_RECORDS = 200


async def ingest(log_: Log, outbox: Outbox, stage: RawStage, group: str) -> None:
    """Read until cancelled."""
    async with log_.member(f"{group}-ingest", RAW_NAMES, on_assigned=_assigned, on_revoked=_revoked) as member:
        uncommitted = False
        while True:
            records = await member.get(max_records=READ_RECORDS, timeout_s=1.0)
            for record in records:
                for message in messages_of(record, stage.handle(record.topic, record.value)):
                    await outbox.write(message)
            uncommitted |= bool(records)
            if uncommitted and stage.held_spans == 0:
                await outbox.flush()
                uncommitted = not await _commit(member)


async def _commit(member: Member) -> bool:
    """Whether the offsets are stored; they are not while partitions change hands, and need not be."""
    try:
        await member.commit({place: member.position(place) for place in member.assignment})
    except GroupBusyError as error:
        log.info("%s", error)
        return False
    return True


async def _assigned(owned: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
    return {}


async def _revoked(lost: frozenset[TopicPartition]) -> None:
    """Nothing is kept per partition."""


def messages_of(record: LogRecord, found: Ingested) -> list[Outgoing]:
    """What a raw record became: records of deployments, then one dead letter if anything of it was refused."""
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
    return messages
