"""Laws of losses, interval scores and histograms."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.histogram import LogHistogram
from twin.scoring import _best_constant_s, pinball_loss_s, winkler_s

values = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)
levels = st.sampled_from((0.5, 0.9, 0.95, 0.99))


@settings(max_examples=100, deadline=None)
@given(values, levels, st.floats(0.0, 2e3))
def test_no_constant_beats_the_hindsight_best(seen: list[float], level: float, forecast_s: float) -> None:
    array = np.array(seen)
    best = pinball_loss_s(array, _best_constant_s(array, level), level)
    assert 0.0 <= best <= pinball_loss_s(array, forecast_s, level) + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 30.0), st.floats(0.0, 5.0))
def test_an_interval_score_is_at_least_the_width_and_grows_with_the_miss(
    low_s: float, width_s: float, observed_s: float, further_s: float
) -> None:
    high_s = low_s + width_s
    found = winkler_s(low_s, high_s, observed_s, 0.9)
    assert found >= width_s - 1e-9
    if observed_s >= high_s:
        assert winkler_s(low_s, high_s, observed_s + further_s, 0.9) >= found - 1e-9


@settings(max_examples=100, deadline=None)
@given(values, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_histogram_quantiles_rise_and_stay_near_the_exact_ones(seen: list[float], one: float, other: float) -> None:
    histogram = LogHistogram()
    for value in seen:
        histogram.add(value)
    low, high = sorted((one, other))
    assert histogram.quantile(low) <= histogram.quantile(high)
    exact = float(np.quantile(np.array(seen), low, method="inverted_cdf"))
    assert abs(histogram.quantile(low) / exact - 1.0) < 0.011
    assert LogHistogram.restore(histogram.snapshot()).quantile(low) == histogram.quantile(low)
