"""An output of our own that its topic does not take is counted and told, and the next one is written."""

import asyncio
import dataclasses
import logging

import pytest

from pipelines.local.embedded import LocalLog, memory_log
from pipelines.log import TopicPartition
from pipelines.outbox import Outbox
from pipelines.outputs import Outgoing
from pipelines.provision import create
from schemas.codec import MAX_STATE_BYTES
from schemas.topics import FORECASTS, STATE

OVERSIZED_BYTES = 2_000_088


def forecast(size_bytes: int) -> Outgoing:
    return Outgoing(FORECASTS.name, "d", b"d", b"x" * size_bytes, (), 1_796_052_000_000_000)


async def sizes(log: LocalLog) -> list[int]:
    async with log.reader({TopicPartition(FORECASTS.name, 0): 0}) as reader:
        return [len(record.value or b"") for record in await reader.get(timeout_s=0.01)]


def test_an_oversized_forecast_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, 1)
            async with log.producer(max_record_bytes=MAX_STATE_BYTES) as producer:  # as a worker's, for its snapshots
                outbox = Outbox(producer, 1)
                with caplog.at_level(logging.ERROR, "twincast.outbox"):
                    await outbox.write(forecast(OVERSIZED_BYTES))
                await outbox.write(forecast(10))
                await outbox.write(dataclasses.replace(forecast(OVERSIZED_BYTES), topic=STATE.name))
                await outbox.flush()
            assert dict(outbox.written) == {f"{FORECASTS.name} refused": 1, FORECASTS.name: 1, STATE.name: 1}
            assert await sizes(log) == [10]
            assert "trim or split it" in caplog.text

    asyncio.run(act())
