"""A result and its footing become a forecast within the bounds of the wire."""

import dataclasses
import itertools
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from schemas.engines import EngineConfig
from schemas.forecasts import Estimate, Forecast
from schemas.lineage import Lineage
from schemas.slos import SloTarget
from twin.calibration import Calibration
from twin.cost.frozen import FrozenStepCost
from twin.credibility import Standing, assess
from twin.forecasting import Footing, assemble, estimate
from twin.job import Curves, EngineSetup, HorizonResult, Insight, ScenarioResult, SimulationJob, SimulationResult
from twin.metrics import METRICS, QUANTILES
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan

START_US = 1_800_000_000_000_000
SLOS = (
    SloTarget(metric="ttft_s", quantile=0.95, limit_s=1.0),
    SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.1, traffic_class="batch"),
)


def horizon_of(horizon_s: float, runs: int, seed: int = 5) -> HorizonResult:
    random = np.random.default_rng(seed)
    base = np.array([[0.1, 0.5, 0.9], [0.01, 0.02, 0.03], [0.8, 2.0, 3.0]])
    latency = base[None] * np.exp(random.normal(0.0, 0.2, (runs, 1, 1)))
    ones = np.ones(runs)
    return HorizonResult(
        horizon_s=horizon_s,
        arrivals=random.poisson(6 * horizon_s, runs).astype(np.int64),
        latency_s=latency,
        throughput_requests_per_s=6 * ones,
        output_tokens_per_s=300 * ones,
        success_ratio=ones,
        goodput_requests_per_s=5 * ones,
        waiting_peak_requests=4 * ones,
        kv_peak_ratio=0.5 * ones,
        preemptions=0 * ones,
        busy_ratio=0.6 * ones,
        breached=np.stack([latency[:, 0, 1] > 1.0, latency[:, 0, 1] > 0.1], axis=1),
    )


def result_of(phase: str = "fine", runs: int = 30) -> SimulationResult:
    points = np.full((runs, 4), 0.5)
    scenario = ScenarioResult(
        scenario="baseline",
        horizons=(horizon_of(30.0, runs), horizon_of(60.0, runs)),
        curves=Curves(1.0, points, points, points, points, points),
        requests_ratio=np.full((runs, 1), 1.0),
        engine_busy_ratio=np.full((runs, 1), 0.6),
    )
    return SimulationResult(
        deployment="d",
        as_of_us=START_US,
        tick=3,
        phase=phase,  # type: ignore[arg-type]
        replications=runs,
        engine_names=("e0",),
        slos=SLOS,
        scenarios=(scenario, replace(scenario, scenario="burst")),
        simulated_requests=100,
        engine="kernel",
    )


def job_of() -> SimulationJob:
    lengths = OutputLengths.fit(np.array([10]), np.array([True]))
    none = np.zeros(0, np.int64)
    plan = TrafficPlan(Sources.plain(np.zeros(0), 1.0, none, none), 1.0, RateForecast.steady(6.0), lengths)
    config = EngineConfig(
        deployment="d",
        engine="e0",
        at_us=START_US,
        block_size_tokens=16,
        kv_blocks=100,
        max_num_seqs=8,
        max_num_batched_tokens=256,
    )
    setup = EngineSetup("e0", config, FrozenStepCost.uniform(fixed_ps=10**10))
    return SimulationJob(
        deployment="d",
        as_of_us=START_US,
        tick=3,
        phase="fine",
        engines=(setup,),
        traffic=plan,
        root_seed=1,
        slos=SLOS,
        horizons_s=(30.0, 60.0),
    )


def footing_of(standing: Standing) -> Footing:
    return Footing(
        standing=standing,
        authority="advisory",
        credibility=assess(standing),
        calibration=Calibration().freeze(),
        period_s=10.0,
        lineage=Lineage(twincast_version="0", settings_hash="s", costs_hash="c", seed=1, replications=0, engine=""),
    )


GOOD = Standing(input_level="S3", steps=9000, scored_rounds=9, skill=0.2)


def forecast_of_result(result: SimulationResult, standing: Standing = GOOD) -> Forecast:
    found = assemble(job_of(), result, footing_of(standing))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Forecast) == found
    return found


def test_a_forecast_reads_back_and_names_its_footing() -> None:
    found = forecast_of_result(result_of())
    assert found.lineage.replications == 30
    assert found.lineage.engine == "kernel"
    assert found.expires_us == START_US + 20_000_000
    assert (found.skill, found.scored_rounds, found.input_level) == (0.2, 9, "S3")
    assert [scenario.scenario for scenario in found.scenarios] == ["baseline", "burst"]
    assert len(found.scenarios[0].curves) == 5
    assert found.scenarios[1].curves == ()


def test_the_same_result_gives_the_same_bytes() -> None:
    assert msgspec.json.encode(forecast_of_result(result_of())) == msgspec.json.encode(forecast_of_result(result_of()))


def test_intervals_hold_their_values_and_quantiles_rise() -> None:
    for horizon in forecast_of_result(result_of()).scenarios[0].horizons:
        assert len(horizon.latencies) == len(METRICS) * len(QUANTILES)
        for each in horizon.latencies:
            assert each.low_s <= each.value_s <= each.high_s
        for metric in METRICS:
            rows = [each for each in horizon.latencies if each.metric == metric]
            for low, high in itertools.pairwise(rows):
                assert low.value_s <= high.value_s
                assert low.low_s <= high.low_s
                assert low.high_s <= high.high_s


def test_quantiles_that_cross_in_the_simulation_do_not_in_the_forecast() -> None:
    scenario = result_of().scenarios[0]
    crossed = replace(scenario.horizons[0], latency_s=scenario.horizons[0].latency_s[:, :, ::-1])
    made = replace(result_of(), scenarios=(replace(scenario, horizons=(crossed,)),))
    for metric in METRICS:
        latencies = forecast_of_result(made).scenarios[0].horizons[0].latencies
        rows = [each.value_s for each in latencies if each.metric == metric]
        assert rows == sorted(rows)


def test_risk_is_calibrated_where_the_target_is_of_all_traffic() -> None:
    certain, by_class = forecast_of_result(result_of()).scenarios[0].horizons[0].slo_risks
    shares = result_of().scenario().horizon(30.0).breached.mean(axis=0)
    assert shares[0] == 0.0
    assert 0.001 < certain.breach_probability < 0.3
    assert by_class.breach_probability == pytest.approx(30.5 / 31)


def test_unfinished_and_undefined_replications_give_bounded_numbers() -> None:
    result = result_of()
    scenario = result.scenarios[0]
    broken = scenario.horizons[0].latency_s.copy()
    broken[:20, 0, :] = math.inf
    broken[:, 1, :] = math.nan
    horizon = replace(scenario.horizons[0], latency_s=broken, goodput_requests_per_s=np.full(30, math.nan))
    made = replace(result, scenarios=(replace(scenario, horizons=(horizon,)),))
    found = forecast_of_result(made).scenarios[0].horizons[0]
    assert {each.metric for each in found.latencies} == {"ttft_s", "e2e_s"}
    assert all(math.isfinite(each.high_s) for each in found.latencies)
    assert found.goodput_requests_per_s.value == 0.0
    assert found.slo_risks[0].breach_probability > 0.9


def test_doubt_about_the_footing_widens_the_interval() -> None:
    good = forecast_of_result(result_of()).scenarios[0].horizons[0].latencies[0]
    cold = forecast_of_result(result_of(), Standing(input_level="S0", steps=0)).scenarios[0].horizons[0].latencies[0]
    assert cold.high_s > good.high_s
    assert cold.low_s < good.low_s
    assert cold.value_s == good.value_s


def test_a_ceiling_gives_headroom_and_the_compute_watermark() -> None:
    assert forecast_of_result(result_of()).burst_headroom_ratio is None
    known = Insight(ceiling_requests_per_s=Estimate(value=12.0, low=11.0, high=13.0))
    found = forecast_of_result(dataclasses.replace(result_of(), insight=known))
    assert found.burst_headroom_ratio == pytest.approx(11 / 6, rel=0.1)
    mark = found.scenarios[0].horizons[0].compute_watermark_ratio
    assert mark is not None
    assert mark.low <= mark.value <= mark.high
    assert mark.value == pytest.approx(0.5, rel=0.1)


def test_a_result_of_another_tick_is_refused() -> None:
    with pytest.raises(ValueError, match="does not belong"):
        assemble(job_of(), result_of("coarse"), footing_of(GOOD))


def test_no_values_are_no_estimate() -> None:
    assert estimate(np.full(3, math.nan)) == Estimate(value=0.0, low=0.0, high=0.0)
    assert estimate(np.array([0.2, 3.0]), highest=1.0).high <= 1.0
