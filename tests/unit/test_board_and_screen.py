"""What is shown is what the records say, in whatever width there is."""

import json
import math
import time
from io import StringIO

import msgspec
import pytest
from rich.console import Console
from synthetic import START_US, service

from pipelines.backtest import backtest
from pipelines.board import Board
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.log import LogRecord
from pipelines.outputs import Outgoing
from pipelines.playback import messages_of
from pipelines.screen import render, replay_line, seconds
from pipelines.settings import parse_slo
from pipelines.watch import json_line, plain_line
from schemas.alerts import Alert
from schemas.codec import decode, encode
from schemas.requests import RequestFinished
from schemas.scores import BiasTrendCell, Score
from schemas.topics import ALERTS, DLQ, FORECASTS, REQUESTS, SCORES
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

SLOS = (parse_slo("ttft_s:0.95:0.5"),)


def record(message: Outgoing, offset: int = 0) -> LogRecord:
    headers = (*message.headers, ("twincast_made_us", b"1796052000000000"))
    return LogRecord(message.topic, 0, offset, message.at_us // 1000, message.key, message.value, headers)


@pytest.fixture(scope="module")
def messages() -> list[Outgoing]:
    """Inputs and outputs of a run, in event order."""
    events = in_order(event_of(r) for r in service(100.0))
    recording = Recording("synthetic", "S3", min(event.at_us for event in events), events)
    settings = CoreSettings(
        period_s=5.0, horizons_s=(10.0, 20.0), scenarios=(BASELINE,), coarse_replications=1, fine_replications=2
    )
    outputs = backtest(recording, settings, slos=SLOS).outputs
    return sorted([*messages_of(recording, SLOS), *outputs], key=lambda message: message.at_us)


@pytest.fixture
def board(messages: list[Outgoing]) -> Board:
    board = Board()
    for message in messages:
        board.take(record(message))
    return board


def test_the_board_counts_what_the_log_holds(board: Board, messages: list[Outgoing]) -> None:
    assert board.deployment == "d"
    assert board.forecasts_made == sum(message.topic == FORECASTS.name for message in messages)
    told = [decode(message.topic, message.value).record for message in messages if message.topic == SCORES.name]
    fine = [score for score in told if isinstance(score, Score) and score.phase == "fine"]
    assert board.coverage.windows == len(fine)
    assert board.coverage.cells == sum(len(score.cells) for score in fine)
    assert board.coverage.covered == sum(cell.covered for score in fine for cell in score.cells)
    assert board.waiting is not None
    assert 0 < board.newest_us - board.first_us <= 110e6


def test_the_observed_quantile_is_that_of_the_requests_of_the_window(board: Board, messages: list[Outgoing]) -> None:
    end_us = START_US + 60_000_000
    ttfts = [
        (r.first_token_us - r.arrived_us) / 1e6
        for m in messages
        if m.topic == REQUESTS.name and isinstance(r := decode(m.topic, m.value).record, RequestFinished)
        if r.first_token_us is not None and end_us - 30_000_000 < r.arrived_us <= end_us
    ]
    found = board.observed_s(end_us, 30.0, 0.5)
    assert found is not None
    assert sorted(ttfts)[(len(ttfts) - 1) // 2] <= found <= sorted(ttfts)[len(ttfts) // 2]
    assert board.observed_s(START_US, 30.0, 0.5) is None


def test_records_of_others_bad_bytes_and_dead_letters_change_nothing_else(board: Board) -> None:
    before = board.forecasts_made
    other = Alert(
        deployment="other", at_us=START_US, alert_id="a", kind="slo_risk", state="firing", cause="", onset_us=START_US
    )
    assert board.take(LogRecord(ALERTS.name, 0, 0, 0, b"other", encode(other), ())) is None
    assert board.take(LogRecord(FORECASTS.name, 0, 0, 0, b"d", b"\xff", ())) is None
    board.take(LogRecord(DLQ.name, 0, 0, 0, b"d", b"\xff", ()))
    assert board.forecasts_made == before
    assert board.dead_letters == 1
    assert not any(alert.deployment == "other" for alert in board.alerts)


def alert_at(second: float, state: str) -> LogRecord:
    at_us = START_US + round(second * 1e6)
    alert = Alert(
        deployment="d",
        at_us=at_us,
        alert_id="a",
        kind="slo_risk",
        state=state,
        cause="c",
        onset_us=at_us,  # type: ignore[arg-type]
    )
    return LogRecord(ALERTS.name, 0, 0, 0, b"d", encode(alert), ())


def finished(second: float, ttft_s: float, number: int) -> LogRecord:
    arrived_us = START_US + round(second * 1e6)
    first_us = arrived_us + round(ttft_s * 1e6)
    request = RequestFinished(
        deployment="d", request_id=f"r{number}", at_us=first_us, arrived_us=arrived_us, first_token_us=first_us,
        isl_tokens=1, osl_tokens=1,
    )  # fmt: skip
    return LogRecord(REQUESTS.name, 0, number, 0, b"d", encode(request), ())


def test_lead_time_is_from_the_alert_to_the_first_window_that_missed_the_target() -> None:
    board = Board()
    board.targets = SLOS
    for number in range(200):
        second = number * 0.5
        board.take(finished(second, 0.1 if second < 60.0 else 2.0, number))
    assert board.breaches().lead_s is None
    board.take(alert_at(40.0, "suspected"))
    assert not board.breaches_predicted
    board.take(alert_at(50.0, "firing"))
    found = board.breaches()
    assert found.happened_us is not None
    assert 60.0 <= (found.happened_us - START_US) / 1e6 <= 64.0
    assert found.lead_s == pytest.approx((found.happened_us - START_US) / 1e6 - 50.0)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_the_picture_fits_its_width(board: Board, width: int) -> None:
    for shown in (board, Board()):
        out = StringIO()
        Console(file=out, width=width).print(render(shown, width, "playing"))
        lines = out.getvalue().splitlines()
        assert all(len(line) <= width for line in lines)
        assert "twincast" in lines[0]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (110, 24), (80, 30)])
def test_a_low_terminal_shows_everything_that_matters_without_scrolling(board: Board, width: int, height: int) -> None:
    out = StringIO()
    Console(file=out, width=width).print(render(board, width, "playing", height))
    assert len(out.getvalue().splitlines()) <= height
    assert all(text in out.getvalue() for text in ("breach", "20 s", "authority", "forecasts ", "0.5 s"))


def test_why_the_last_replayed_window_missed_is_told_in_words(board: Board) -> None:
    assert board.replay is not None
    out = StringIO()
    Console(file=out, width=200).print(render(board, 200, "playing"))
    assert f"last replayed: {replay_line(board.replay, board.first_us)}" in out.getvalue()
    told = msgspec.structs.replace(
        board.replay, as_of_us=board.first_us + 9_000_000, cause="traffic", error_log=0.2, traffic_log=0.15,
        costs_log=-0.05, rest_log=0.1, window_s=60.0,
        trend=(BiasTrendCell(quantile=0.95, rounds=9, bias_log=0.2, change_log=0.2, z=4.0, grows=True),),
    )  # fmt: skip
    assert replay_line(told, board.first_us) == (
        "+9 s over 60 s: latencies +22% off, cause traffic (traffic +16%, costs -5%, the rest +11%); bias grows at P95"
    )


def test_a_high_terminal_shows_the_whole_picture(board: Board) -> None:
    whole, high = StringIO(), StringIO()
    Console(file=whole, width=80).print(render(board, 80, "playing"))
    Console(file=high, width=80).print(render(board, 80, "playing", 42))
    assert whole.getvalue() == high.getvalue()


def test_the_picture_shows_what_happened_the_forecast_and_the_target(board: Board) -> None:
    out = StringIO()
    Console(file=out, width=120).print(render(board, 120, "playing"))
    chart = out.getvalue().split("● what happened")[0]
    assert all(mark in chart for mark in "●░━┄")
    assert "0.5 s" in chart
    assert f"forecasts {board.forecasts_made}" in out.getvalue()


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.0, ".000"), (0.0123, ".012"), (0.5, ".50"), (1.26, "1.3"), (12.4, "12"), (1e9, ">999")]
)
def test_seconds_are_short(value_s: float, text: str) -> None:
    assert seconds(value_s) == text
    assert len(seconds(value_s)) <= 4


def test_a_forecast_for_programs_is_one_line_of_json_with_its_times(messages: list[Outgoing]) -> None:
    message = next(m for m in messages if m.topic == FORECASTS.name)
    line = json_line(record(message), shown_us=1796052000400000)
    assert line.count("\n") == 1
    found = json.loads(line)
    assert found["shown_us"] - found["made_us"] == 400_000
    assert found["forecast"] == json.loads(message.value)


def test_plain_lines_tell_forecasts_and_alerts_once(board: Board, messages: list[Outgoing]) -> None:
    forecasts = [decode(m.topic, m.value).record for m in messages if m.topic == FORECASTS.name]
    lines = [plain_line(board, forecast) for forecast in forecasts]
    assert sum(bool(line) for line in lines) == sum(forecast.phase == "fine" for forecast in forecasts)
    assert any("TTFT P95 in 10 s" in line for line in lines)
    assert plain_line(board, None) == ""


def test_drawing_stays_quick_with_a_full_board() -> None:
    board = Board()
    board.targets = SLOS
    for number in range(20_000):
        board.take(finished(number * 0.02, 0.1 + 0.1 * math.sin(number), number))
    render(board, 120, "")
    began_s = time.monotonic()
    for _ in range(3):
        Console(file=StringIO(), width=120).print(render(board, 120, ""))
    assert (time.monotonic() - began_s) / 3 < 0.5
