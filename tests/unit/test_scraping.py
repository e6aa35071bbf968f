"""Metrics endpoints beside a worker: their counts in the steps topic, whatever the endpoints and the log do."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipelines.errors import ConfigError
from pipelines.ingest.endpoint import Endpoint, endpoint_of
from pipelines.local.embedded import memory_log
from pipelines.log import LogUnavailableError, TopicPartition
from pipelines.partitions import partition_of
from pipelines.provision import create
from pipelines.scraping import scraping
from pipelines.settings import read_settings
from schemas.codec import decode
from schemas.topics import STEPS

PARTITIONS = 4


def test_an_endpoint_names_a_deployment_an_engine_and_an_address() -> None:
    assert endpoint_of("chat=http://h:8000/metrics") == Endpoint("http://h:8000/metrics", "chat")
    assert endpoint_of("chat/1=https://h/m?a=b") == Endpoint("https://h/m?a=b", "chat", "1")


@pytest.mark.parametrize(
    "text", ["", "http://h:8000/metrics", "chat=h:8000", "=http://h", "a/b/c=http://h", "chat= http://h"]
)
def test_what_is_no_endpoint_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"DEPLOYMENT\[/ENGINE\]=URL"):
        endpoint_of(text)


def test_settings_take_endpoints_and_refuse_others() -> None:
    two = "chat=http://a:1/metrics chat/1=http://b:1/metrics"
    assert read_settings({"TWINCAST_SCRAPE": two}).worker.scrape == tuple(two.split())
    with pytest.raises(ConfigError, match="scrape"):
        read_settings({"TWINCAST_SCRAPE": "chat"})


async def _steps(log: Any) -> list[Any]:
    places = [TopicPartition(STEPS.name, number) for number in range(PARTITIONS)]
    ends = await log.end_offsets(places)
    found = []
    async with log.reader(dict.fromkeys(places, 0)) as reader:
        while any(reader.position(place) < ends[place] for place in places):
            found += await reader.get(timeout_s=0.1)
    return found


async def _page(_: web.Request) -> web.Response:
    return web.Response(text='vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 2\n')


def _server() -> TestServer:
    app = web.Application()
    app.router.add_get("/metrics", _page)
    return TestServer(app)


def test_counts_come_into_the_steps_topic_and_a_dead_endpoint_costs_nothing() -> None:
    async def act() -> None:
        async with memory_log() as log, _server() as server:
            await create(log, PARTITIONS)
            endpoints = [
                Endpoint(str(server.make_url("/metrics")), "chat"),
                Endpoint("http://127.0.0.1:9/metrics", "x"),
            ]
            async with scraping(log, endpoints, PARTITIONS, period_s=0.1) as scraper, asyncio.timeout(10.0):
                assert scraper is not None
                while len(found := await _steps(log)) < 2 or scraper.counts["failures"] < 2:
                    await asyncio.sleep(0.02)
            record: Any = decode(STEPS.name, found[0].value).record
            assert (record.deployment, record.engine, record.running, record.waiting) == ("chat", "0", 3, 2)
            assert {each.partition for each in found} == {partition_of("chat", PARTITIONS)}

    asyncio.run(act())


def test_a_log_that_is_away_costs_those_counts_and_no_more() -> None:
    class Away:
        """A producer whose log comes back after two messages."""

        def __init__(self) -> None:
            self.tries = 0

        async def __aenter__(self) -> "Away":
            return self

        async def __aexit__(self, *failure: object) -> None:
            pass

        async def send(self, *args: Any, **kwargs: Any) -> None:
            self.tries += 1
            if self.tries <= 2:
                raise LogUnavailableError("the broker is away")

    async def act() -> int:
        away = Away()

        class Log:
            def producer(self) -> Away:
                return away

        async with _server() as server, asyncio.timeout(10.0):
            endpoint = Endpoint(str(server.make_url("/metrics")), "chat")
            async with scraping(Log(), [endpoint], PARTITIONS, period_s=0.1):  # type: ignore[arg-type]
                while away.tries < 4:
                    await asyncio.sleep(0.02)
        return away.tries

    assert asyncio.run(act()) >= 4
