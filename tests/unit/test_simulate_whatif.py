"""What-ifs, load sweeps and closed windows: effects of known size, knees of known place, replays of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from made_jobs import COST, config, job, plan

from schemas.slos import SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role
from twin.ends.presence import Donors, Presence
from twin.engine.run import simulate
from twin.engine.types import CarriedRequest, EngineState, Workload
from twin.job import EngineSetup, FrontendOverheads
from twin.replicate import most_tokens
from twin.simulate import run
from twin.sweep import sweep
from twin.traffic.draw import Arrivals
from twin.traffic.plan import Sources
from twin.whatif import (
    burst_headroom_ratio,
    class_changes,
    effects,
    mean_interval,
    resource_changes,
    responses,
    role_changes,
    with_config,
)
from twin.window_replay import replay_window


def test_a_change_that_does_nothing_has_no_effect() -> None:
    found = effects(job(), {"same": lambda setup: setup, "idle": class_changes({"copy": {}})["copy"]}, "class")
    for effect in found:
        assert effect.ttft_p95_change_ratio == effect.tpot_p95_change_ratio == 0.0
        assert effect.ttft_low_ratio == effect.ttft_high_ratio == 0.0


def test_all_roles_cheaper_is_ten_per_cent_less_of_everything() -> None:
    """Latencies of an engine that never idles between arrivals scale with cost; with arrivals fixed they fall more."""
    shares = {"all": dict.fromkeys(Role, 1.0)}
    found = effects(job(traffic=plan(0.2, sigma=0.0), horizons_s=(60.0,)), class_changes(shares), "class")[0]
    assert found.ttft_p95_change_ratio == pytest.approx(-0.1, abs=0.02)
    assert found.tpot_p95_change_ratio == pytest.approx(-0.1, abs=0.02)


def test_the_resource_that_bounds_is_ranked_first() -> None:
    prefill_bound = FrozenStepCost.uniform(fixed_ps=10**9, decode_request_ps=10**7, prefill_token_ps=4 * 10**8)
    engine = EngineSetup("e0", config(), prefill_bound)
    ranked = effects(job(engines=(engine,), traffic=plan(8.0)), resource_changes(), "resource")
    assert ranked[0].name == "prefill_token"
    assert ranked[0].ttft_high_ratio < -0.05
    assert next(e for e in ranked if e.name == "prefill_attention_pair").ttft_p95_change_ratio == 0.0
    fixed_bound = FrozenStepCost.uniform(fixed_ps=60 * 10**9)
    slow_steps = EngineSetup("e0", config(), fixed_bound)
    assert effects(job(engines=(slow_steps,)), resource_changes(), "resource")[0].name == "step_fixed"


def test_a_memory_bound_engine_gains_from_blocks() -> None:
    engine = EngineSetup("e0", config(kv_blocks=70), COST)
    asked = job(engines=(engine,), traffic=plan(6.0, sigma=0.0), fine_replications=8)
    blocks = next(e for e in effects(asked, resource_changes(), "resource") if e.name == "kv_blocks")
    assert blocks.ttft_high_ratio < 0.0


def test_roles_and_classes_are_changed_where_they_say() -> None:
    setup = job().engines[0]
    cheaper = role_changes()["prefill steps"](setup).cost
    assert cheaper.prefill == setup.cost.prefill.scaled(0.9)
    assert cheaper.decode == setup.cost.decode
    half = class_changes({"attention": {Role.DECODE: 0.5}})["attention"](setup).cost
    assert half.decode == setup.cost.decode.scaled(0.95)
    assert half.mixed == setup.cost.mixed
    with pytest.raises(ValueError, match="share of class 'copy'"):
        class_changes({"copy": {Role.DECODE: 1.5}})


def test_more_engines_never_lower_goodput_and_fewer_than_one_are_left_out() -> None:
    overloaded = job(traffic=plan(25.0, sigma=0.0))
    points = responses(overloaded)
    assert [point.engines for point in points] == [1, 2, 3, 4]
    goodput = [float(point.goodput_requests_per_s.mean()) for point in points]
    assert goodput == sorted(goodput)
    assert goodput[-1] > 2 * goodput[0]
    assert points[0].breached.all()
    assert not points[-1].breached.any()


def test_an_engine_that_is_not_ready_helps_less() -> None:
    overloaded = job(traffic=plan(25.0, sigma=0.0))
    now, later = (responses(overloaded, (1,), ready_s=ready_s)[0] for ready_s in (0.0, 15.0))
    assert (now.goodput_requests_per_s > later.goodput_requests_per_s).all()


def crowd(n: int) -> Presence:
    """`n` unseen requests of the last second."""
    one = np.array([1.0])
    return Presence(
        donors=Donors(np.array([200]), one, one / 10, 3 * one),
        age_s=np.array([0.0, 1.0]),
        expected=np.array([float(n)]),
        shape=np.array([50.0]),
        told_age_s=np.zeros(0),
        told_isl_tokens=np.zeros(0, np.int64),
    )


def test_an_added_engine_and_a_swept_service_start_empty_whoever_is_guessed_to_be_there() -> None:
    crowded = EngineSetup("e0", config(), COST, presence=crowd(40))
    (later,) = responses(job(engines=(crowded,), traffic=plan(3.0)), (1,), ready_s=5.0)
    assert later.engines == 2
    empty = EngineSetup("e0", config(), COST)
    one, two = (
        sweep(job(engines=(engine,), fine_replications=2), [2.0], span_s=10.0).ttft_p95_s for engine in (crowded, empty)
    )
    assert np.array_equal(one, two)


def test_a_drained_engine_finishes_what_it_has() -> None:
    state = EngineState(waiting=tuple(CarriedRequest(100, 1, -(10**12)) for _ in range(20)))
    two = (EngineSetup("e0", config(), COST), EngineSetup("e1", config(engine="e1"), COST, state=state))
    (point,) = responses(job(engines=two), (-1,))
    assert point.engines == 1
    assert (point.goodput_requests_per_s > 0.0).all()


def test_headroom_falls_with_load() -> None:
    targets = (SloTarget(metric="ttft_s", quantile=0.5, limit_s=1.0),)
    quiet, busy, over = (
        burst_headroom_ratio(
            job(traffic=plan(rate), slos=targets, horizons_s=(10.0,)), burst_s=10.0, factors=(1.0, 2.0, 4.0)
        )
        for rate in (2.0, 9.0, 60.0)
    )
    assert quiet > busy >= 1.0
    assert over == 0.0
    with pytest.raises(ValueError, match="targets"):
        burst_headroom_ratio(job(slos=()))


def test_a_configuration_can_be_tried() -> None:
    assert with_config(job(), max_num_seqs=3).engines[0].config.max_num_seqs == 3
    with pytest.raises(TypeError):
        with_config(job(), no_such_limit=3)


def test_mean_interval_covers_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        _, low, high = mean_interval(rng.normal(1.0, 1.0, 6))
        inside += low <= 1.0 <= high
    assert 0.86 * 400 <= inside <= 0.95 * 400
    assert math.isnan(mean_interval(np.array([np.nan]))[0])
    assert mean_interval(np.array([2.0, np.inf]))[0] == 2.0


def test_the_ceiling_is_what_a_server_of_known_speed_can_do() -> None:
    """One request at a time, one output token: the engine is a queue with a service time of the prompt's length."""
    engine = EngineSetup(
        "e0", config(max_num_seqs=1, max_num_batched_tokens=512), FrozenStepCost.uniform(fixed_ps=50 * 10**9)
    )
    traffic = plan(5.0, sigma=0.0)
    ones = replace(traffic.sources, osl_tokens=np.ones(traffic.sources.requests, np.int64))
    curve = sweep(job(engines=(engine,), traffic=replace(traffic, sources=ones)), span_s=40.0)
    assert curve.ceiling()[0] == pytest.approx(20.0, rel=0.02)
    assert 17.0 <= curve.knee_requests_per_s <= 20.5
    assert curve.throughput_requests_per_s.max() <= 20.5
    assert (np.diff(curve.ttft_p95_s.mean(axis=1)) > 0).mean() > 0.8


def test_the_ceiling_does_not_depend_on_the_present_rate() -> None:
    low, high = (
        sweep(job(traffic=plan(rate, sigma=0.0), fine_replications=2), [5.0], span_s=20.0) for rate in (1.0, 12.0)
    )
    assert low.ceiling()[0] == pytest.approx(high.ceiling()[0], rel=0.06)


def test_a_sweep_needs_traffic_and_rates_above_zero() -> None:
    with pytest.raises(ValueError, match="rates"):
        sweep(job(), [0.0, 1.0])
    none = np.zeros(0, np.int64)
    empty = replace(plan(), sources=Sources.plain(np.zeros(0), 0.0, none, none))
    with pytest.raises(ValueError, match="past arrivals"):
        sweep(job(traffic=empty))


def window(n: int = 60) -> Arrivals:
    rng = np.random.default_rng(4)
    return Arrivals.of_one(
        arrived_s=np.sort(rng.uniform(0, 10, n)),
        isl_tokens=rng.integers(50, 300, n),
        osl_tokens=rng.integers(1, 50, n),
    )


def test_a_replayed_window_is_what_the_engine_did() -> None:
    arrivals = window()
    direct = simulate(
        config(),
        COST,
        Workload.from_seconds(
            arrival_s=arrivals.arrived_s, isl_tokens=arrivals.isl_tokens, osl_tokens=arrivals.osl_tokens
        ),
    ).requests
    found = replay_window([EngineSetup("e0", config(), COST)], arrivals, window_s=10.0)
    assert np.array_equal(found.last_token_s, direct.last_token_ps / 1e12)
    assert found.latencies.e2e_s == pytest.approx(direct.last_token_ps / 1e12 - arrivals.arrived_s, abs=1e-9)
    assert 0.0 <= found.saturated_ratio <= 1.0


def test_replay_adds_mean_overheads_and_starts_from_the_live_state() -> None:
    arrivals = window()
    setup = EngineSetup("e0", config(), COST)
    plain = replay_window([setup], arrivals, window_s=10.0)
    overheads = FrontendOverheads(to_client_s=(0.1, 0.3))
    later = replay_window([setup], arrivals, window_s=10.0, overheads=overheads)
    assert later.latencies.ttft_s == pytest.approx(plain.latencies.ttft_s + 0.2)
    queue = EngineState(waiting=tuple(CarriedRequest(250, 20, -(10**12)) for _ in range(40)))
    behind = replay_window([replace(setup, state=queue)], arrivals, window_s=10.0)
    assert (behind.latencies.ttft_s[:5] > plain.latencies.ttft_s[:5] + 0.3).all()


def test_replay_serves_each_request_where_it_was_served() -> None:
    arrivals = window()
    slow = EngineSetup("e1", config(engine="e1"), COST.scaled(3.0))
    served_by = np.arange(60) % 2
    found = replay_window([EngineSetup("e0", config(), COST), slow], arrivals, window_s=10.0, served_by=served_by)
    tpot = found.latencies.tpot_s
    assert np.nanmedian(tpot[served_by == 1]) > 2 * np.nanmedian(tpot[served_by == 0])


def test_replay_counts_what_has_not_ended_as_infinite() -> None:
    stuck = replay_window(
        [EngineSetup("e0", config(), COST.scaled(200.0))], window(), window_s=10.0, closes_after_s=5.0
    )
    assert np.isinf(stuck.latencies.e2e_s).any()
    assert np.isnan(stuck.last_token_s).any()


def test_replay_refuses_what_does_not_fit() -> None:
    setup, arrivals = EngineSetup("e0", config(), COST), window()
    with pytest.raises(ValueError, match="at least one engine"):
        replay_window([], arrivals, window_s=10.0)
    with pytest.raises(ValueError, match="served_by must name"):
        replay_window([setup], arrivals, window_s=10.0, served_by=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"0 \.\. 0"):
        replay_window([setup], arrivals, window_s=10.0, served_by=np.ones(60, np.int64))


def test_prompts_longer_than_the_pool_are_cut_in_a_replay() -> None:
    arrivals = Arrivals.of_one(arrived_s=np.array([0.0]), isl_tokens=np.array([10_000]), osl_tokens=np.array([10_000]))
    small = config(kv_blocks=20)
    found = replay_window([EngineSetup("e0", small, COST)], arrivals, window_s=10.0)
    assert np.isfinite(found.latencies.e2e_s[0])
    assert most_tokens(small) == 305


def test_a_smaller_batch_sends_requests_back_to_wait_and_loses_none() -> None:
    running = tuple(CarriedRequest(isl_tokens=20, osl_tokens=9, arrival_ps=-1, computed_tokens=20) for _ in range(5))
    waiting = (CarriedRequest(isl_tokens=30, osl_tokens=9, arrival_ps=-1),)
    state = EngineState(running=running, waiting=waiting, step_left_ps=1)
    plain = job()
    crowded = replace(plain, engines=(replace(plain.engines[0], state=state),))
    found = with_config(crowded, max_num_seqs=2)
    after = found.engines[0].state
    assert len(after.running) == 2
    assert len(after.waiting) == 4
    assert after.waiting[-1] == waiting[0]
    assert run(found).simulated_requests > 0
    assert with_config(crowded, max_num_seqs=5).engines[0].state == state
