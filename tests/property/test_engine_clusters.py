"""Clusters: the three engines agree whatever routes, and the laws of disaggregation and of shared devices hold."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from engine_cases import AT_US, assert_same, random_job
from engine_clusters import assert_same_cluster, random_cluster, random_disaggregated
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.cluster import ClusterEngine, ClusterJob, KvLink, simulate_cluster, simulate_clusters
from twin.engine.routing import RoundRobin
from twin.engine.run import simulate_many
from twin.engine.types import UNDEFINED_PS, Status, Workload

seeds = st.integers(min_value=0, max_value=2**32)
POLICIES = ("round_robin", "weighted", "least_outstanding", "prefix_aware")
CONFIG = EngineConfig(
    deployment="d",
    engine="0",
    at_us=AT_US,
    block_size_tokens=16,
    kv_blocks=4_001,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
)
COST = FrozenStepCost.uniform(
    fixed_ps=5 * 10**9, decode_request_ps=10**8, prefill_token_ps=5 * 10**7, decode_context_token_ps=10**5
)


def named(name, **changes):
    return msgspec.structs.replace(CONFIG, engine=name, **changes)


def traffic(requests=300, rate_per_s=12.0, seed=3):
    rng = np.random.Generator(np.random.Philox(key=seed))
    return Workload.from_seconds(
        arrival_s=np.cumsum(rng.exponential(1 / rate_per_s, requests)),
        isl_tokens=rng.integers(10, 1500, requests),
        osl_tokens=rng.integers(1, 200, requests),
    )


@pytest.mark.parametrize("routing", POLICIES)
@given(seed=seeds)
@settings(max_examples=12, deadline=None)
def test_engines_of_a_cluster_agree(routing, seed):
    job = random_cluster(seed, routing)
    plain, fast = simulate_cluster(job, engine="plain"), simulate_cluster(job, engine="simpy")
    assert_same_cluster(plain, fast)
    kernel = simulate_cluster(job)
    assert (kernel.engine == "kernel") == (routing != "prefix_aware")
    assert_same_cluster(fast, kernel)


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_prefill_and_decode_engines_agree(routing, seed):
    job = random_disaggregated(seed, routing)
    plain, fast = simulate_cluster(job, engine="plain"), simulate_cluster(job, engine="simpy")
    assert (plain.engine, fast.engine) == ("plain", "simpy")
    assert_same_cluster(plain, fast)


def test_kv_that_takes_no_time_never_arrives_at_a_step_that_ends_then():
    # Prefills end at every picosecond, decodes at every fifth, most of which a flight of a full batch jumps over.
    short, long = FrozenStepCost.uniform(fixed_ps=1), FrozenStepCost.uniform(fixed_ps=5)
    cost = FrozenStepCost(prefill=short.prefill, decode=long.decode, mixed=long.mixed)
    load = Workload.build(arrival_ps=np.arange(60), isl_tokens=np.full(60, 3), osl_tokens=np.arange(60) % 9 + 1)
    engines = (
        ClusterEngine(named("0", role="prefill"), cost),
        ClusterEngine(named("1", role="decode", max_num_seqs=1), cost),
    )
    job = ClusterJob(engines, load, "round_robin", link=KvLink(token_ps=0))
    assert_same_cluster(simulate_cluster(job, engine="plain"), simulate_cluster(job, engine="simpy"))


@given(seed=seeds)
@settings(max_examples=25, deadline=None)
def test_a_cluster_of_one_is_that_engine(seed):
    job = random_job(seed)
    alone = simulate_many([job])[0]
    member = ClusterEngine(job.config, job.cost, job.state, job.noise)
    for routing in ("round_robin", "least_outstanding"):
        cluster = ClusterJob((member,), job.workload, routing, grid=job.grid, until_ps=job.until_ps)
        result = simulate_cluster(cluster)
        refused = result.engine_index < 0
        if not refused.any():
            assert_same(alone, result.engines[0])
        np.testing.assert_array_equal(result.requests.last_token_ps, alone.requests.last_token_ps)


@pytest.mark.parametrize("seed", range(4))
def test_cruising_engines_of_a_cluster_agree(seed):
    # First come first served, blocks only counted, nobody samples: the loop over local variables does it all.
    load = traffic(250, 30.0, seed)
    config = named("0", enable_prefix_caching=False, kv_blocks=400, max_num_seqs=12)
    engines = tuple(ClusterEngine(config, COST.scaled(1.0 + 0.3 * i)) for i in range(3))
    job = ClusterJob(engines, load, until_ps=(None, 6 * PS_PER_S)[seed % 2])
    plain, fast = simulate_cluster(job, engine="plain"), simulate_cluster(job, engine="simpy")
    assert_same_cluster(plain, fast)
    assert_same_cluster(fast, simulate_cluster(job))


def test_clusters_of_one_call_do_not_touch_each_other():
    jobs = [random_cluster(seed, POLICIES[seed % 3]) for seed in range(9)]
    for job, together in zip(jobs, simulate_clusters(jobs), strict=True):
        assert_same_cluster(simulate_cluster(job), together)


def test_round_robin_goes_round_and_weights_are_kept():
    load = traffic(900)
    engines = tuple(ClusterEngine(named(str(i)), COST, weight=w) for i, w in enumerate((1.0, 2.0, 3.0)))
    turns = simulate_cluster(ClusterJob(engines, load, "round_robin")).engine_index
    np.testing.assert_array_equal(turns, np.arange(900) % 3)
    shares = simulate_cluster(ClusterJob(engines, load, "weighted")).engine_index
    for stretch in (slice(0, 60), slice(400, 520), slice(0, 900)):
        counts = np.bincount(shares[stretch], minlength=3) / len(shares[stretch])
        np.testing.assert_allclose(counts, [1 / 6, 2 / 6, 3 / 6], atol=0.05)


def test_an_own_policy_routes_and_is_named():
    class Last:
        def choose(self, row, fleet, open_now):
            return open_now[-1]

    engines = tuple(ClusterEngine(named(str(i)), COST) for i in range(3))
    result = simulate_cluster(ClusterJob(engines, traffic(50), Last()))
    assert set(result.engine_index.tolist()) == {2}
    assert (result.engine, result.fallback) == ("simpy", "an own routing policy")
    same = simulate_cluster(ClusterJob(engines, traffic(50), RoundRobin()))
    assert_same_cluster(same, simulate_cluster(ClusterJob(engines, traffic(50), "round_robin")))


def test_a_slower_engine_gets_less_from_least_outstanding():
    engines = (ClusterEngine(named("fast"), COST), ClusterEngine(named("slow"), COST.scaled(3.0)))
    counts = np.bincount(simulate_cluster(ClusterJob(engines, traffic(600, 20.0))).engine_index)
    assert counts[0] > 1.5 * counts[1]


def test_prefix_aware_routing_hits_more_than_least_outstanding():
    rng = np.random.default_rng(1)
    chain = rng.integers(0, 8, 400)
    load = Workload.from_seconds(
        arrival_s=np.cumsum(rng.exponential(0.1, 400)),
        isl_tokens=np.full(400, 800),
        osl_tokens=np.full(400, 20),
        block_hashes=[[int(c) * 100 + i for i in range(40)] for c in chain],
        hash_block_tokens=16,
    )
    engines = tuple(ClusterEngine(named(str(i), kv_blocks=300), COST) for i in range(4))
    hits = {
        routing: int(simulate_cluster(ClusterJob(engines, load, routing)).requests.cached_tokens.sum())
        for routing in ("least_outstanding", "prefix_aware")
    }
    assert hits["prefix_aware"] > 1.3 * hits["least_outstanding"]


def test_engines_take_requests_only_while_they_are_there():
    load = traffic(200)
    middle = int(load.arrival_ps[100])
    engines = (ClusterEngine(named("old"), COST, drain_ps=middle), ClusterEngine(named("new"), COST, from_ps=middle))
    for routing in POLICIES:
        result = simulate_cluster(ClusterJob(engines, load, routing))
        np.testing.assert_array_equal(result.engine_index, np.arange(200) >= 100)
        assert (result.requests.status == Status.FINISHED).all()
    gap = (replace(engines[0], drain_ps=int(load.arrival_ps[50])), engines[1])
    refused = simulate_cluster(ClusterJob(gap, load)).requests.status == Status.REJECTED
    np.testing.assert_array_equal(np.flatnonzero(refused), np.arange(50, 100))


def test_requests_of_an_engine_that_disappears_start_anew_elsewhere():
    load = traffic(200)
    gone = int(load.arrival_ps[100]) + 1
    engines = (ClusterEngine(named("stays"), COST), ClusterEngine(named("goes"), COST, gone_ps=gone))
    result = simulate_cluster(ClusterJob(engines, load))
    assert (result.requests.status == Status.FINISHED).all()
    assert result.fallback == "an engine that disappears"
    late = result.requests.last_token_ps > gone
    assert (result.engine_index[late] == 0).all()
    calm = simulate_cluster(ClusterJob((engines[0], replace(engines[1], gone_ps=None)), load))
    assert result.requests.last_token_ps.sum() > calm.requests.last_token_ps.sum()


def disaggregated(load, link, **changes):
    prefill = ClusterEngine(named("p", role="prefill", **changes), COST)
    decode = ClusterEngine(named("d", role="decode", **changes), COST)
    return ClusterJob((prefill, decode), load, link=link, seed=7)


@pytest.mark.parametrize("overlapped", [False, True])
def test_decode_begins_after_prefill_and_transfer(overlapped):
    load = traffic(150, 6.0)
    link = KvLink(token_ps=10**8, fixed_ps=10**9, cv=0.3, overlapped=overlapped)
    result = simulate_cluster(disaggregated(load, link))
    assert result.fallback == "prefill/decode disaggregation"
    assert (result.requests.status == Status.FINISHED).all()
    assert set(result.prefill_engine_index.tolist()) == {0}
    assert set(result.engine_index.tolist()) == {1}
    transfer = link.transfers_ps(load.isl_tokens, 7)
    prefilled = result.engines[0].requests.first_token_ps
    begun = result.requests.scheduled_ps if overlapped else prefilled
    assert (result.requests.first_token_ps > np.maximum(begun + transfer, prefilled)).all()
    # The decode engine computes one prompt token of each request, the prefill engine all of it.
    assert result.engines[1].work[:, 2].sum() == load.requests
    assert result.engines[0].work[:, 2].sum() == load.isl_tokens.sum()


def test_transfer_times_have_the_mean_and_variance_given():
    link = KvLink(token_ps=1000, fixed_ps=500_000, cv=0.4)
    drawn = link.transfers_ps(np.full(20_000, 2_000), seed=1)
    assert drawn.mean() == pytest.approx(2_500_000, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(0.4, rel=0.05)


def test_a_slower_link_delays_only_the_first_token():
    load = traffic(40, 0.2)
    near = simulate_cluster(disaggregated(load, KvLink(token_ps=0))).requests
    far = simulate_cluster(disaggregated(load, KvLink(token_ps=0, fixed_ps=PS_PER_S // 10))).requests
    np.testing.assert_array_equal(far.first_token_ps - near.first_token_ps, PS_PER_S // 10)
    np.testing.assert_array_equal(far.last_token_ps - far.first_token_ps, near.last_token_ps - near.first_token_ps)


def test_sharing_a_device_slows_both_only_while_both_are_busy():
    one = Workload.build(arrival_ps=[0, 0], isl_tokens=[100, 100], osl_tokens=[51, 51])
    apart = tuple(ClusterEngine(named(str(i)), COST) for i in range(2))
    ends = {}
    for ratio in (0.0, 0.5, 1.0):
        engines = tuple(replace(engine, device="gpu0", sharing_ratio=ratio) for engine in apart)
        result = simulate_cluster(ClusterJob(engines, one, "round_robin"))
        assert result.fallback == "engines that share a device"
        ends[ratio] = result.requests.last_token_ps.astype(float)
    alone = simulate_cluster(ClusterJob(apart, one, "round_robin")).requests.last_token_ps.astype(float)
    np.testing.assert_allclose(ends[0.0], alone, rtol=1e-9)
    np.testing.assert_allclose(ends[0.5], 1.5 * alone, rtol=1e-9)
    np.testing.assert_allclose(ends[1.0], 2.0 * alone, rtol=1e-9)
    # Far apart in time they never meet.
    later = Workload.build(arrival_ps=[0, 10**15], isl_tokens=[100, 100], osl_tokens=[51, 51])
    shared = tuple(replace(engine, device="gpu0") for engine in apart)
    met = simulate_cluster(ClusterJob(shared, later, "round_robin")).requests
    np.testing.assert_allclose(met.last_token_ps - later.arrival_ps, alone, rtol=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines": ()}, "cluster.engines must not be empty"),
        ({"routing": "magic"}, "routing must be one of"),
        ({"until_ps": 0}, "cluster.until_ps"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        ClusterJob(**({"engines": (ClusterEngine(CONFIG, COST),), "workload": traffic(3)} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"from_ps": -1}, "from_ps"),
        ({"from_ps": 10, "drain_ps": 5}, "drain_ps"),
        ({"sharing_ratio": 1.5}, "sharing_ratio"),
        ({"weight": float("nan")}, "weight"),
    ],
)
def test_an_engine_that_cannot_be_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        ClusterEngine(CONFIG, COST, **changes)


def test_roles_must_fit_together():
    with pytest.raises(ValueError, match="both prefill and decode"):
        ClusterJob((ClusterEngine(named("p", role="prefill"), COST),), traffic(3))
    with pytest.raises(ValueError, match=r"cluster\.link"):
        ClusterJob(disaggregated(traffic(3), KvLink(token_ps=1)).engines, traffic(3))
    assert UNDEFINED_PS < 0
