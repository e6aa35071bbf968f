"""Laws of the demand reserve: what it says covers what comes, knows no future, and is not more than was ever missed."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from twin.advise.reserve import MAX_ROWS, DemandReserve

START_US = 1_800_000_000_000_000
WINDOW_S, START_S, TICK_S = 60.0, 120.0, 10.0


def told(
    rate_per_s: Callable[[float], float],
    span_s: float,
    level: float = 0.9,
    forecast: Callable[[float], float] | None = None,
    noise: float = 0.0,
) -> tuple[list[float | None], list[float]]:
    """What is said at each tick, and the rate that then came in the window; the forecast is the rate of now."""
    grid = np.arange(0.0, span_s + START_S + WINDOW_S + 1.0)
    rates = np.array([rate_per_s(t) for t in grid])
    rates = rates * np.exp(noise * np.random.default_rng(3).standard_normal(grid.size))
    total = np.concatenate(([0.0], np.cumsum(rates)))
    reserve = DemandReserve(level, WINDOW_S)
    said, came = [], []
    for t in np.arange(TICK_S, span_s, TICK_S).tolist():
        expected = rate_per_s(t) if forecast is None else forecast(t)
        said.append(reserve.on_tick(START_US + round(t * 1e6), round(total[int(t)]), expected, START_S))
        begin = int(t + START_S)
        came.append(float(total[begin + int(WINDOW_S)] - total[begin]) / WINDOW_S)
    return said, came


def pairs(said: Sequence[float | None], came: Sequence[float], from_tick: int = 60) -> list[tuple[float, float]]:
    return [(s, c) for s, c in zip(said[from_tick:], came[from_tick:], strict=True) if s is not None]


def test_nothing_is_said_before_a_window_has_ended() -> None:
    said, _ = told(lambda t: 5.0, 600.0)
    first = next(number for number, each in enumerate(said) if each is not None)
    assert (first + 1) * TICK_S >= START_S + WINDOW_S


def test_what_never_missed_has_no_reserve() -> None:
    said, came = told(lambda t: 5.0, 1_200.0)
    assert all(s == pytest.approx(c, rel=0.02) for s, c in pairs(said, came))


def test_a_forecast_that_always_falls_short_is_made_up_for() -> None:
    """Traffic grows by 1.5 per second and minute and the forecast says that it stays."""
    said, came = told(lambda t: 5.0 + t / 40.0, 1_200.0)
    assert all(s == pytest.approx(c, rel=0.05) for s, c in pairs(said, came, from_tick=40))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_demand_stays_below_it_as_often_as_asked(level: float) -> None:
    said, came = told(lambda t: 10.0 + 6.0 * np.sin(t / 170.0) * np.sin(t / 61.0), 12_000.0, level, noise=0.5)
    found = pairs(said, came)
    share = np.mean([c <= s for s, c in found])
    assert abs(share - level) < 0.08


def test_a_higher_level_says_more() -> None:
    low, high = (told(lambda t: 10.0 + 8.0 * np.sin(t / 97.0), 4_000.0, level)[0] for level in (0.6, 0.95))
    assert np.mean([s for s in high if s is not None]) > np.mean([s for s in low if s is not None])


def test_a_forecast_gone_wild_is_outvoted() -> None:
    """It says a hundred times the rate every minute or so; what is said stays near what came."""
    said, came = told(lambda t: 5.0, 3_000.0, forecast=lambda t: 500.0 if t % 70.0 < 11.0 else 5.0)
    assert max(s for s, _ in pairs(said, came)) < 10.0


def test_bursts_that_came_again_and_again_are_expected_again() -> None:
    """A minute of thirty per second in every six: no forecast can tell when, so the reserve always holds for it."""
    said, came = told(lambda t: 30.0 if t % 360.0 < 60.0 else 0.5, 3_000.0, level=0.95)
    quiet = [s for s, _ in pairs(said, came, from_tick=150)]
    assert min(quiet) > 20.0


def test_what_comes_later_changes_nothing_said_before() -> None:
    calm, _ = told(lambda t: 5.0, 900.0)
    burst, _ = told(lambda t: 5.0 if t <= 600.0 else 50.0, 900.0)
    assert calm[:59] == burst[:59]
    assert calm[70:] != burst[70:]


def test_a_snapshot_goes_on_as_the_whole_would_and_memory_is_bounded() -> None:
    whole = DemandReserve(0.9, WINDOW_S)
    rng = np.random.default_rng(1)
    arrivals = 0
    for tick in range(2 * MAX_ROWS):
        arrivals += int(rng.poisson(50))
        if tick == MAX_ROWS:
            cut = DemandReserve.restore(msgspec.json.decode(msgspec.json.encode(whole.snapshot())), 0.9, WINDOW_S)
        at_us, expected = START_US + tick * 10_000_000, float(rng.uniform(4.0, 6.0))
        one = whole.on_tick(at_us, arrivals, expected, START_S)
        if tick >= MAX_ROWS:
            assert cut.on_tick(at_us, arrivals, expected, START_S) == one
    assert len(whole.snapshot()["rows"]) == MAX_ROWS
    with pytest.raises(ValueError, match="version"):
        DemandReserve.restore({"version": 0}, 0.9, WINDOW_S)


@pytest.mark.parametrize(("level", "window_s"), [(0.0, 60.0), (1.0, 60.0), (0.9, 0.0), (0.9, float("nan"))])
def test_an_impossible_reserve_is_refused(level: float, window_s: float) -> None:
    with pytest.raises(ValueError, match="reserve needs"):
        DemandReserve(level, window_s)
