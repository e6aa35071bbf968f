"""Forecasts as they are made, for a terminal, a pipe or a program. Reads the log and changes nothing in it.

Law: a forecast is shown once, within a second of its being written, in the order in which they were written.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live

from pipelines.board import US_PER_S, Board, horizons_of, latency_of
from pipelines.log import Log, LogRecord, TopicPartition
from pipelines.outputs import MADE_HEADER
from pipelines.screen import band, render, score_line
from schemas.alerts import Alert
from schemas.forecasts import Forecast
from schemas.scores import Score
from schemas.topics import ALERTS, DLQ, ENGINES, FORECASTS, REQUESTS, SCORES, SLOS, STEPS

FRAMES_PER_S = 4
FROM_THE_BEGINNING = (ENGINES.name, SLOS.name)
LOOK_BACK_RECORDS = {REQUESTS.name: 2_000, STEPS.name: 50, FORECASTS.name: 60, SCORES.name: 100, ALERTS.name: 20}
"""How far back to read, per partition, so that the screen is not empty at first."""
WATCHED = (*FROM_THE_BEGINNING, *LOOK_BACK_RECORDS, DLQ.name)

OnRecord = Callable[[LogRecord], None]


async def follow(log: Log, partitions: int, on_record: OnRecord, *, topics: tuple[str, ...], look_back: bool) -> None:
    """Hand over records as they come, until cancelled; `look_back` begins with some that were there before."""
    places = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
    begins, ends = await log.begin_offsets(places), await log.end_offsets(places)
    starts = {
        place: begins[place]
        if place.topic in FROM_THE_BEGINNING
        else max(begins[place], ends[place] - (LOOK_BACK_RECORDS.get(place.topic, 0) if look_back else 0))
        for place in places
    }
    async with log.reader(starts) as reader:
        while True:
            for record in await reader.get(timeout_s=0.5):
                on_record(record)


async def watch_json(log: Log, partitions: int) -> None:
    """One JSON object per forecast and line: when it was made and shown (processing time), and the forecast."""

    def show(record: LogRecord) -> None:
        sys.stdout.write(json_line(record, time.time_ns() // 1000))
        sys.stdout.flush()

    await follow(log, partitions, show, topics=(FORECASTS.name,), look_back=False)


def json_line(record: LogRecord, shown_us: int) -> str:
    """A record of the forecasts topic as a line of JSON."""
    made_us = int(dict(record.headers).get(MADE_HEADER, b"0"))
    return (
        msgspec.json.encode(
            {"made_us": made_us, "shown_us": shown_us, "forecast": msgspec.Raw(record.value or b"null")}
        ).decode()
        + "\n"
    )


async def watch_screen(log: Log, partitions: int, console: Console, deployment: str, status: str) -> None:
    """A live picture on a terminal, plain lines elsewhere."""
    board = Board(deployment)
    if not console.is_terminal:
        await follow(log, partitions, lambda r: tell(console, board, board.take(r)), topics=WATCHED, look_back=True)
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        drawing = asyncio.create_task(draw(live, board, lambda: status))
        try:
            await follow(log, partitions, lambda record: _fold(board, record), topics=WATCHED, look_back=True)
        finally:
            drawing.cancel()


def _fold(board: Board, record: LogRecord) -> None:
    board.take(record)


async def draw(live: Live, board: Board, status: Callable[[], str]) -> None:
    """Draw the board again and again, until cancelled."""
    while True:
        live.update(render(board, live.console.width, status(), live.console.height), refresh=True)
        await asyncio.sleep(1.0 / FRAMES_PER_S)


def tell(console: Console, board: Board, found: Any) -> None:
    """A line for what is worth one: a fine forecast, an alert, a score of the shortest horizon."""
    line = plain_line(board, found)
    if line:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def plain_line(board: Board, found: Any) -> str:
    """The line of one record, empty for most."""
    if isinstance(found, Forecast) and found.phase == "fine":
        at_s = (found.as_of_us - board.first_us) / US_PER_S
        return f"+{at_s:.0f} s forecast: {forecast_words(found)}"
    if isinstance(found, Alert):
        at_s = (found.at_us - board.first_us) / US_PER_S
        return f"+{at_s:.0f} s ALERT {found.kind} {found.state}: {found.cause} {found.evidence}".rstrip()
    if isinstance(found, Score) and found.phase == "fine" and board.forecast is not None:
        shortest = horizons_of(board.forecast)
        if shortest and found.horizon_s == shortest[0].horizon_s:
            return f"scored {score_line(found, board.first_us)}"
    return ""


def forecast_words(forecast: Forecast) -> str:
    """A forecast in one line."""
    parts = []
    for horizon in horizons_of(forecast):
        estimate = latency_of(horizon, "ttft_s", 0.95)
        if estimate is None:
            continue
        risk = max((r.breach_probability for r in horizon.slo_risks), default=None)
        words = f"{horizon.horizon_s:.0f} s {band(estimate)}"
        parts.append(words + ("" if risk is None else f" breach {risk:.0%}"))
    told = "TTFT P95 in " + ", in ".join(parts) if parts else "too little traffic to tell"
    return f"{told} ({forecast.authority})"
