"""Laws of forecast jobs on random engines, traffic and scenarios."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_jobs import COST, config, job, plan

from twin.cost.noise import RoleNoise, StepNoise
from twin.engine.run import simulate
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup, FrontendOverheads, SimulationJob
from twin.metrics import METRICS
from twin.replicate import frontend_of, workload_of
from twin.simulate import run
from twin.split import joined, split
from twin.traffic.draw import draw
from twin.traffic.scenarios import BASELINE, BURST, CACHE_FLUSH, LONG_TAIL, Scenario

SEEDS = st.integers(0, 2**32 - 1)
FLAT = RoleNoise(ratio_quantiles=(1.0,) * 9, steps=1.0)


def random_job(seed: int) -> SimulationJob:
    rng = np.random.default_rng(seed)
    engines = tuple(
        EngineSetup(
            f"e{i}",
            config(
                engine=f"e{i}",
                kv_blocks=int(rng.integers(60, 900)),
                max_num_seqs=int(rng.integers(2, 30)),
                enable_prefix_caching=bool(rng.integers(2)),
            ),
            COST.scaled(float(rng.uniform(0.3, 2.0))),
            StepNoise(60.0, 0.05, 0.1, 0.4, 5.0, FLAT, FLAT, FLAT) if rng.integers(2) else None,
            EngineState(waiting=tuple(CarriedRequest(50, 1, -(10**11)) for _ in range(int(rng.integers(0, 8))))),
        )
        for i in range(int(rng.integers(1, 4)))
    )
    scenarios = [BASELINE, BURST, LONG_TAIL, CACHE_FLUSH, Scenario("shift", isl_factor=1.5, osl_factor=0.5)]
    first = int(rng.integers(0, 4))
    return job(
        engines=engines,
        traffic=plan(float(rng.uniform(0.2, 8.0)), sigma=float(rng.uniform(0.0, 0.5)), seed=seed % 1_000),
        scenarios=tuple(scenarios[first : first + 2]),
        horizons_s=(4.0, 8.0),
        arrivals_beyond_s=2.0,
        closes_after_s=float(rng.uniform(1.0, 20.0)),
        overheads=FrontendOverheads(to_engine_s=(0.0, 0.01, 0.05), to_client_s=(0.002, 0.004)),
        root_seed=seed,
    )


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_coarse_is_a_prefix_of_fine_for_any_job(seed: int) -> None:
    asked = random_job(seed)
    coarse, fine = run(asked.at_phase("coarse")), run(asked)
    for short, long in zip(coarse.scenarios, fine.scenarios, strict=True):
        for few, many in zip(short.horizons, long.horizons, strict=True):
            for name in few.__slots__:
                if name != "horizon_s":
                    part = getattr(many, name)[: coarse.replications]
                    assert np.array_equal(getattr(few, name), part, equal_nan=name != "breached")
        assert np.array_equal(short.engine_busy_ratio, long.engine_busy_ratio[: coarse.replications])


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 5))
def test_shares_together_are_the_whole(seed: int, parts: int) -> None:
    asked = replace(random_job(seed), coarse_replications=3)
    shares = split(asked, parts)
    assert len(shares) == min(parts, 3)
    whole, together = run(asked), joined([run(share) for share in shares])
    assert together.replications == whole.replications == 4
    assert together.simulated_requests == whole.simulated_requests
    for one, two in zip(whole.scenarios, together.scenarios, strict=True):
        assert one.curves.kv_ratio.tobytes() == two.curves.kv_ratio.tobytes()
        assert one.engine_busy_ratio.tobytes() == two.engine_busy_ratio.tobytes()
        for few, many in zip(one.horizons, two.horizons, strict=True):
            for name in few.__slots__:
                assert np.array(getattr(few, name)).tobytes() == np.array(getattr(many, name)).tobytes()


@pytest.mark.parametrize("scenarios", range(1, 6))
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 9))
def test_shares_are_as_even_as_scenarios_allow(scenarios: int, parts: int, replications: int) -> None:
    named = tuple(Scenario(str(number)) for number in range(scenarios))
    asked = job(scenarios=named, coarse_replications=replications, fine_replications=replications)
    shares = split(asked, parts)
    runs = [[len(share.replication_numbers(at)) for at in range(scenarios)] for share in shares]
    assert min(min(of_share) for of_share in runs) >= 1
    assert [sum(of_scenario) for of_scenario in zip(*runs, strict=True)] == [replications] * scenarios
    totals = [sum(of_share) for of_share in runs]
    assert max(totals) - min(totals) <= scenarios % len(shares)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_numbers_are_ordered_and_within_their_bounds(seed: int) -> None:
    result = run(random_job(seed).at_phase("coarse"))
    for scenario in result.scenarios:
        for horizon in scenario.horizons:
            latency = horizon.latency_s[~np.isnan(horizon.latency_s).any(axis=(1, 2))]
            assert (latency[..., :-1] <= latency[..., 1:]).all()
            ttft, e2e = latency[:, METRICS.index("ttft_s")], latency[:, METRICS.index("e2e_s")]
            assert (ttft <= e2e).all()
            assert (horizon.goodput_requests_per_s * horizon.horizon_s <= horizon.arrivals + 1e-9).all()
            success = horizon.success_ratio[~np.isnan(horizon.success_ratio)]
            assert ((success >= 0.0) & (success <= 1.0)).all()
            assert ((horizon.kv_peak_ratio >= 0.0) & (horizon.kv_peak_ratio <= 1.0)).all()
            assert ((horizon.busy_ratio >= 0.0) & (horizon.busy_ratio <= 1.0)).all()
        nested = [horizon.arrivals for horizon in scenario.horizons]
        assert (nested[0] <= nested[1]).all()
        share = scenario.requests_ratio.sum(axis=1)
        assert (np.isclose(share, 1.0) | (share == 0.0)).all()


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_a_result_depends_on_its_job_alone(seed: int) -> None:
    asked = random_job(seed).at_phase("coarse")
    one = run(asked)
    run(random_job(seed + 1).at_phase("coarse"))
    two = run(replace(asked))
    for a, b in zip(one.scenarios, two.scenarios, strict=True):
        for x, y in zip(a.horizons, b.horizons, strict=True):
            assert x.latency_s.tobytes() == y.latency_s.tobytes()


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_littles_law_holds_on_a_drained_run(seed: int) -> None:
    """Time integral of requests in the engine = sum of their times in it, for an engine that ends empty."""
    rng = np.random.default_rng(seed)
    asked = job(
        traffic=plan(float(rng.uniform(1.0, 6.0)), seed=seed % 1_000),
        horizons_s=(10.0,),
        arrivals_beyond_s=0.0,
        grid_s=0.01,
        closes_after_s=30.0,
    )
    found = run(asked).scenario()
    inside = (found.curves.waiting_requests + found.curves.running_requests).sum(axis=1) * 0.01
    horizon = found.horizons[0]
    assert (horizon.success_ratio == 1.0).all()
    latencies = _sojourn_s(asked)
    assert np.allclose(inside, latencies, rtol=0.05, atol=0.1)


def _sojourn_s(asked: SimulationJob) -> np.ndarray:
    """Sum of E2E over the requests of each replication, from the same draws run one by one."""
    arrivals = draw(
        asked.traffic, asked.streams, replications=asked.replications, span_s=asked.arrivals_span_s, scenario=BASELINE
    )
    into_ps = frontend_of(arrivals, asked.overheads, asked.streams).engine_arrival_ps
    totals = []
    for low, high in zip(arrivals.offsets[:-1].tolist(), arrivals.offsets[1:].tolist(), strict=True):
        setup = asked.engines[0]
        done = simulate(
            setup.config, setup.cost, workload_of(arrivals, into_ps, slice(low, high), setup.config), engine="simpy"
        ).requests
        totals.append(float((done.last_token_ps - into_ps[low:high]).sum()) / 1e12)
    return np.array(totals)
