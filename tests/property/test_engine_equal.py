"""Three engines, one semantics: request by request, total by total, sample by sample, to the bit."""

import numpy as np
import pytest
from engine_cases import AT_US, assert_same, crowded_job, random_job
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost
from twin.engine.fast import run_fast
from twin.engine.flight import flight_ps, steps_to_reach
from twin.engine.prepare import prepare
from twin.engine.run import simulate, simulate_many
from twin.engine.types import EngineState, Job, Workload

seeds = st.integers(min_value=0, max_value=2**40)


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_jumping_over_steps_changes_nothing(seed):
    job = random_job(seed)
    assert_same(simulate_many([job], engine="plain")[0], simulate_many([job], engine="simpy")[0])


@given(seeds)
@settings(max_examples=120, deadline=None)
def test_kernel_equals_simpy(seed):
    job = random_job(seed)
    assert_same(simulate_many([job], engine="simpy")[0], simulate_many([job], engine="kernel")[0])


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_blocks_come_back_in_the_order_of_scheduling(seed):
    job = crowded_job(seed)
    plain = simulate_many([job], engine="plain")[0]
    assert_same(plain, simulate_many([job], engine="simpy")[0])
    assert_same(plain, simulate_many([job], engine="kernel")[0])


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_cruising_changes_nothing(seed):
    prepared = prepare(random_job(seed))
    assert_same(run_fast(prepared, cruising=False), run_fast(prepared, cruising=True))


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_jobs_of_one_call_do_not_touch_each_other(seed):
    jobs = [random_job(seed + i, requests=15) for i in range(6)]
    together = simulate_many(jobs, engine="kernel")
    for job, result in zip(jobs, together, strict=True):
        assert result.engine == "kernel"
        assert_same(simulate_many([job], engine="kernel")[0], result)


@pytest.mark.parametrize("engine", ["plain", "simpy", "kernel"])
def test_same_seed_same_bytes(engine):
    jobs = [random_job(seed, warm=True) for seed in range(5)]
    first, second = simulate_many(jobs, engine=engine), simulate_many(jobs, engine=engine)
    for a, b in zip(first, second, strict=True):
        assert_same(a, b)


def test_random_cases_reach_the_rules():
    jobs = [random_job(seed) for seed in range(250)]
    results = simulate_many(jobs, engine="kernel")
    states = np.bincount(np.concatenate([r.requests.status for r in results]), minlength=4)
    assert states.min() > 20
    assert sum(r.preemptions for r in results) > 100
    assert sum(int(r.requests.cached_tokens.sum()) for r in results) > 1000
    assert sum(bool(job.state.running) for job in jobs) > 20
    assert sum(job.noise is not None for job in jobs) > 20


def test_long_decodes_agree_over_a_day():
    # Flights of thousands of steps, over noise epochs and block borders, with a KV cost and without.
    config = EngineConfig(
        deployment="d",
        engine="e",
        at_us=AT_US,
        block_size_tokens=16,
        kv_blocks=4000,
        max_num_seqs=8,
        max_num_batched_tokens=512,
    )
    load = Workload.build(
        arrival_ps=np.arange(6) * 14_000 * 10**12, isl_tokens=np.full(6, 999), osl_tokens=np.full(6, 2_500)
    )
    for per_context in (0, 31_337):
        cost = FrozenStepCost.uniform(
            fixed_ps=10**12, decode_request_ps=10**9 + 7, prefill_token_ps=10**8, decode_context_token_ps=per_context
        )
        job = Job(config, cost, load, EngineState())
        plain, kernel = simulate_many([job], engine="plain")[0], simulate_many([job], engine="kernel")[0]
        assert kernel.end_ps > 70_000 * 10**12
        assert_same(plain, kernel)


@given(
    st.integers(1, 10**13),
    st.one_of(st.just(0), st.integers(1, 10**9)),
    st.integers(-5, 10**17),
)
@settings(max_examples=300, deadline=None)
def test_steps_to_reach_is_the_least(first_ps, growth_ps, span_ps):
    steps = steps_to_reach(span_ps, first_ps, growth_ps)
    assert flight_ps(steps, first_ps, growth_ps) >= span_ps
    assert steps == 1 or flight_ps(steps - 1, first_ps, growth_ps) < span_ps


def test_what_the_kernel_cannot_do_falls_back_and_says_so():
    config = EngineConfig(
        deployment="d",
        engine="e",
        at_us=AT_US,
        block_size_tokens=16,
        kv_blocks=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        prefill_schedule_interval_steps=4,
    )
    load = Workload.build(arrival_ps=[0, 5], isl_tokens=[10, 20], osl_tokens=[3, 4])
    result = simulate(config, FrozenStepCost.uniform(fixed_ps=10), load)
    assert (result.engine, result.fallback) == ("plain", "prefill_schedule_interval_steps > 1")
