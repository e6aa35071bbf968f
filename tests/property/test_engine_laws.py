"""Laws of a simulated engine: nothing lost, nothing before its time, queues as theory says."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from engine_cases import AT_US, random_job
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.plain import PlainEngine
from twin.engine.prepare import prepare
from twin.engine.run import simulate, simulate_many
from twin.engine.types import LATEST_PS, UNDEFINED_PS, EngineState, Grid, Job, Status, Workload

seeds = st.integers(min_value=0, max_value=2**40)

CONFIG = EngineConfig(
    deployment="d",
    engine="e",
    at_us=AT_US,
    block_size_tokens=16,
    kv_blocks=100_001,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)
COST = FrozenStepCost.uniform(
    fixed_ps=5 * 10**9,
    decode_request_ps=10**8,
    prefill_token_ps=10**8,
    prefill_attention_pair_ps=10**4,
    decode_context_token_ps=10**5,
)


def poisson(rate_per_s, requests, seed):
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.cumsum(rng.exponential(1 / rate_per_s, requests)), rng


@given(seeds)
@settings(max_examples=120, deadline=None)
def test_requests_are_conserved(seed):
    job = random_job(seed)
    result = simulate_many([job], engine="kernel")[0]
    for outcome, isl in ((result.requests, job.workload.isl_tokens), (result.carried, None)):
        ended = outcome.status == Status.FINISHED
        assert ((outcome.last_token_ps != UNDEFINED_PS) == ended).all()
        if isl is not None:
            assert (outcome.generated_tokens[ended] == job.workload.osl_tokens[ended]).all()
            refused = outcome.status == Status.REJECTED
            assert (outcome.queued_ps[refused] == UNDEFINED_PS).all()
    if job.until_ps is None:
        assert not (result.requests.status == Status.UNFINISHED).any()
        assert not (result.carried.status == Status.UNFINISHED).any()


@given(seeds)
@settings(max_examples=120, deadline=None)
def test_causality(seed):
    job = random_job(seed)
    out = simulate_many([job], engine="kernel")[0].requests
    taken = out.queued_ps != UNDEFINED_PS
    assert (out.queued_ps[taken] >= job.workload.arrival_ps[taken]).all()
    ran = out.scheduled_ps != UNDEFINED_PS
    assert (out.scheduled_ps[ran] >= out.queued_ps[ran]).all()
    began = out.first_token_ps != UNDEFINED_PS
    assert (out.first_token_ps[began] > out.scheduled_ps[began]).all()
    done = out.status == Status.FINISHED
    assert (out.last_token_ps[done] >= out.first_token_ps[done]).all()
    timeout = job.workload.timeout_ps
    limited = done & (timeout > 0)
    assert (out.last_token_ps[limited] <= (job.workload.arrival_ps + timeout)[limited]).all()


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_blocks_and_batches_stay_within_limits(seed):
    job = random_job(seed)
    usable = job.config.kv_blocks - job.config.reserved_blocks
    grid = Grid(step_ps=max(job.grid.step_ps, 1) if job.grid else 3, points=200)
    result = simulate_many([replace(job, grid=grid)], engine="kernel")[0]
    timeline = result.timeline
    assert timeline is not None
    assert timeline.kv_used_blocks.min() >= 0
    assert timeline.kv_used_blocks.max() <= usable
    assert timeline.running.max() <= job.config.max_num_seqs
    assert (np.diff(timeline.busy_ps) >= 0).all()
    assert (timeline.saturated_ps <= timeline.busy_ps).all()
    steps, budget = result.work[:, 0], job.config.max_num_batched_tokens
    assert (result.work[:, 2] + result.work[:, 4] <= steps * budget).all()


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_every_block_is_free_again_when_all_have_left(seed):
    import simpy

    job = replace(random_job(seed), until_ps=None)
    env = simpy.Environment(initial_time=0)
    engine = PlainEngine(env, prepare(job))
    env.process(engine.run())
    env.run()
    memory = engine.scheduler.memory
    assert memory.free == memory.total
    assert not engine.scheduler.running
    assert not len(engine.scheduler.waiting)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_every_computed_token_is_accounted_for(seed):
    # Without preemption a prompt is computed once, less its cached part, and each further token is one decode.
    job = random_job(seed, warm=False)
    job = replace(job, until_ps=None, config=msgspec.structs.replace(job.config, kv_blocks=100_000))
    result = simulate_many([job], engine="kernel")[0]
    out = result.requests
    assert result.preemptions == 0
    if (out.status == Status.TIMED_OUT).any():
        return
    done = out.status == Status.FINISHED
    assert result.prefill_tokens == int((job.workload.isl_tokens - out.cached_tokens)[done].sum())
    assert int(result.work[:, 4].sum()) == int((job.workload.osl_tokens - 1)[done].sum())


def test_doubling_every_cost_doubles_every_latency_of_an_idle_engine():
    # Each request has left before the next one arrives.
    load = Workload.build(
        arrival_ps=np.arange(20) * 100 * PS_PER_S, isl_tokens=np.arange(1, 21) * 97, osl_tokens=np.arange(1, 21) * 13
    )
    once, twice = simulate(CONFIG, COST, load).requests, simulate(CONFIG, COST.scaled(2.0), load).requests
    for name in ("first_token_ps", "last_token_ps"):
        a, b = getattr(once, name) - load.arrival_ps, getattr(twice, name) - load.arrival_ps
        np.testing.assert_array_equal(b, 2 * a)


def test_events_after_an_instant_change_nothing_before_it():
    arrivals, rng = poisson(6.0, 400, seed=5)
    isl, osl = rng.integers(1, 2000, 400), rng.integers(1, 300, 400)
    load = Workload.from_seconds(arrival_s=arrivals, isl_tokens=isl, osl_tokens=osl)
    cut = int(np.searchsorted(arrivals, 30.0))
    other = Workload.from_seconds(arrival_s=arrivals[:cut], isl_tokens=isl[:cut], osl_tokens=osl[:cut])
    grid = Grid(step_ps=PS_PER_S // 4, points=120)
    whole, part = simulate(CONFIG, COST, load, grid=grid), simulate(CONFIG, COST, other, grid=grid)
    before = whole.requests.first_token_ps[:cut] < 30 * PS_PER_S
    np.testing.assert_array_equal(
        whole.requests.first_token_ps[:cut][before], part.requests.first_token_ps[:cut][before]
    )
    assert whole.timeline is not None
    assert part.timeline is not None
    np.testing.assert_array_equal(whole.timeline.kv_used_blocks, part.timeline.kv_used_blocks)


def test_littles_law_on_a_drained_run():
    arrivals, rng = poisson(8.0, 3000, seed=11)
    load = Workload.from_seconds(
        arrival_s=arrivals, isl_tokens=rng.integers(1, 1500, 3000), osl_tokens=rng.integers(1, 200, 3000)
    )
    points = 20_000
    result = simulate(
        CONFIG, COST, load, grid=Grid(step_ps=int(arrivals[-1] * 1.05 * PS_PER_S) // points, points=points)
    )
    assert result.timeline is not None
    present = (result.timeline.waiting + result.timeline.running).mean() * result.timeline.step_ps * points
    spent = (result.requests.last_token_ps - result.requests.queued_ps).sum()
    assert present == pytest.approx(spent, rel=2e-3)


def queue_config():
    # One sequence at a time, whole prompts at once: the engine is a single server.
    return msgspec.structs.replace(
        CONFIG, max_num_seqs=1, max_num_batched_tokens=1_000_000, enable_prefix_caching=False
    )


def waiting_s(load, cost):
    result = simulate(queue_config(), cost, load)
    return (result.requests.scheduled_ps - load.arrival_ps) / PS_PER_S


def interval(means):
    # Half width of the 99.9 % confidence interval of the mean over independent runs (normal, enough runs).
    return 3.29 * np.std(means, ddof=1) / np.sqrt(len(means))


@pytest.mark.parametrize("load_ratio", [0.3, 0.7])
def test_m_d_1_waiting_time(load_ratio):
    # Pollaczek-Khinchine with constant service: W = rho * s / (2 * (1 - rho)).
    service_s = 0.01
    cost = FrozenStepCost.uniform(fixed_ps=int(service_s * PS_PER_S))
    means = []
    for seed in range(24):
        arrivals, _ = poisson(load_ratio / service_s, 6000, seed)
        ones = np.ones(6000, np.int64)
        load = Workload.from_seconds(arrival_s=arrivals, isl_tokens=ones, osl_tokens=ones)
        means.append(waiting_s(load, cost)[500:].mean())
    expected = load_ratio * service_s / (2 * (1 - load_ratio))
    assert abs(np.mean(means) - expected) < interval(means)
    assert interval(means) < 0.1 * expected


@pytest.mark.parametrize("load_ratio", [0.3, 0.7])
def test_m_m_1_waiting_time(load_ratio):
    # Service in proportion to an exponential prompt: W = rho * s / (1 - rho).
    service_s, tokens = 0.01, 10_000
    cost = FrozenStepCost.uniform(fixed_ps=1, prefill_token_ps=int(service_s / tokens * PS_PER_S))
    means = []
    for seed in range(24):
        arrivals, rng = poisson(load_ratio / service_s, 6000, seed)
        prompts = np.maximum(np.rint(rng.exponential(tokens, 6000)), 1)
        load = Workload.from_seconds(arrival_s=arrivals, isl_tokens=prompts, osl_tokens=np.ones(6000, np.int64))
        means.append(waiting_s(load, cost)[500:].mean())
    expected = load_ratio * service_s / (1 - load_ratio)
    assert abs(np.mean(means) - expected) < interval(means)
    assert interval(means) < 0.15 * expected


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_nothing_starts_at_or_after_the_end_told(seed):
    job = random_job(seed)
    whole = simulate_many([replace(job, until_ps=None, grid=None)], engine="kernel")[0]
    if whole.end_ps < 3:
        return
    until = whole.end_ps // 2 + 1
    part = simulate_many([replace(job, until_ps=until, grid=None)], engine="kernel")[0]
    early = (whole.requests.last_token_ps != UNDEFINED_PS) & (whole.requests.last_token_ps < until)
    np.testing.assert_array_equal(part.requests.last_token_ps[early], whole.requests.last_token_ps[early])
    assert (part.requests.scheduled_ps < until).all()


def test_a_state_in_the_middle_of_a_run_leads_to_its_end():
    # Cut a run of two requests at a step boundary by hand: same end as the whole run.
    from twin.engine.types import CarriedRequest

    load = Workload.build(arrival_ps=[0, 0], isl_tokens=[100, 50], osl_tokens=[30, 40])
    whole = simulate(CONFIG, COST, load)
    first_step = int(whole.requests.first_token_ps[0])
    running = tuple(
        CarriedRequest(
            isl_tokens=isl,
            osl_tokens=osl,
            arrival_ps=-first_step,
            computed_tokens=isl,
            generated_tokens=1,
            scheduled_ps=-first_step,
            first_token_ps=0,
        )
        for isl, osl in ((100, 30), (50, 40))
    )
    nothing = Workload.build(arrival_ps=[], isl_tokens=[], osl_tokens=[])
    rest = simulate_many([Job(CONFIG, COST, nothing, EngineState(running=running))])[0]
    np.testing.assert_array_equal(rest.carried.last_token_ps + first_step, whole.requests.last_token_ps)
    assert whole.end_ps < LATEST_PS
