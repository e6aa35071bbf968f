"""The ingest stage and the scraper: what comes in raw ends as records, and nothing raw brings them down."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pipelines.errors import ConfigError
from pipelines.ingest.endpoint import Endpoint
from pipelines.ingest.raw_stage import RawStage
from pipelines.ingest.scraper import Scraper
from schemas.requests import RequestFinished
from schemas.steps import EngineStats
from schemas.topics import OTLP_METRICS, OTLP_SPANS, REQUESTS, STEPS

PAGE = '# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 3\nbroken line here\n'


def spans(*names: str) -> bytes:
    found = [
        {
            "traceId": f"{place:032x}", "spanId": f"{place:016x}", "name": name,
            "startTimeUnixNano": "1796052001000000000", "endTimeUnixNano": "1796052002000000000",
            "attributes": [
                {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "9"}},
                {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "3"}},
                {"key": "gen_ai.request.id", "value": {"stringValue": f"cmpl-r{place}-0"}},
            ],
        }
        for place, name in enumerate(names)
    ]  # fmt: skip
    return json.dumps(
        {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "vllm.tracing.otel"}, "spans": found}]}]}
    ).encode()


def test_spans_become_request_events_keyed_by_deployment() -> None:
    stage = RawStage()
    ingested = stage.handle(OTLP_SPANS.name, spans("llm_request", "Load model", "llm_request"))
    assert [(event.topic, event.key) for event in ingested.events] == [(REQUESTS.name, "default")] * 2
    assert all(isinstance(event.record, RequestFinished) for event in ingested.events)
    assert (ingested.units, stage.counts, stage.held_spans) == (3, {"used": 2, "ignored": 1}, 0)


def test_metrics_become_engine_counts() -> None:
    point = {"timeUnixNano": "1796052001000000000", "asInt": "3"}
    metric = {"name": "vllm:num_requests_running", "gauge": {"dataPoints": [point]}}
    message = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    (event,) = RawStage().handle(OTLP_METRICS.name, json.dumps(message).encode()).events
    assert event.topic == STEPS.name
    assert isinstance(event.record, EngineStats)
    assert event.record.running == 3


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[]", b"\x00\x00\x00\x00\x07{}", b"{" * 5000, b'{"a":1e400}'])
@pytest.mark.parametrize("topic", [OTLP_SPANS.name, OTLP_METRICS.name, "nonsense"])
def test_what_cannot_be_read_is_refused_whole_and_the_next_message_is_read(topic: str, value: bytes) -> None:
    stage = RawStage()
    refused = stage.handle(topic, value)
    assert [index for index, _ in refused.refused] == [None]
    assert not refused.events
    assert len(stage.handle(OTLP_SPANS.name, spans("llm_request")).events) == 1


def test_a_span_that_means_nothing_is_refused_by_its_index() -> None:
    broken = spans("llm_request", "llm_request").replace(b'"intValue": "9"', b'"intValue": "-9"', 1)
    ingested = RawStage().handle(OTLP_SPANS.name, broken)
    assert [(index, error.reason) for index, error in ingested.refused] == [(0, "out_of_range")]
    assert len(ingested.events) == 1


def test_a_null_value_is_nothing() -> None:
    assert RawStage().handle(OTLP_SPANS.name, None).events == ()


def scrape(handler: Any, rounds: int = 1) -> tuple[list[EngineStats], Scraper]:
    found: list[EngineStats] = []

    async def sink(record: EngineStats) -> None:
        found.append(record)

    async def run() -> Scraper:
        app = web.Application()
        app.router.add_get("/metrics", handler)
        async with TestServer(app) as server:
            scraper = Scraper([Endpoint(str(server.make_url("/metrics")), "tiny", "1")], sink, period_s=0.2)
            await scraper.run(rounds)
            return scraper

    return found, asyncio.run(run())


def test_a_page_is_handed_on_once_per_round() -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    found, scraper = scrape(page, rounds=2)
    assert [(record.deployment, record.engine, record.running) for record in found] == [("tiny", "1", 3)] * 2
    assert scraper.counts == {"pages": 2, "malformed_lines": 2}


def test_an_endpoint_that_fails_or_hangs_costs_one_period_at_most() -> None:
    async def broken(_: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    async def hangs(_: web.Request) -> web.Response:
        await asyncio.sleep(5.0)
        return web.Response()

    for handler in (broken, hangs):
        found, scraper = scrape(handler)
        assert found == []
        assert scraper.counts == {"failures": 1}


def test_endpoints_and_periods_are_checked_where_they_are_built() -> None:
    with pytest.raises(ConfigError, match="http"):
        Endpoint("ftp://x", "d")
    with pytest.raises(ConfigError, match="period"):
        Scraper([Endpoint("http://x", "d")], print, period_s=float("nan"))  # type: ignore[arg-type]
