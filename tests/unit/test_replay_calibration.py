"""Calibration by replay: what stays wrong moves costs and outputs, what comes and goes moves nothing."""

import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from twin.attribution import Attribution
from twin.bias import NO_FACTORS, ProvenStepBias, RoleSteps, scaled
from twin.calibration import Calibration, CalibrationSettings
from twin.closed_window import ClosedWindow, replay
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role
from twin.engine.types import CarriedRequest, EngineState
from twin.insight import run_with_window
from twin.job import EngineSetup, SimulationJob
from twin.live import LiveEngine, LiveRequest
from twin.metrics import Latencies
from twin.proven import ProvenMean
from twin.replay_calibration import ReplayCalibration
from twin.saturation import Saturation
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan
from twin.window_job import WindowJob
from twin.window_tape import MAX_OPEN, MAX_REQUESTS, WindowTapes

START_US = 1_800_000_000_000_000
MINUTE_US = 60_000_000
COST = FrozenStepCost.uniform(fixed_ps=20_000_000_000, prefill_token_ps=400_000_000)
CONFIG = EngineConfig(
    deployment="d",
    engine="e0",
    at_us=START_US,
    block_size_tokens=16,
    kv_blocks=200,
    max_num_seqs=8,
    max_num_batched_tokens=256,
)


def window_of(number: int, error: float, *, remainder: float = 0.0, factor: float = 1.0) -> ClosedWindow:
    """A window whose decode steps took `error` (log) longer than learned costs say; `factor` was in them."""
    twin = np.linspace(1.0, 2.0, 50)
    given = twin * math.exp(error)
    real = given * math.exp(remainder)
    return ClosedWindow(
        as_of_us=START_US + number * MINUTE_US,
        window_s=60.0,
        observed=Latencies(real, real, real),
        replayed=(Latencies(twin, twin, twin),),
        levelled=Latencies(given, given, given),
        role_steps=(
            RoleSteps(Role.PREFILL, 0, 0.0, 0.0),
            RoleSteps(Role.DECODE, 4000, 50.0 * math.exp(error), 50.0 * factor),
            RoleSteps(Role.MIXED, 0, 0.0, 0.0),
        ),
        saturated_ratio=0.1,
        steps=None,
        mean_isl_tokens=100.0,
        mean_osl_tokens=20.0,
        prefill_ratio=0.5,
        cost_factors=(1.0, factor, 1.0),
    )


def test_errors_that_come_and_go_move_nothing() -> None:
    found = ReplayCalibration()
    for number, error in enumerate(np.random.default_rng(2).normal(0.0, 0.05, 60)):
        told = found.on_replayed("d", window_of(number, float(error)))
    assert found.factors == NO_FACTORS
    assert [row.factor for row in told.roles] == [1.0, 1.0, 1.0]
    assert not any(row.grows for row in told.trend)


def test_an_error_that_stays_moves_its_role_alone_and_settles_where_it_is() -> None:
    """Costs with the factor are right, so that nothing is left to correct."""
    found = ReplayCalibration()
    for number in range(40):
        found.on_replayed("d", window_of(number, 0.1, factor=found.factors[1]))
    prefill, decode, mixed = found.factors
    assert (prefill, mixed) == (1.0, 1.0)
    assert decode == pytest.approx(math.exp(0.1), rel=1e-6)


def test_a_few_windows_prove_nothing_and_none_exceeds_the_bound() -> None:
    bias = ProvenStepBias(max_factor=1.5)
    for number in range(40):
        assert (bias.factors == NO_FACTORS) == (number < 7)
        bias.on_window(window_of(number, 5.0).role_steps, NO_FACTORS)
    assert bias.factors[1] == pytest.approx(1.5)


def test_costs_are_multiplied_role_by_role() -> None:
    costs = scaled(COST, (1.0, 2.0, 1.0))
    assert costs.prefill == COST.prefill
    assert costs.decode == COST.decode.scaled(2.0)


def test_another_engine_begins_without_factors_and_more_engines_change_nothing() -> None:
    found = ReplayCalibration()
    found.on_fingerprints({"e0": "one"})
    for number in range(20):
        found.on_replayed("d", window_of(number, 0.1))
    moved = found.factors
    found.on_fingerprints({"e0": "one", "e1": "one"})
    assert found.factors == moved != NO_FACTORS
    found.on_fingerprints({"e0": "two"})
    assert found.factors == NO_FACTORS


def test_a_trend_that_grows_is_told_and_the_cause_with_its_parts() -> None:
    found = ReplayCalibration()
    cause = Attribution("costs", 0.3, 0.1, 0.15, 0.05, "runs", "step time +20%")
    for number in range(16):
        told = found.on_replayed("d", replace(window_of(number, 0.02 * number), cause=cause))
    assert all(row.grows for row in told.trend)
    assert (told.cause, told.evidence) == ("costs", "step time +20%")
    assert told.error_log == pytest.approx(told.traffic_log + told.costs_log + told.rest_log)


def test_what_true_traffic_and_true_costs_leave_goes_to_the_outputs_once_it_is_proven() -> None:
    calibration = Calibration()
    draws = np.array([1.0, 1.0, 1.0])
    scores = calibration.freeze()
    for number in range(12):
        window = window_of(number, 0.0, remainder=0.08)
        told = {("ttft_s", 0.5): float(np.quantile(window.observed.ttft_s, 0.5))}
        calibration.on_replay(told, {("ttft_s", 0.5): float(np.quantile(window.levelled.ttft_s, 0.5))})  # type: ignore[dict-item, arg-type]
    assert calibration.freeze().bias == scores.bias == {}
    restored = Calibration.restore(json.loads(json.dumps(calibration.snapshot())))
    key = ("ttft_s", 0.5, 30.0)
    for each in (calibration, restored):
        each._state.errors[key] = ProvenMean()  # type: ignore[index]
        found = each.freeze().predictive("ttft_s", 0.5, 30.0, draws)
        assert found is not None
        assert found.value_s == pytest.approx(math.exp(0.08), rel=1e-6)


def test_the_correction_counts_an_error_once_whoever_finds_it() -> None:
    """Forecasts miss by the same remainder that replays tell: the sum of both corrections is that remainder."""
    errors, remainder = ProvenMean(), ProvenMean()
    for _ in range(20):
        errors.add(0.1, 1.0, 20.0)
        remainder.add(0.1, 1.0, 20.0)
    settings = CalibrationSettings()
    first = remainder.beyond_doubt(settings.bias_errors, settings.max_bias)
    assert first == pytest.approx(0.1)
    assert errors.beyond_doubt(settings.bias_errors, settings.max_bias, first) == pytest.approx(0.0, abs=1e-9)


def job_at(at_us: int, tick: int = 1, state: EngineState | None = None) -> SimulationJob:
    lengths = OutputLengths.fit(np.array([23]), np.array([True]))
    sources = Sources.plain(np.arange(1.0, 26.0), 25.0, np.full(25, 70), np.full(25, 23))
    return SimulationJob(
        deployment="d",
        as_of_us=at_us,
        tick=tick,
        phase="coarse",
        engines=(EngineSetup("e0", CONFIG, COST, state=state or EngineState()),),
        traffic=TrafficPlan(sources, 5.0, RateForecast.steady(1 / 3), lengths),
        root_seed=1,
    )


def finished(arrived_us: int, *, engine: str = "e0", hashes: tuple[int, ...] = ()) -> RequestFinished:
    return RequestFinished(
        deployment="d",
        request_id=f"r{arrived_us}",
        at_us=arrived_us + 500_000,
        engine=engine,
        arrived_us=arrived_us,
        isl_tokens=60,
        osl_tokens=20,
        first_token_us=arrived_us + 44_000,
        block_hashes=hashes,
        hash_block_tokens=16 if hashes else 0,
    )


def closed(tapes: WindowTapes, at_us: int, **more: object) -> WindowJob | None:
    settings = {"engines": {}, "saturation": Saturation(300.0), "changes_us": []} | more
    return tapes.closed("d", 1, at_us, **settings)  # type: ignore[arg-type]


def taped() -> WindowTapes:
    """Two windows under way, a request every second of two minutes, a decode step every 100 ms."""
    tapes = WindowTapes()
    tapes.begin(job_at(START_US), NO_FACTORS)
    for second in range(1, 121):
        if second == 61:
            tapes.begin(job_at(START_US + MINUTE_US, 7), NO_FACTORS)
        tapes.on_finished(finished(START_US + second * 1_000_000))
    at_us = START_US + np.arange(1, 1201) * 100_000
    shapes = np.tile([0.0, 0.0, 0.0, 1.0, 70.0], (1200, 1))
    gaps = np.full(1200, 0.001)
    tapes.on_steps("e0", StepBlock(at_us, shapes, np.full(1200, 0.024), gaps), np.ones(1200, np.bool_))
    return tapes


def test_windows_begin_where_the_last_one_ended() -> None:
    tapes = WindowTapes()
    for tick in range(30):
        tapes.begin(job_at(START_US + tick * 10_000_000, tick), NO_FACTORS)
    starts = [window["as_of_us"] for window in tapes.snapshot()["windows"]]
    assert starts == [START_US + number * MINUTE_US for number in range(5)]
    for tick in range(30, 90):
        tapes.begin(job_at(START_US + tick * 10_000_000, tick), NO_FACTORS)
    assert len(tapes.snapshot()["windows"]) == MAX_OPEN


def test_a_window_is_given_when_it_has_closed_with_what_came_and_no_sooner() -> None:
    tapes = taped()
    assert closed(tapes, START_US + 2 * MINUTE_US - 1) is None
    job = closed(tapes, START_US + 2 * MINUTE_US)
    assert job is not None
    assert len(job.requests) == 120
    window = replay(job)
    assert window is not None
    assert window.members == 60
    row = window.role_steps[1]
    assert (row.role, row.steps) == (Role.DECODE, 600)
    assert row.observed_s == pytest.approx(600 * 0.025)
    assert row.predicted_s == pytest.approx(600 * 0.020)


def test_a_step_of_a_billion_sequences_costs_no_memory() -> None:
    tapes = WindowTapes()
    tapes.begin(job_at(START_US), NO_FACTORS)
    shapes = np.array([[0.0, 0.0, 0.0, 1e9, 70.0]])
    block = StepBlock(np.array([START_US + 1]), shapes, np.array([1.0]), np.array([np.nan]))
    tapes.on_steps("e0", block, np.ones(1, np.bool_))
    assert tapes.snapshot()["windows"][0]["steps"]["engines"]["e0"][1][0] == 1.0


def test_the_next_window_keeps_what_it_needs_of_the_one_before() -> None:
    tapes = taped()
    first, second = closed(tapes, START_US + 3 * MINUTE_US), closed(tapes, START_US + 3 * MINUTE_US)
    assert first is not None
    assert second is not None
    assert (first.as_of_us, second.as_of_us) == (START_US, START_US + MINUTE_US)
    assert {each.arrived_us for each in second.requests} >= {START_US + second * 1_000_000 for second in range(60, 121)}
    assert min(each.at_us for each in second.requests) > START_US + MINUTE_US
    assert second.steps.role_steps()[1].steps == 600


def test_a_restored_tape_gives_the_same_replay() -> None:
    tapes = taped()
    again = WindowTapes.restore(json.loads(json.dumps(tapes.snapshot())))
    jobs = [closed(each, START_US + 2 * MINUTE_US) for each in (tapes, again)]
    windows = [None if job is None else replay(job) for job in jobs]
    assert windows[0] is not None
    assert windows[1] is not None
    for metric in ("ttft_s", "tpot_s", "e2e_s"):
        for name in ("observed", "levelled"):
            np.testing.assert_array_equal(*(getattr(window, name).of(metric) for window in windows))
        np.testing.assert_array_equal(*(window.replayed[0].of(metric) for window in windows if window))
    assert windows[0].role_steps == windows[1].role_steps
    assert windows[0].steps == windows[1].steps
    assert again.snapshot() == tapes.snapshot()


def test_who_is_unfinished_at_the_closing_is_a_member_without_an_end() -> None:
    tapes = taped()
    live = LiveEngine()
    live.running["late"] = LiveRequest("late", START_US + 30_500_000, 60, generated_tokens=400, first_token_us=None)
    job = closed(tapes, START_US + 2 * MINUTE_US, engines={"e0": live})
    assert job is not None
    window = replay(job)
    assert window is not None
    assert window.members == 61
    assert np.isinf(window.observed.e2e_s).sum() == 1


def test_a_window_with_a_change_or_of_unknown_engines_is_given_up() -> None:
    tapes = taped()
    assert closed(tapes, START_US + 2 * MINUTE_US, changes_us=[START_US + 70_000_000]) is None
    assert tapes.given_up == 1
    two = WindowTapes()
    job = job_at(START_US)
    engines = (job.engines[0], replace(job.engines[0], name="e1"))
    two.begin(replace(job, engines=engines), NO_FACTORS)
    two.on_finished(finished(START_US + 1_000_000, engine=""))
    assert closed(two, START_US + 2 * MINUTE_US) is None
    assert two.given_up == 1


def test_absurd_lengths_are_cut_to_what_the_engine_holds_and_absurd_times_are_left_out() -> None:
    carried = CarriedRequest(
        isl_tokens=64, osl_tokens=11, arrival_ps=-(10**12), generated_tokens=10, computed_tokens=73
    )
    tapes = WindowTapes()
    tapes.begin(job_at(START_US, state=EngineState(running=(carried,))), NO_FACTORS)
    inside = msgspec.structs.replace(finished(START_US - 1_000_000), isl_tokens=64, at_us=START_US + 10**6)
    for event in (inside, finished(START_US + 10**6), finished(START_US + 2 * 10**6)):
        tapes.on_finished(msgspec.structs.replace(event, osl_tokens=100_000_000))
    tapes.on_finished(msgspec.structs.replace(finished(START_US + 3 * 10**6), isl_tokens=100_000_000))
    tapes.on_finished(msgspec.structs.replace(finished(START_US + 4 * 10**6), first_token_us=START_US))
    job = closed(tapes, START_US + 2 * MINUTE_US)
    assert job is not None
    window = replay(job)
    assert window is not None
    assert window.members == 3


def test_a_window_that_no_engine_could_have_had_costs_no_forecast() -> None:
    job = job_at(START_US)
    job = replace(job, phase="fine", coarse_replications=1, fine_replications=1)
    tapes = WindowTapes()
    tapes.begin(replace(job, engines=(replace(job.engines[0], cost=COST.scaled(1e5).scaled(1e5)),)), NO_FACTORS)
    tapes.on_finished(finished(START_US + 10**6))
    absurd = closed(tapes, START_US + 2 * MINUTE_US)
    assert absurd is not None
    with pytest.raises(ValueError, match="over the limit"):
        replay(absurd)
    result = run_with_window(replace(job, window=absurd))
    assert result.window is None
    assert result.scenarios


@pytest.mark.parametrize(("count", "hashes"), [(MAX_REQUESTS + 1, ()), (3, tuple(range(100_000)))])
def test_memory_is_bounded_by_giving_windows_up(count: int, hashes: tuple[int, ...]) -> None:
    tapes = WindowTapes()
    tapes.begin(job_at(START_US), NO_FACTORS)
    for number in range(count):
        tapes.on_finished(finished(START_US + number, hashes=hashes))
    assert closed(tapes, START_US + MINUTE_US) is None
    assert tapes.given_up == 1
    assert tapes.snapshot()["requests"] == []
