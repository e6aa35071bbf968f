"""Widths of the outlook: they follow what past outlooks missed, and hold what they say."""

import json
import math

import numpy as np
import pytest

from schemas.forecasts import Outlook
from twin.outlook import STEP_S, STEPS, outlook
from twin.outlook_widths import MAX_FACTOR, PRIOR_WIDENING, FrozenWidths, OutlookWidths
from twin.traffic.forecast import RateForecast

START_US = 1_800_000_000_000_000
STEP_US = round(STEP_S * 1e6)


def lived(sigma: float, days: float, *, seed: int = 3, biased: float = 0.0) -> tuple[OutlookWidths, list[bool]]:
    """A service whose rate wanders by `sigma` (log) from step to step around 5/s, which a forecast thinks steady."""
    rng = np.random.default_rng(seed)
    widths, arrivals, inside = OutlookWidths(STEPS, STEP_S), 0, []
    told: list[Outlook] = []
    for number in range(round(days * 288)):
        as_of_us = START_US + number * STEP_US
        widths.on_tick(as_of_us, arrivals)
        told.append(outlook(RateForecast.steady(5.0), as_of_us, widths=widths.freeze()))
        widths.on_outlook(as_of_us, told[-1])
        count = int(rng.poisson(5.0 * STEP_S * math.exp(biased + sigma * rng.standard_normal())))
        arrivals += count
        for ahead, found in enumerate(reversed(told[-STEPS:])):
            inside.append(found.low_per_s[ahead] <= count / STEP_S <= found.high_per_s[ahead])
    return widths, inside


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.8])
def test_intervals_hold_what_they_say_however_much_the_rate_wanders(sigma: float) -> None:
    _, inside = lived(sigma, 2.0)
    assert 0.86 <= np.mean(inside[len(inside) // 3 :]) <= 0.94


def test_a_rate_always_above_widens_the_high_side() -> None:
    frozen = lived(0.05, 1.0, biased=0.5)[0].freeze()
    low, high = frozen.interval(0, 5.0, 0.02)
    assert high > 5.0 * math.exp(0.5)
    assert high / 5.0 > 5.0 / low
    assert all(factor <= MAX_FACTOR + 1e-9 for factor in frozen.high_factors)


def test_before_any_error_the_forecast_s_own_doubt_is_widened() -> None:
    low, high = FrozenWidths().interval(0, 2.0, 0.1)
    assert math.log(high / 2.0) == pytest.approx(PRIOR_WIDENING * 0.1 * 1.6449, rel=1e-3)
    assert low == pytest.approx(4.0 / high)


def test_a_jump_of_time_teaches_nothing() -> None:
    widths, _ = lived(0.1, 0.5)
    before = widths.freeze()
    last_us = START_US + 143 * STEP_US
    widths.on_tick(last_us + 20 * STEP_US, 10**9)
    assert widths.freeze() == before
    widths.on_tick(last_us + 21 * STEP_US, 10**9)
    assert widths.freeze() == before


def test_restored_widths_go_on_as_the_first_would_have() -> None:
    first, _ = lived(0.3, 0.4)
    again = OutlookWidths.restore(json.loads(json.dumps(first.snapshot())), STEPS, STEP_S)
    assert again.freeze() == first.freeze()
    later_us = START_US + 115 * STEP_US
    for widths in (first, again):
        widths.on_tick(later_us, 10**7)
        widths.on_outlook(later_us, outlook(RateForecast.steady(5.0), later_us, widths=widths.freeze()))
        widths.on_tick(later_us + STEP_US, 10**7 + 1500)
    assert again.freeze() == first.freeze()
    assert again.snapshot() == first.snapshot()
    assert len(first.snapshot()["pending"]) <= STEPS + 1


def test_widths_of_an_outlook_of_another_length_begin_anew() -> None:
    first, _ = lived(0.3, 0.1)
    assert OutlookWidths.restore(first.snapshot(), 12, STEP_S).freeze().weights == (0.0,) * 12
