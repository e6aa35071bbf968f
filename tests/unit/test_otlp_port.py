"""Exports over HTTP into the raw topics: acknowledged when stored, and as records of the service at the end."""

import asyncio
from typing import Any

import aiohttp
import pytest
from test_ingest_raw import spans
from test_raw_drive import records, stage_on

from pipelines.errors import ConfigError
from pipelines.local.embedded import memory_log
from pipelines.log import LogUnavailableError, TopicSpec
from pipelines.otlp_port import MAX_WAITING, Store, host_and_port, otlp_port
from pipelines.provision import create
from schemas.codec import decode
from schemas.requests import RequestFinished
from schemas.topics import OTLP_METRICS, OTLP_SPANS, REQUESTS

JSON = {"Content-Type": "application/json"}


async def post(port: int, body: bytes, path: str = "/v1/traces") -> int:
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"http://127.0.0.1:{port}{path}", data=body, headers=JSON)
        return answer.status


def test_an_export_ends_as_requests_of_its_deployment() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await create(log, 3)
            async with otlp_port(log, "127.0.0.1", 0, 3) as port:
                assert await post(port, spans("llm_request", "llm_request")) == 200
                assert await post(port, b"{" + b" " * 1_000_000) == 413
            await stage_on(log, committed=1)
            found = [decode(REQUESTS.name, record.value or b"").record for record in await records(log, REQUESTS.name)]
            assert [type(record) for record in found] == [RequestFinished] * 2

    asyncio.run(act())


def test_raw_topics_are_made_where_they_are_missing_and_left_alone_where_they_are() -> None:
    async def act() -> None:
        async with memory_log() as log:
            await log.create_topics([TopicSpec(name=OTLP_SPANS.name, partitions=5)])
            async with otlp_port(log, "127.0.0.1", 0, 3) as port:
                assert await post(port, spans("llm_request")) == 200
            counts = await log.partition_counts([OTLP_SPANS.name, OTLP_METRICS.name])
            assert counts == {OTLP_SPANS.name: 5, OTLP_METRICS.name: 3}

    asyncio.run(act())


class Sluggish:
    """A producer whose log does not answer."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send(self, topic: str, *, value: bytes, **more: Any) -> None:
        self.sent.append(value)

    async def flush(self, timeout_s: float) -> None:
        await asyncio.sleep(0.2)
        raise LogUnavailableError("away")


def test_a_log_that_is_away_keeps_few_exports_waiting_and_acknowledges_none() -> None:
    async def act() -> None:
        producer = Sluggish()
        store = Store(producer)  # type: ignore[arg-type]
        tasks = [asyncio.create_task(store.take("t", b"x")) for _ in range(2 * MAX_WAITING)]
        await asyncio.sleep(0.1)
        assert sum(task.done() for task in tasks) == MAX_WAITING
        assert len(producer.sent) == 1
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, LogUnavailableError)]
        assert len(refused) == MAX_WAITING
        assert store.exports == 0
        with pytest.raises(LogUnavailableError):
            await store.take("t", b"x")  # those that gave up do not count as waiting

    asyncio.run(act())


@pytest.mark.parametrize("text", ["", "http", "4318.5", "-1", "65536", "a:b:1", "0.0.0.0:"])
def test_an_address_that_cannot_be_is_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        host_and_port(text)
