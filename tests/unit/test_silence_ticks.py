"""Time as a record: for services that live now and fell silent, never for a recording, never into the future."""

import asyncio
import time
from typing import Any

import pytest
from test_worker_memory import PARTITIONS, SETTINGS, Bench, on_a_bench

from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.silence import LIVE_LAG_US, MARGIN_US, Silence
from schemas.codec import decode, encode
from schemas.requests import RequestArrived
from schemas.topics import REQUESTS, TICKS

S = 1_000_000
NOW = 1_796_052_000 * S


def test_a_silent_service_is_told_the_time_a_margin_ago() -> None:
    silence = Silence()
    silence.observe("d", NOW - 2 * S, NOW - 3 * S, NOW)
    assert silence.due_us("d", 10 * S, NOW + 9 * S) is None
    assert silence.due_us("d", 10 * S, NOW + 10 * S) == NOW + 10 * S - MARGIN_US


def test_records_that_come_later_have_a_larger_margin() -> None:
    silence = Silence()
    silence.observe("d", NOW - 2 * S, NOW - 12 * S, NOW)
    assert silence.due_us("d", 10 * S, NOW + 10 * S, 2 * MARGIN_US) == NOW + 10 * S - 2 * MARGIN_US
    assert silence.due_us("d", 10 * S, NOW + 10 * S, 1) == NOW + 10 * S - MARGIN_US


def test_one_silent_source_holds_the_watermark_and_is_told_the_time() -> None:
    """Steps go on and requests do not: what is heard is new, what is expected is not."""
    silence = Silence()
    for second in range(11):
        silence.observe("d", NOW + second * S, NOW - 1 * S, NOW + second * S)
    assert silence.due_us("d", 10 * S, NOW + 10 * S) == NOW + 10 * S - MARGIN_US


def test_a_watermark_that_moves_ends_the_silence_and_repeated_looks_do_not() -> None:
    silence = Silence()
    silence.observe("d", NOW, NOW - S, NOW)
    silence.observe("d", NOW, NOW - S, NOW + 9 * S)
    assert silence.due_us("d", 10 * S, NOW + 10 * S) is not None
    silence.observe("d", NOW + 9 * S, NOW + 8 * S, NOW + 10 * S)
    assert silence.due_us("d", 10 * S, NOW + 11 * S) is None


def test_a_recording_of_the_past_is_never_told_the_time() -> None:
    silence = Silence()
    silence.observe("d", NOW - LIVE_LAG_US, NOW - LIVE_LAG_US - S, NOW)
    assert silence.due_us("d", 10 * S, NOW + 3600 * S) is None
    assert silence.due_us("unknown", 10 * S, NOW) is None


def test_no_tick_names_a_time_the_watermark_has_passed() -> None:
    silence = Silence()
    silence.observe("d", NOW, NOW - S, NOW)
    assert silence.due_us("d", 2 * S, NOW + 3 * S) is None


@pytest.mark.slow
def test_a_worker_tells_a_live_service_that_fell_silent_and_reads_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.worker.SILENCE_POLL_S", 0.1)

    def arrival(number: int, at_us: int) -> Outgoing:
        record = RequestArrived(deployment="d", request_id=f"r{number}", at_us=at_us, isl_tokens=10)
        return Outgoing(REQUESTS.name, "d", b"d", encode(record), (), at_us)

    async def scene(bench: Bench) -> None:
        async with bench.worker() as worker:
            now_us = time.time_ns() // 1000
            await bench.send([arrival(i, now_us - (10 - i) * S) for i in range(3)])
            async with asyncio.timeout(10.0):
                while not (ticks := await bench.records(TICKS.name)):
                    await asyncio.sleep(0.1)
            tick: Any = decode(TICKS.name, ticks[0].value or b"").record
            assert ticks[0].partition == partition_of("d", PARTITIONS)
            assert now_us - 8 * S < tick.at_us <= time.time_ns() // 1000 - MARGIN_US
            await asyncio.sleep(0.3)
            assert worker.report().balance["applied"] >= 3

    assert SETTINGS.period_s == 5.0
    on_a_bench(scene)
