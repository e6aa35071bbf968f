"""Drift alerts: one per cause, in order, the same after a restart; hardware and traffic told apart."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import orjson
import pytest
from made_scores import cell_of, score_of
from made_steps import START_US, part, shapes_of, steps_of

from schemas.alerts import Alert
from schemas.requests import RequestFinished
from twin.cost.block import StepBlock
from twin.cost.model import StepCostModel
from twin.cost.shape import StepShape
from twin.drift import DriftAlerts, DriftMonitor

SHAPES = shapes_of(14_000, 31)


def told_by(block: StepBlock, alerts: DriftAlerts, model: StepCostModel, size: int = 512) -> list[Alert]:
    told = []
    for start in range(0, len(block), size):
        rows = part(block, start, start + size)
        told += alerts.on_steps("0", rows, model.learn_block(rows))
    return told


def run(level: Callable[[float], float], shapes: list[StepShape] | None = None) -> list[Alert]:
    return told_by(steps_of(shapes or SHAPES, level=level, sigma=0.08), DriftAlerts("d"), StepCostModel())


def seconds(at_us: int) -> float:
    return (at_us - START_US) / 1e6


def finished(i: int, isl_tokens: int, osl_tokens: int = 50, cached_tokens: int | None = None) -> RequestFinished:
    at_us = START_US + i * 100_000
    return RequestFinished(
        deployment="d",
        request_id=str(i),
        at_us=at_us,
        arrived_us=at_us - 500_000,
        isl_tokens=isl_tokens,
        osl_tokens=osl_tokens,
        cached_tokens=cached_tokens,
    )


def test_an_engine_that_slows_down_is_told_within_half_a_minute() -> None:
    told = run(lambda s: 2.1 if s > 100 else 1.0)
    firing = [alert for alert in told if alert.state == "firing"]
    assert len(firing) == 1
    assert 100 < seconds(firing[0].at_us) < 120
    assert seconds(firing[0].onset_us) == pytest.approx(100, abs=2)
    assert firing[0].effect_ratio == pytest.approx(2.1, rel=0.25)
    assert firing[0].kind == "cost_drift"
    assert firing[0].engine == "0"
    assert firing[0].exemplars


def test_a_wander_of_ten_percent_is_told_to_nobody() -> None:
    assert run(lambda s: 1.0 + 0.1 * math.sin(s / 7.0)) == []


def test_longer_prompts_and_larger_batches_are_no_drift_of_costs() -> None:
    rng = np.random.default_rng(1)
    small = [StepShape(decode_requests=int(n), decode_context_tokens=int(n) * 200) for n in rng.integers(1, 6, 9_000)]
    large = [StepShape(1, 250, 250 * 900, int(n), int(n) * 900) for n in rng.integers(12, 24, 2_000)]
    warm = shapes_of(2_000, 32)
    assert run(lambda _: 1.0, warm + small + large) == []


def test_states_follow_each_other_and_an_alert_keeps_its_id() -> None:
    told = run(lambda s: 1.8 if 60 < s < 110 or s > 170 else 1.0)
    by_id = {key: [a.state for a in group] for key, group in itertools.groupby(told, key=lambda alert: alert.alert_id)}
    assert len(by_id) == 2
    for states in by_id.values():
        assert states in (
            ["suspected", "firing", "resolved"],
            ["suspected", "firing"],
            ["firing", "resolved"],
            ["firing"],
        )
    assert [alert.at_us for alert in told] == sorted(alert.at_us for alert in told)


def test_an_alert_ends_when_the_engine_recovers_or_the_new_level_has_settled() -> None:
    recovered = run(lambda s: 1.8 if 60 < s < 110 else 1.0)[-1]
    assert recovered.state == "resolved"
    assert "back at the reference" in recovered.evidence
    settled = run(lambda s: 1.8 if s > 60 else 1.0, shapes_of(22_000, 33))
    assert [alert.state for alert in settled][-1] == "resolved"
    assert "is the reference now" in settled[-1].evidence


def test_blocks_of_any_size_tell_the_same() -> None:
    block = steps_of(SHAPES, level=lambda s: 2.1 if s > 100 else 1.0, sigma=0.08)
    whole = told_by(block, DriftAlerts("d"), StepCostModel(), size=14_000)
    parts = told_by(block, DriftAlerts("d"), StepCostModel(), size=37)
    assert whole == parts


def test_a_restart_changes_no_alert() -> None:
    block = steps_of(SHAPES, level=lambda s: 2.1 if s > 100 else 1.0, sigma=0.08)
    alerts, model = DriftAlerts("d"), StepCostModel()
    whole = told_by(block, alerts, model)
    first, model_again = DriftAlerts("d"), StepCostModel()
    before = told_by(part(block, 0, 6_000), first, model_again)
    second = DriftAlerts.restore(orjson.loads(orjson.dumps(first.snapshot())))
    model_again = StepCostModel.restore(orjson.loads(orjson.dumps(model_again.snapshot())))
    after = told_by(part(block, 6_000, len(block)), second, model_again)
    assert before + after == whole
    assert second.drifting == alerts.drifting
    assert orjson.dumps(second.snapshot()) == orjson.dumps(alerts.snapshot())


@pytest.mark.parametrize("damage", [{"version": 9}, {"monitors": [["cost_drift"]]}, {"monitors": [["x", "0", {}]]}])
def test_a_damaged_snapshot_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="drift snapshot"):
        DriftAlerts.restore({**DriftAlerts("d").snapshot(), **damage})


def test_refused_steps_are_not_looked_at() -> None:
    block = steps_of(SHAPES[:3_000], sigma=0.08)
    block.duration_s[600::3] = np.nan
    alerts = DriftAlerts("d")
    assert told_by(block, alerts, StepCostModel()) == []
    for value in orjson.loads(orjson.dumps(alerts.snapshot()))["monitors"][0][2]["level"]["units"]:
        assert abs(value) < 1e5


def test_longer_prompts_are_a_drift_of_traffic_with_one_alert() -> None:
    rng = np.random.default_rng(2)
    alerts, told = DriftAlerts("d"), []
    for i in range(6_000):
        mean = 240 if i < 3_000 else 480
        told += alerts.on_finished(finished(i, max(int(mean * np.exp(0.5 * rng.standard_normal())), 1)))
    assert {alert.cause for alert in told} == {"traffic: isl_tokens"}
    assert [alert.state for alert in told if alert.state != "resolved"] in (["suspected", "firing"], ["firing"])
    assert {alert.kind for alert in told} == {"traffic_drift"}


def test_a_cache_that_misses_more_is_a_drift_of_traffic() -> None:
    rng = np.random.default_rng(3)
    alerts, told = DriftAlerts("d"), []
    for i in range(6_000):
        hit = (0.5 if i < 3_000 else 0.0) * rng.uniform(0.5, 1.5)
        told += alerts.on_finished(finished(i, 1_000, cached_tokens=int(1_000 * hit)))
    assert {alert.cause for alert in told} == {"traffic: missed_tokens_ratio"}


def test_forecasts_that_miss_for_long_are_told_unless_costs_explain_it() -> None:
    def scores(alerts: DriftAlerts) -> list[Alert]:
        rng = np.random.default_rng(4)
        told = []
        for i in range(2_000):
            truth_s = (1.0 if i < 1_000 else 2.0) * math.exp(0.1 * rng.standard_normal())
            cell = cell_of(metric="e2e_s", quantile=0.5, forecast_s=1.0, observed_s=truth_s)
            told += alerts.on_score(score_of(cell, at_s=i * 30.0))
        return told

    alone = scores(DriftAlerts("d"))
    assert {alert.kind for alert in alone} == {"forecast_drift"}
    assert "firing" in {alert.state for alert in alone}
    costs = DriftAlerts("d")
    told_by(steps_of(SHAPES, level=lambda s: 2.1 if s > 100 else 1.0, sigma=0.08), costs, StepCostModel())
    assert costs.drifting == ("step cost of engine '0'",)
    assert scores(costs) == []


def test_values_one_by_one_tell_what_all_at_once_tell() -> None:
    rng = np.random.default_rng(4)
    at_us = START_US + np.cumsum(rng.integers(1, 200_000, 3000))
    observed = np.where(np.arange(3000) < 1500, 1.0, 1.7) * rng.gamma(40.0, 1 / 40.0, 3000)
    observed[[2_900, 2_950]] = (math.inf, 1e9)
    exceeded = rng.random(3000) < 0.05
    together, singly = DriftMonitor(), DriftMonitor()
    told = together.update_many(at_us, observed, np.ones(3000), exceeded)
    rows = zip(at_us.tolist(), observed.tolist(), exceeded.tolist(), strict=True)
    assert told == [move for at, value, above in rows for move in singly.update_one(at, value, 1.0, above)]
    assert told
    assert together.snapshot() == singly.snapshot()
