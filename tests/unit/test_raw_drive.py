"""The ingest stage on a log: records keyed by deployment, bad bytes in the DLQ, offsets once all is stored."""

import asyncio
from contextlib import suppress

from test_ingest_raw import spans

from pipelines.ingest.raw_stage import RawStage
from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import LogRecord, TopicPartition
from pipelines.outbox import Outbox
from pipelines.partitions import partition_of
from pipelines.provision import create
from pipelines.raw_drive import RAW_NAMES, ingest
from schemas.codec import decode
from schemas.topics import DLQ, OTLP_SPANS, REQUESTS

PARTITIONS = 3
PLACES = [TopicPartition(name, number) for name in RAW_NAMES for number in range(PARTITIONS)]


async def records(log: LocalLog, topic: str) -> list[LogRecord]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with log.reader(dict.fromkeys(places, 0)) as reader:
        return await reader.get(timeout_s=0.01)


async def until(log: LocalLog, committed: int) -> None:
    async with asyncio.timeout(10.0):
        while sum(offset or 0 for offset in (await log.committed("g-ingest", PLACES)).values()) < committed:
            await asyncio.sleep(0.01)


async def stage_on(log: LocalLog, committed: int) -> None:
    """Run the stage until so many offsets are committed."""
    async with log.producer() as producer:
        task = asyncio.create_task(ingest(log, Outbox(producer, PARTITIONS), RawStage(), "g"))
        await until(log, committed)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_spans_become_records_of_their_deployment_and_bad_bytes_dead_letters() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                await producer.send(OTLP_SPANS.name, key=b"any", value=spans("llm_request", "llm_request"))
                await producer.send(OTLP_SPANS.name, key=b"k", value=b"{broken", headers=[("h", b"1")])
                await producer.send(OTLP_SPANS.name, key=b"gone", value=None)
                await producer.flush()
            await stage_on(log, committed=3)
            found = await records(log, REQUESTS.name)
            assert [decode(REQUESTS.name, record.value or b"").record.deployment for record in found] == ["default"] * 2
            assert {record.partition for record in found} == {partition_of("default", PARTITIONS)}
            (letter,) = await records(log, DLQ.name)
            assert (letter.key, letter.value) == (b"k", b"{broken")
            assert dict(letter.headers)["h"] == b"1"
            assert dict(letter.headers)["twincast_position"].startswith(b"otlp_spans[")

    asyncio.run(act())


def test_what_was_committed_is_not_read_again_and_what_was_not_is() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            async with log.producer() as producer:
                await producer.send(OTLP_SPANS.name, value=spans("llm_request"), partition=0)
                await producer.flush()
                await stage_on(log, committed=1)
                await producer.send(OTLP_SPANS.name, value=spans("llm_request"), partition=0)
                await producer.flush()
            await stage_on(log, committed=2)
            assert len(await records(log, REQUESTS.name)) == 2

    asyncio.run(act())
