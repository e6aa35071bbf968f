"""Intervals that learn from closed windows, and factors on step costs from replayed ones."""

import math

import numpy as np
import pytest
from made_scores import START_US, cell_of, score_of

from twin.bias import BiasTrend, RoleSteps, StepBias
from twin.calibration import Calibration, CalibrationSettings, Predictive
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role, StepShape

REPLICATIONS = np.exp(np.random.default_rng(7).normal(0.0, 0.1, 40))


def interval(calibration: Calibration, horizon_s: float = 30.0, widen: float = 1.0) -> Predictive:
    found = calibration.freeze().predictive("e2e_s", 0.5, horizon_s, REPLICATIONS, widen)
    assert found is not None
    return found


def feed(calibration: Calibration, observed_s: list[float | None], period_s: float = 30.0) -> None:
    for k, value in enumerate(observed_s):
        calibration.on_score(score_of(cell_of(observed_s=value), at_s=k * period_s))


def test_missed_windows_widen_the_side_they_missed() -> None:
    calibration = Calibration(CalibrationSettings(max_bias=0.0))
    before = interval(calibration)
    feed(calibration, [9.0] * 5)
    after = interval(calibration)
    assert after.high_s > before.high_s * 1.2
    assert after.low_s > before.low_s


def test_covered_windows_narrow_both_sides_but_not_below_the_replications() -> None:
    calibration = Calibration()
    before = interval(calibration)
    feed(calibration, [1.0] * 400)
    after = interval(calibration)
    assert before.low_s < after.low_s
    assert after.high_s < before.high_s
    low, high = np.quantile(REPLICATIONS, (0.05, 0.95))
    assert after.low_s <= low * 1.0001
    assert after.high_s >= high * 0.9999


def test_overlapping_windows_count_by_their_new_part() -> None:
    disjoint, overlapping = Calibration(), Calibration()
    feed(disjoint, [1.0] + [9.0] * 5)
    feed(overlapping, [1.0] + [9.0] * 30, period_s=5.0)
    assert overlapping.rounds == pytest.approx(disjoint.rounds)
    assert interval(overlapping).high_s == pytest.approx(interval(disjoint).high_s, rel=1e-6)


def test_a_window_seen_again_teaches_nothing() -> None:
    calibration = Calibration()
    feed(calibration, [9.0])
    before = calibration.snapshot()
    feed(calibration, [9.0])
    assert calibration.snapshot() == before


def test_an_intervened_window_teaches_nothing() -> None:
    calibration = Calibration()
    before = calibration.snapshot()
    calibration.on_score(score_of(cell_of(observed_s=9.0), intervened=True))
    assert calibration.snapshot() == before


def test_one_horizon_lends_its_factor_to_one_never_scored() -> None:
    calibration = Calibration()
    feed(calibration, [9.0] * 5)
    assert interval(calibration, 45.0).high_s > interval(Calibration(), 45.0).high_s


def test_a_steady_bias_moves_the_value_and_a_noisy_one_does_not() -> None:
    steady, noisy = Calibration(), Calibration()
    value_s = interval(steady).value_s
    random = np.random.default_rng(5)
    for k in range(60):
        for calibration, error in ((steady, random.normal(0.2, 0.05)), (noisy, random.normal(0.0, 0.3))):
            forecast_s = interval(calibration).value_s
            cell = cell_of(forecast_s=forecast_s, observed_s=value_s * math.exp(error), low_s=0.01, high_s=99.0)
            calibration.on_score(score_of(cell, at_s=30.0 * k))
    assert interval(steady).value_s == pytest.approx(value_s * math.exp(0.2), rel=0.05)
    assert interval(noisy).value_s == pytest.approx(value_s, rel=0.02)


def test_the_output_correction_stays_within_its_bound() -> None:
    calibration = Calibration(CalibrationSettings(max_bias=0.25))
    value_s = interval(calibration).value_s
    for k in range(200):
        cell = cell_of(forecast_s=interval(calibration).value_s, observed_s=None)
        calibration.on_score(score_of(cell, at_s=30.0 * k))
    assert interval(calibration).value_s <= value_s * math.exp(0.25) * 1.0001


def test_infinite_replications_give_finite_numbers_that_reach_the_closing() -> None:
    found = Calibration().freeze().predictive("ttft_s", 0.99, 30.0, np.full(20, np.inf))
    assert found is not None
    assert found.value_s == pytest.approx(90.0)
    assert 90.0 <= found.high_s < 1e9


def test_nothing_known_gives_nothing() -> None:
    assert Calibration().freeze().predictive("tpot_s", 0.5, 30.0, np.full(3, np.nan)) is None


def test_a_new_engine_brings_the_defaults_back() -> None:
    calibration = Calibration()
    feed(calibration, [9.0] * 5)
    calibration.reset()
    assert interval(calibration) == interval(Calibration())


def test_a_restored_calibration_goes_on_as_the_first_would_have() -> None:
    calibration = Calibration()
    feed(calibration, [9.0, 1.0, None])
    restored = Calibration.restore(calibration.snapshot())
    for each in (calibration, restored):
        each.on_score(score_of(cell_of(observed_s=0.1), at_s=500.0))
    assert restored.snapshot() == calibration.snapshot()
    assert interval(restored) == interval(calibration)
    with pytest.raises(ValueError, match="version"):
        Calibration.restore({**calibration.snapshot(), "version": 99})


@pytest.mark.parametrize("wrong", [{"own_gain": math.nan}, {"min_factor": 0.0}, {"max_factor": 0.5}])
def test_settings_are_checked_where_they_are_built(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="calibration"):
        CalibrationSettings(**wrong)


def test_ends_of_the_interval_are_its_five_percent_points() -> None:
    found = Predictive(value_s=1.0, low_s=0.5, high_s=4.0)
    assert found.exceeds(4.0) == pytest.approx(0.05)
    assert found.exceeds(0.5) == pytest.approx(0.95)
    assert found.exceeds(1.0) == pytest.approx(0.5)


def window(ratio: float, steps: int = 2000) -> tuple[RoleSteps, ...]:
    return tuple(RoleSteps(role, steps, ratio * 10.0, 10.0) for role in Role)


def test_one_round_brings_a_quarter_of_error_to_single_digits() -> None:
    bias = StepBias()
    bias.on_window(window(1.25))
    assert bias.factor(Role.DECODE) == pytest.approx(1.25, rel=0.01)


def test_roles_are_corrected_apart_and_what_ifs_with_them() -> None:
    bias = StepBias()
    bias.on_window((RoleSteps(Role.PREFILL, 500, 15.0, 10.0),))
    cost = FrozenStepCost.uniform(fixed_ps=10**10, prefill_token_ps=10**8)
    corrected = bias.corrected(cost)
    prefill, decode = StepShape(prefill_requests=1, prefill_tokens=10), StepShape(decode_requests=3)
    assert corrected.step_ps(prefill) / cost.step_ps(prefill) == pytest.approx(1.5, rel=0.03)
    assert corrected.step_ps(decode) == cost.step_ps(decode)


def test_few_steps_move_a_factor_little() -> None:
    bias = StepBias()
    bias.on_window(window(1.5, steps=2))
    assert 1.0 < bias.factor(Role.DECODE) < 1.05


def test_a_factor_stays_bounded_and_ignores_nonsense() -> None:
    bias = StepBias(max_factor=2.0)
    for _ in range(20):
        bias.on_window(window(1e6))
    assert bias.factor(Role.MIXED) == pytest.approx(2.0)
    before = bias.snapshot()
    bias.on_window((RoleSteps(Role.MIXED, 5, math.nan, 1.0), RoleSteps(Role.DECODE, 5, 1.0, 0.0)))
    bias.on_window((RoleSteps(Role.MIXED, 0, 1.0, 1.0),))
    assert bias.snapshot() == before
    assert StepBias.restore(before).snapshot() == before


def trend_of(logs: list[float]) -> BiasTrend:
    trend = BiasTrend()
    for k, log in enumerate(logs):
        observed = {("e2e_s", q): math.exp(log) for q in (0.5, 0.95, 0.99)}
        trend.on_replay(START_US + k * 60_000_000, observed, dict.fromkeys(observed, 1.0))
    return trend


def test_a_growing_bias_is_seen_and_a_steady_one_is_not() -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.02, 40)
    growing = trend_of([0.01 * k + e for k, e in enumerate(noise)]).trend(0.99)
    steady = trend_of([0.1 + e for e in noise]).trend(0.99)
    shrinking = trend_of([0.4 - 0.01 * k + e for k, e in enumerate(noise)]).trend(0.5)
    assert growing is not None
    assert steady is not None
    assert shrinking is not None
    assert growing.grows()
    falling = trend_of([-0.01 * k + e for k, e in enumerate(noise)]).trend(0.99)
    assert falling is not None
    assert falling.grows()
    assert growing.bias_log == pytest.approx(0.35, abs=0.03)
    assert not steady.grows()
    assert not shrinking.grows()


def test_a_trend_needs_rounds_and_survives_a_snapshot() -> None:
    assert trend_of([0.1] * 7).trend(0.5) is None
    trend = trend_of([0.1] * 9)
    assert BiasTrend.restore(trend.snapshot()).trend(0.5) == trend.trend(0.5)
    trend.on_replay(START_US, {("e2e_s", 0.5): math.inf}, {("e2e_s", 0.5): 1.0})
    assert BiasTrend.restore(trend.snapshot()).snapshot() == trend.snapshot()
