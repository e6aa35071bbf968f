"""Burst shapes of traffic that was made with a known one."""

import math

import numpy as np
import pytest
from made_traffic import bursty, history_of, poisson, ramp, us

from twin.traffic.bursts import burst_shape, fitted_scenarios, hill_index


def shape(times_s: np.ndarray, until_s: float = 600.0):  # type: ignore[no-untyped-def]
    return burst_shape(history_of(times_s, until_s).plan(us(until_s)))


def test_poisson_traffic_has_gamma_shape_one() -> None:
    found = shape(poisson(6.0, 600.0))
    assert found.gap_shape == pytest.approx(1.0, rel=0.15)
    assert found.peak_to_mean_60s < 1.35
    assert found.rate_per_s == pytest.approx(6.0, rel=0.15)


def test_bursty_traffic_shows_its_coefficient_of_variation_and_silences() -> None:
    found, plain = shape(bursty(6.0, 600.0, cv=4.0)), shape(poisson(6.0, 600.0))
    assert found.gap_shape == pytest.approx(1 / 16, rel=0.5)
    assert found.peak_to_mean_1s > 2 * plain.peak_to_mean_1s
    assert found.longest_silence_s > 2 * plain.longest_silence_s


def test_a_ramp_is_no_burst() -> None:
    rising = shape(ramp(2.0, 20.0, 600.0))
    assert rising.gap_shape == pytest.approx(1.0, rel=0.2)
    assert rising.peak_to_mean_60s < 1.5


def test_the_shape_does_not_depend_on_the_rate() -> None:
    plan = history_of(bursty(6.0, 600.0), 600.0).plan(us(600.0))
    one, two = burst_shape(plan, 6.0), burst_shape(plan, 12.0)
    assert one.gap_shape == pytest.approx(two.gap_shape)
    assert one.longest_silence_s == pytest.approx(2 * two.longest_silence_s)


def test_hill_finds_the_index_of_a_pareto_tail() -> None:
    values = (1_000 * np.random.default_rng(1).pareto(1.5, 20_000) + 1_000).astype(np.int64)
    assert hill_index(values) == pytest.approx(1.5, rel=0.1)
    assert math.isnan(hill_index(values[:20]))
    assert hill_index(np.full(1_000, 7)) == math.inf


def test_stress_follows_from_history() -> None:
    burst, tail = fitted_scenarios(shape(bursty(6.0, 600.0, cv=6.0)))
    assert burst.name == "fitted_burst"
    assert 1.5 < burst.burst_factor < 10.0
    assert tail.long_prompt_factor == pytest.approx(1_970 / 1_005, rel=0.1)


def test_too_little_history_gives_no_stress() -> None:
    assert fitted_scenarios(shape(poisson(0.05, 600.0))) == ()
    short = fitted_scenarios(shape(poisson(8.0, 20.0), 20.0))
    assert [scenario.name for scenario in short] == ["fitted_long_tail"]
