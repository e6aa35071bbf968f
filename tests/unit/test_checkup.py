"""What `twincast doctor` tells of a log: clocks, versions, lag and the age of forecasts, with what to do next."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from made_forecasts import START_US, US_PER_S, forecast

from pipelines.checkpoint import with_positions
from pipelines.checkup import LAST_RECORDS, Finding, judge, look_at
from pipelines.local.embedded import memory_log
from pipelines.log import Log
from pipelines.outputs import Outgoing
from pipelines.provision import create
from schemas.codec import encode
from schemas.requests import RequestArrived
from schemas.topics import FORECASTS, REQUESTS, STATE

PARTITIONS = 2


async def send(log: Log, topic: str, *values: bytes, headers: tuple[tuple[str, bytes], ...] = ()) -> None:
    async with log.producer() as producer:
        for value in values:
            await producer.send(topic, key=b"d", value=value, partition=0, headers=headers)


def found(fill: Callable[[Log], Awaitable[None]], now_us: int = START_US) -> dict[str, Finding]:
    async def main() -> list[Finding]:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            await fill(log)
            return judge(await look_at(log, PARTITIONS), now_us)

    return {finding.name: finding for finding in asyncio.run(main())}


def arrived(after_s: float = 0.0) -> bytes:
    at_us = START_US + round(after_s * US_PER_S)
    return encode(RequestArrived(deployment="d", request_id="r", at_us=at_us, isl_tokens=1))


def test_an_empty_log_is_well_and_says_what_to_do() -> None:
    async def nothing(log: Log) -> None: ...

    findings = found(nothing)
    assert all(finding.well for finding in findings.values())
    assert findings["clocks"].text == "no request or step came so far; send some, see docs/INPUTS.md"
    assert findings["forecasts"].text == "none so far; start `twincast up` and send requests"


@pytest.mark.parametrize(("ahead_s", "well"), [(-3.0, True), (4.9, True), (6.0, False)])
def test_a_clock_that_is_ahead_is_told(ahead_s: float, well: bool) -> None:
    finding = found(lambda log: send(log, REQUESTS.name, arrived(ahead_s)))["clocks"]
    assert finding.well == well
    if not well:
        assert finding.text == (
            "twincast.requests.v1[0]@0 is 6.0 s ahead of this machine's clock; synchronise the clocks (NTP)"
        )


def test_a_recording_is_no_stale_service() -> None:
    async def fill(log: Log) -> None:
        await send(log, REQUESTS.name, arrived())
        await send(log, FORECASTS.name, encode(forecast(0)))

    findings = found(fill, START_US + 3 * 86_400 * US_PER_S)
    assert all(finding.well for finding in findings.values())
    assert "newest event 3 days ago: a recording" in findings["clocks"].text


def test_stale_forecasts_of_a_live_service_are_told() -> None:
    fill = lambda log: send(log, FORECASTS.name, encode(forecast(0)))  # noqa: E731
    assert found(fill, START_US + 9 * US_PER_S)["forecasts"] == Finding(
        "forecasts", True, "1 deployments, the newest of d 9.0 s old"
    )
    finding = found(fill, START_US + 60 * US_PER_S)["forecasts"]
    assert not finding.well
    assert finding.text.startswith("stale for d (the newest 60.0 s old); see whether `twincast up` runs")


def test_a_record_that_cannot_be_read_is_named_with_its_place_and_reason() -> None:
    bad = arrived().replace(b'"isl_tokens":1', b'"isl_tokens":"one"')
    finding = found(lambda log: send(log, REQUESTS.name, arrived(), bad))["schemas"]
    assert not finding.well
    assert "1 of the last records cannot be read, such as twincast.requests.v1[0]@1 (bad_type at $.isl_tokens)" in (
        finding.text
    )


def test_lag_counts_records_behind_the_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(at: int) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
        message = Outgoing(STATE.name, "d", b"d", b"{}", (), START_US)
        [written] = with_positions([message], {REQUESTS.name: at}, {})
        return written.value, written.headers

    def fill(at: int) -> Callable[[Log], Awaitable[None]]:
        async def filled(log: Log) -> None:
            await send(log, REQUESTS.name, *[arrived()] * 30)
            value, headers = snapshot(at)
            await send(log, STATE.name, value, headers=headers)

        return filled

    assert found(fill(10))["lag"].text == "20 records since the last snapshots"
    assert found(fill(30))["lag"].text == "every record is in a snapshot"
    monkeypatch.setattr("pipelines.checkup.MANY_BEHIND", 5)
    finding = found(fill(10))["lag"]
    assert not finding.well
    assert "20 records stand behind the last snapshots, most in twincast.requests.v1[0]; start workers" in finding.text


def test_it_reads_a_bounded_number_of_records() -> None:
    async def main() -> Any:
        async with memory_log() as log:
            await create(log, PARTITIONS)
            await send(log, REQUESTS.name, *[arrived()] * 200)
            return await look_at(log, PARTITIONS)

    assert len(asyncio.run(main()).records) == LAST_RECORDS
