"""Laws of calibrated intervals, whatever comes in."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.scores import Score, ScoreCell
from twin.calibration import Calibration, Predictive
from twin.interval_defaults import side_multiples
from twin.metrics import METRICS

START_US = 1_800_000_000_000_000
latencies = st.one_of(st.floats(0.0, 1e4), st.just(math.inf), st.just(math.nan))
windows = st.lists(st.one_of(st.none(), st.floats(1e-3, 1e3)), max_size=30)


def learned(seen: list[float | None]) -> Calibration:
    calibration = Calibration()
    for k, observed_s in enumerate(seen):
        covered = observed_s is not None and 0.5 <= observed_s <= 2.0
        cell = ScoreCell(
            metric="ttft_s",
            quantile=0.95,
            forecast_s=1.0,
            low_s=0.5,
            high_s=2.0,
            observed_s=observed_s,
            covered=covered,
            loss_s=0.0,
            winkler_s=0.0,
            hindsight_loss_s=0.0,
        )
        calibration.on_score(
            Score(
                deployment="d",
                as_of_us=START_US + k * 10_000_000,
                horizon_s=60.0,
                closed_us=START_US,
                phase="fine",
                members=1,
                unfinished=0,
                cells=(cell,),
            )
        )
    return calibration


@settings(max_examples=80, deadline=None)
@given(windows, st.lists(latencies, min_size=1, max_size=30), st.floats(1.0, 3.0))
def test_an_interval_is_finite_and_holds_its_value(
    seen: list[float | None], replications: list[float], widen: float
) -> None:
    found = learned(seen).freeze().predictive("ttft_s", 0.95, 60.0, np.array(replications), widen)
    if found is None:
        assert all(math.isnan(value) for value in replications)
        return
    assert 0.0 < found.low_s <= found.value_s <= found.high_s < 1e9


@settings(max_examples=80, deadline=None)
@given(windows, st.integers(1, 10))
def test_more_misses_never_narrow(seen: list[float | None], misses: int) -> None:
    replications = np.array([0.9, 1.0, 1.1])

    def high_side(values: list[float | None]) -> float:
        found = learned(values).freeze().predictive("ttft_s", 0.95, 60.0, replications)
        assert found is not None
        return math.log(found.high_s / found.value_s)

    assert high_side([*seen, *[500.0] * (misses + 1)]) >= high_side([*seen, *[500.0] * misses]) - 1e-9


@settings(max_examples=80, deadline=None)
@given(st.floats(0.01, 10.0), st.floats(1.01, 20.0), st.floats(1.01, 20.0), st.floats(1e-3, 1e3), st.floats(1.0, 50.0))
def test_a_lower_limit_is_not_less_likely_missed(
    value_s: float, below: float, above: float, limit_s: float, factor: float
) -> None:
    found = Predictive(value_s, value_s / below, value_s * above)
    assert 0.0 <= found.exceeds(limit_s * factor) <= found.exceeds(limit_s) <= 1.0


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(METRICS), st.floats(1.0, 7200.0), st.floats(1.0, 4.0))
def test_default_widths_never_shrink_with_the_horizon(metric: str, horizon_s: float, factor: float) -> None:
    near, far = side_multiples(metric, horizon_s), side_multiples(metric, horizon_s * factor)
    assert 0.0 < near[0] <= far[0]
    assert 0.0 < near[1] <= far[1]
