"""Forecasts that were obeyed are judged at the count of engines that then served, and at no other."""

from typing import Any

import msgspec
import pytest
from made_forecasts import forecast, responses
from test_ledger import LATE, TARGET, at, done, finished

from schemas.changes import Change
from schemas.forecasts import Forecast
from twin.ledger import Ledger
from twin.ledger_obeyed import Obeyed

RATE_PER_S = 2.0
"""That of the made service, which keeps its target but in the late stretch (300 to 400 s)."""


def said(as_of_s: float, *breaches: float, first: int = 2, goodput: float = RATE_PER_S, **more: Any) -> Forecast:
    """A fine forecast of a surface from `first` engines on, over arrivals 120 to 180 s ahead."""
    points = tuple(
        msgspec.structs.replace(point, from_s=120.0, to_s=180.0, goodput_requests_per_s=replace_value(point, goodput))
        for point in responses(*breaches, first=first)
    )
    return forecast(as_of_us=at(as_of_s), responses=points, **more)


def replace_value(point: Any, value: float) -> Any:
    return msgspec.structs.replace(point.goodput_requests_per_s, value=value)


def scaled(at_s: float, before: int, after: int, ready_s: float | None = None) -> Change:
    ready_us = None if ready_s is None else at(ready_s)
    return msgspec.structs.replace(done(at_s, before, after, status="accepted"), ready_at_us=ready_us)


def judged(*records: Any) -> Obeyed:
    ledger = Ledger("d", (TARGET,))
    for record in (*finished((LATE,)), *records):
        ledger.on_record(record)
    return ledger.account().judged


def test_without_a_change_in_its_window_a_forecast_is_not_among_them() -> None:
    assert judged(said(100.0, 0.9, 0.1)) == Obeyed(0, 0)
    assert judged(said(100.0, 0.9, 0.1), scaled(90.0, 2, 3, 210.0), scaled(281.0, 3, 4, 400.0)) == Obeyed(0, 0)


def test_it_is_judged_at_the_count_that_served() -> None:
    """Two engines would have missed (0.9), three were ordered and keep the target, as was said of them (0.1)."""
    found = judged(said(100.0, 0.9, 0.1), scaled(105.0, 2, 3, 225.0))
    assert (found.forecasts, found.intervened) == (1, 1)
    assert found.brier == pytest.approx(0.01)
    assert found.brier_unchanged == pytest.approx(0.81)
    assert found.goodput_error_ratio == pytest.approx(0.0, abs=0.02)


def test_a_miss_in_spite_of_the_change_counts_against_what_was_said() -> None:
    found = judged(said(200.0, 0.9, 0.1), scaled(205.0, 2, 3, 325.0))  # arrivals 320 to 380 s, in the late stretch
    assert found.brier == pytest.approx(0.81)
    assert found.brier_unchanged == pytest.approx(0.01)


def test_fewer_engines_serve_from_the_change_on() -> None:
    found = judged(said(100.0, 0.2, 0.1, first=1), scaled(105.0, 2, 1))
    assert (found.forecasts, found.brier) == (1, pytest.approx(0.04))


@pytest.mark.parametrize(
    "change",
    [
        scaled(105.0, 2, 3, 270.0),  # ready inside the window
        scaled(105.0, 2, 3),  # nobody told when
        scaled(105.0, 2, 9, 200.0),  # beyond the surface
        msgspec.structs.replace(done(105.0, 2, 3), kind="deploy"),
    ],
)
def test_what_cannot_be_compared_stays_intervened(change: Change) -> None:
    assert judged(said(100.0, 0.9, 0.1), change) == Obeyed(0, 1)


def test_refused_changes_coarse_forecasts_and_open_windows_count_for_nothing() -> None:
    assert judged(said(100.0, 0.9, 0.1), done(105.0, 2, 3, status="rejected")) == Obeyed(0, 0)
    assert judged(said(100.0, 0.9, 0.1, phase="coarse"), scaled(105.0, 2, 3, 225.0)) == Obeyed(0, 0)
    assert judged(said(800.0, 0.9, 0.1), scaled(805.0, 2, 3, 925.0)) == Obeyed(0, 1)
    old = forecast(as_of_us=at(100.0), responses=responses(0.9, 0.1, first=2))  # does not tell its window
    assert judged(old, scaled(105.0, 2, 3, 225.0)) == Obeyed(0, 0)
