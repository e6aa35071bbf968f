"""Closed windows through the twin again, on an engine so idle that its every step is known on paper."""

import math
from dataclasses import replace

import numpy as np
import pytest

from schemas.engines import EngineConfig
from schemas.forecasts import Estimate, HorizonForecast, LatencyEstimate
from schemas.requests import RequestFinished
from schemas.steps import Step
from twin.closed_window import ClosedWindow, cause_of, close_window, fidelity_rows, quantiles_of
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.shape import Role, StepShape
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup, SimulationJob
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan

START_US = 1_800_000_000_000_000
COST = FrozenStepCost.uniform(fixed_ps=20_000_000_000, prefill_token_ps=400_000_000, decode_context_token_ps=1_000_000)
REQUESTS = [(2.0 + 3.0 * k, 60 + 7 * (k % 5), 20 + k % 7) for k in range(25)]
"""Arrival (s), prompt and output tokens: nobody ever meets anybody."""
NONE = Estimate(value=0.0, low=0.0, high=0.0)


def run_of(name: str, arrived_s: float, isl: int, osl: int) -> tuple[RequestFinished, list[Step]]:
    """One request alone: a prefill step, then decodes."""
    now_ps = round(arrived_s * PS_PER_S)
    steps, first_ps = [], 0
    for token in range(osl):
        shape = (
            StepShape(prefill_requests=1, prefill_tokens=isl, prefill_attention_pairs=isl * (isl + 1) // 2)
            if token == 0
            else StepShape(decode_requests=1, decode_context_tokens=isl + token)
        )
        duration_ps = COST.step_ps(shape)
        steps.append(
            Step(
                step=0,
                start_us=START_US + now_ps // 1_000_000,
                duration_us=duration_ps // 1_000_000,
                prefill_requests=shape.prefill_requests,
                prefill_tokens=shape.prefill_tokens,
                prefill_attention_pairs=shape.prefill_attention_pairs,
                decode_requests=shape.decode_requests,
                decode_context_tokens=shape.decode_context_tokens,
                waiting=0,
                running=1,
                finished_requests=int(token == osl - 1),
            )
        )
        now_ps += duration_ps
        first_ps = first_ps or now_ps
    finished = RequestFinished(
        deployment="d",
        request_id=name,
        at_us=START_US + now_ps // 1_000_000,
        engine="e0",
        arrived_us=START_US + round(arrived_s * 1e6),
        isl_tokens=isl,
        osl_tokens=osl,
        first_token_us=START_US + first_ps // 1_000_000,
    )
    return finished, steps


RUNS = [run_of(f"r{k}", *each) for k, each in enumerate(REQUESTS)]
FINISHED = [finished for finished, _ in RUNS]
STEPS = {"e0": [step for _, steps in RUNS for step in steps]}


def job_of(cost: FrozenStepCost = COST, state: EngineState | None = None) -> SimulationJob:
    config = EngineConfig(
        deployment="d",
        engine="e0",
        at_us=START_US,
        block_size_tokens=16,
        kv_blocks=200,
        max_num_seqs=8,
        max_num_batched_tokens=256,
    )
    lengths = OutputLengths.fit(np.array([23]), np.array([True]))
    isl = np.array([isl for _, isl, _ in REQUESTS])
    osl = np.array([osl for _, _, osl in REQUESTS])
    sources = Sources.plain(np.arange(1.0, 26.0), 25.0, isl, osl)
    return SimulationJob(
        deployment="d",
        as_of_us=START_US,
        tick=1,
        phase="fine",
        engines=(EngineSetup("e0", config, cost, state=state or EngineState()),),
        traffic=TrafficPlan(sources, 5.0, RateForecast.steady(1 / 3), lengths),
        root_seed=1,
    )


def closed(cost: FrozenStepCost = COST, window_s: float = 60.0) -> ClosedWindow:
    found = close_window(job_of(cost), FINISHED, STEPS, window_s)
    assert found is not None
    return found


def test_true_costs_replay_what_was_recorded() -> None:
    window = closed()
    assert window.members == sum(arrived <= 60.0 for arrived, _, _ in REQUESTS)
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        np.testing.assert_allclose(window.replayed[0].of(metric), window.observed.of(metric), rtol=1e-4)
    for row in window.role_steps:
        if row.role is not Role.MIXED:
            assert row.observed_s / row.predicted_s == pytest.approx(1.0, rel=1e-4)


def test_wrong_costs_show_and_the_given_level_takes_them_away() -> None:
    window = closed(COST.scaled(0.8))
    np.testing.assert_allclose(window.replayed[0].e2e_s, 0.8 * window.observed.e2e_s, rtol=1e-3)
    np.testing.assert_allclose(window.levelled.e2e_s, window.observed.e2e_s, rtol=1e-3)
    assert {row.role: row.observed_s / row.predicted_s for row in window.role_steps if row.steps} == pytest.approx(
        {Role.PREFILL: 1.25, Role.DECODE: 1.25}, rel=1e-3
    )


def test_requests_after_the_window_are_company_and_no_members() -> None:
    assert closed(window_s=30.0).members == sum(arrived <= 30.0 for arrived, _, _ in REQUESTS)


def test_a_request_in_the_engine_keeps_its_real_length() -> None:
    """It began two seconds before and takes long; the first member shares its steps."""
    before, _ = run_of("before", -2.0, 64, 400)
    carried = CarriedRequest(
        isl_tokens=64,
        osl_tokens=11,
        arrival_ps=-2 * PS_PER_S,
        computed_tokens=73,
        generated_tokens=10,
        scheduled_ps=-2 * PS_PER_S,
        first_token_ps=-PS_PER_S,
    )
    job = job_of(COST, EngineState(running=(carried,)))
    known = close_window(job, [before, *FINISHED], STEPS, 60.0)
    unknown = close_window(job, FINISHED, STEPS, 60.0)
    assert known is not None
    assert unknown is not None
    assert known.replayed[0].e2e_s[0] > unknown.replayed[0].e2e_s[0] * 1.01


def test_rows_name_the_window_and_whether_the_level_was_given() -> None:
    rows = fidelity_rows(closed(COST.scaled(0.8)), START_US - 5_000_000)
    assert {row["window_start_s"] for row in rows} == {5.0}
    assert {row["saturated"] for row in rows} == {False}
    errors = {
        row["level_given"]: row["twin"] / row["observed"]
        for row in rows
        if (row["metric"], row["quantile"]) == ("e2e_s", "mean")
    }
    assert errors == pytest.approx({False: 0.8, True: 1.0}, rel=1e-3)


def test_nothing_came_nothing_to_say() -> None:
    assert close_window(job_of(), [], STEPS, 60.0) is None


def test_a_window_without_steps_has_no_level_and_no_evidence() -> None:
    window = close_window(job_of(COST.scaled(0.8)), FINISHED, {}, 60.0)
    assert window is not None
    assert window.steps is None
    np.testing.assert_array_equal(window.levelled.e2e_s, window.replayed[0].e2e_s)


def forecast_as(window: ClosedWindow, factor: float, per_s: float) -> HorizonForecast:
    return HorizonForecast(
        horizon_s=60.0,
        arrivals_per_s=Estimate(value=per_s, low=per_s * 0.8, high=per_s * 1.2),
        latencies=tuple(
            LatencyEstimate(metric=m, quantile=q, value_s=v * factor, low_s=v * factor / 2, high_s=v * factor * 2)
            for (m, q), v in quantiles_of(window.observed).items()
        ),
        throughput_requests_per_s=NONE,
        output_tokens_per_s=NONE,
        success_ratio=NONE,
        goodput_requests_per_s=NONE,
        waiting_peak_requests=NONE,
        kv_peak_ratio=NONE,
        preemptions=NONE,
    )


def test_the_cause_of_costs_that_were_wrong_is_costs() -> None:
    cost = COST.scaled(0.7)
    window = closed(cost)
    found = cause_of(window, forecast_as(window, 0.7, window.members / 60.0))
    assert found.cause == "costs"
    assert found.parts_from == "runs"
    assert found.costs_log == pytest.approx(-math.log(0.7), abs=0.01)


def test_the_cause_of_more_requests_than_expected_is_traffic() -> None:
    window = closed()
    dense = replace(window, replayed=(window.observed,), levelled=window.observed)
    found = cause_of(dense, forecast_as(window, 0.7, window.members / 120.0))
    assert found.cause == "traffic"
