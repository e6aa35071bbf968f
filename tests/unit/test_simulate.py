"""A forecast job end to end on small engines: what its numbers mean, and what they may not depend on."""

import math
import pickle
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from made_jobs import COST, config, job, plan

from schemas.slos import SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import RoleNoise, StepNoise
from twin.engine.cluster import KvLink
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup, FrontendOverheads, SimulationResult
from twin.replicate import frontend_of, most_tokens, noise_of, state_of
from twin.simulate import run
from twin.split import joined, split
from twin.traffic.draw import draw
from twin.traffic.forecast import RateForecast
from twin.traffic.scenarios import BASELINE, BURST, CACHE_FLUSH, LONG_TAIL, Scenario

FLAT = RoleNoise(ratio_quantiles=(1.0,) * 9, steps=1.0)


def noise(window: float = 0.1, epoch: float = 0.05, rho: float = 0.5) -> StepNoise:
    return StepNoise(
        horizon_s=60.0,
        window_sigma_ratio=window,
        epoch_sigma_ratio=epoch,
        epoch_rho=rho,
        windows=10.0,
        prefill=FLAT,
        decode=FLAT,
        mixed=FLAT,
    )


def state(waiting: int = 0, running: int = 0) -> EngineState:
    return EngineState(
        running=tuple(
            CarriedRequest(100, 11, -(10**12), computed_tokens=109, generated_tokens=10, first_token_ps=-(10**11))
            for _ in range(running)
        ),
        waiting=tuple(CarriedRequest(200, 1, -(10**12)) for _ in range(waiting)),
    )


def fingerprint(result: SimulationResult) -> list[bytes]:
    return [
        np.asarray(getattr(horizon, name)).tobytes()
        for scenario in result.scenarios
        for horizon in scenario.horizons
        for name in horizon.__slots__
    ]


def test_the_same_job_gives_the_same_bytes_also_after_pickling() -> None:
    asked = job(
        engines=(EngineSetup("e0", config(), COST, noise(), state(2, 3)),), scenarios=(BASELINE, BURST, LONG_TAIL)
    )
    found = run(asked)
    assert fingerprint(run(pickle.loads(pickle.dumps(asked)))) == fingerprint(found)
    assert fingerprint(pickle.loads(pickle.dumps(found))) == fingerprint(found)


def test_coarse_is_a_prefix_of_fine() -> None:
    asked = job(engines=(EngineSetup("e0", config(), COST, noise(), state(2, 3)),), scenarios=(BASELINE, BURST))
    coarse, fine = run(asked.at_phase("coarse")), run(asked)
    assert (coarse.replications, fine.replications) == (2, 4)
    for short, long in zip(coarse.scenarios, fine.scenarios, strict=True):
        assert np.array_equal(short.horizons[0].latency_s, long.horizons[0].latency_s[:2])
        assert np.array_equal(short.curves.waiting_requests, long.curves.waiting_requests[:2])
        assert np.array_equal(short.horizons[0].breached, long.horizons[0].breached[:2])


def test_a_longer_horizon_changes_no_shorter_one() -> None:
    """Arrivals are continued, not drawn anew, and the shorter window closes at its own time."""
    busy = plan(30.0)
    short = run(job(traffic=busy, horizons_s=(10.0,), arrivals_beyond_s=20.0, closes_after_s=2.0)).scenario()
    both = run(job(traffic=busy, horizons_s=(10.0, 20.0), arrivals_beyond_s=10.0, closes_after_s=2.0)).scenario()
    assert (short.horizon(10.0).success_ratio < 1.0).all()
    assert np.array_equal(short.horizon(10.0).latency_s, both.horizon(10.0).latency_s)
    assert np.array_equal(short.horizon(10.0).arrivals, both.horizon(10.0).arrivals)


def test_scenarios_and_candidates_share_their_random_numbers() -> None:
    alone, among = run(job()), run(job(scenarios=(LONG_TAIL, BASELINE)))
    assert np.array_equal(alone.scenario().horizons[0].latency_s, among.scenario().horizons[0].latency_s)
    wider = replace(job().engines[0], config=config(max_num_seqs=32))
    assert np.array_equal(
        run(job(engines=(wider,))).scenario().horizons[0].arrivals, alone.scenario().horizons[0].arrivals
    )


def test_twice_the_cost_is_twice_the_latency_of_an_idle_engine() -> None:
    traffic = plan(0.1, sigma=0.0)
    evenly = replace(traffic, sources=replace(traffic.sources, at=np.arange(traffic.sources.requests) + 0.5))
    quiet = job(traffic=replace(evenly, block=20.0), horizons_s=(150.0,))
    slow = replace(quiet, engines=(replace(quiet.engines[0], cost=COST.scaled(2.0)),))
    one, two = run(quiet).scenario().horizons[0], run(slow).scenario().horizons[0]
    assert two.latency_s == pytest.approx(2.0 * one.latency_s, rel=1e-9)


def test_overheads_are_added_outside_the_engine() -> None:
    quiet = job(traffic=plan(0.1, sigma=0.0), horizons_s=(100.0,))
    slower = replace(quiet, overheads=FrontendOverheads(to_engine_s=(0.1,), to_client_s=(0.05,)))
    one, two = run(quiet).scenario().horizons[0], run(slower).scenario().horizons[0]
    assert two.latency("ttft_s", 0.5) == pytest.approx(one.latency("ttft_s", 0.5) + 0.15, abs=1e-9)
    assert two.latency("e2e_s", 0.5) == pytest.approx(one.latency("e2e_s", 0.5) + 0.15, abs=1e-9)
    assert two.latency("tpot_s", 0.5) == pytest.approx(one.latency("tpot_s", 0.5), abs=1e-9)


def test_random_overheads_keep_the_order_of_the_frontend() -> None:
    spread = FrontendOverheads(to_engine_s=(0.0, 0.01, 1.0))
    arrivals = draw(plan(), job().streams, replications=3, span_s=20.0, scenario=BASELINE)
    into_ps = frontend_of(arrivals, spread, job().streams).engine_arrival_ps
    delays_s = into_ps / 1e12 - arrivals.arrived_s
    assert delays_s.min() >= -1e-9
    assert delays_s.max() == pytest.approx(1.0)
    for low, high in pairwise(arrivals.offsets.tolist()):
        assert (np.diff(into_ps[low:high]) >= 0).all()
    found = run(job(overheads=spread)).scenario().horizons[0]
    assert (found.latency("ttft_s", 0.5) > run(job()).scenario().horizons[0].latency("ttft_s", 0.5)).all()


def test_requests_in_flight_come_first() -> None:
    loaded = job(engines=(EngineSetup("e0", config(), COST, state=state(waiting=60)),))
    empty, full = run(job()).scenario().horizons[0], run(loaded).scenario().horizons[0]
    assert (full.latency("ttft_s", 0.95) > empty.latency("ttft_s", 0.95) + 0.2).all()
    assert (full.throughput_requests_per_s > empty.throughput_requests_per_s).all()
    assert (full.waiting_peak_requests >= 40).all()


def test_remaining_lengths_of_live_requests_are_drawn_not_read() -> None:
    setup = EngineSetup("e0", config(), COST, state=state(waiting=3, running=5))
    lengths = plan().lengths
    states = [state_of(setup, lengths, job().streams, replication, False) for replication in range(5)]
    drawn = {request.osl_tokens for each in states for request in each.running}
    assert len(drawn) > 5
    assert all(request.osl_tokens > request.generated_tokens for each in states for request in each.running)
    lied = replace(setup, state=EngineState(running=tuple(replace(r, osl_tokens=99) for r in setup.state.running)))
    relied = replace(setup, state=EngineState(running=setup.state.running))
    assert state_of(lied, lengths, job().streams, 1, False) == state_of(relied, lengths, job().streams, 1, False)


def test_lengths_are_cut_to_what_the_engine_holds() -> None:
    small = config(kv_blocks=41)
    assert most_tokens(small) == 641
    assert most_tokens(config(max_model_len_tokens=100)) == 100
    assert most_tokens(config(enable_chunked_prefill=False)) == 257
    found = run(job(engines=(EngineSetup("e0", small, COST, state=state(2, 2)),), scenarios=(LONG_TAIL,)))
    assert found.scenario("long_tail").horizons[0].success_ratio.min() > 0.9


def test_overload_is_infinite_where_the_window_closes() -> None:
    asked = job(traffic=plan(80.0), closes_after_s=5.0, arrivals_beyond_s=0.0)
    found = run(asked).scenario().horizons[0]
    assert np.isinf(found.latency("e2e_s", 0.99)).all()
    assert (found.success_ratio < 0.9).all()
    assert found.breached.all()
    assert (found.goodput_requests_per_s < found.throughput_requests_per_s).all()
    assert (found.busy_ratio > 0.9).all()


def test_refused_requests_lower_success_and_have_no_latency() -> None:
    limited = EngineSetup("e0", config(max_queued_requests=3), COST)
    found = run(job(engines=(limited,), traffic=plan(40.0))).scenario().horizons[0]
    assert (found.success_ratio < 0.9).all()
    assert np.isfinite(found.latency("ttft_s", 0.95)).all()


def test_no_traffic_is_a_forecast_too() -> None:
    found = run(job(traffic=replace(plan(), rate=RateForecast.steady(0.0)))).scenario().horizons[0]
    assert found.arrivals.tolist() == [0] * 4
    assert np.isnan(found.latency_s).all()
    assert np.isnan(found.success_ratio).all()
    assert not found.breached.any()
    assert found.goodput_requests_per_s.tolist() == [0.0] * 4


def test_throughput_and_tokens_are_those_of_the_traffic_when_nothing_queues() -> None:
    found = run(job(horizons_s=(120.0,), traffic=plan(2.0, sigma=0.0))).scenario().horizons[0]
    assert found.throughput_requests_per_s == pytest.approx(found.arrivals / 120.0, rel=0.05)
    assert found.output_tokens_per_s == pytest.approx(31.0 * found.arrivals / 120.0, rel=0.1)
    assert (found.success_ratio == 1.0).all()


def test_targets_of_a_traffic_class_look_at_that_class_alone() -> None:
    traffic = plan(4.0)
    classes = np.arange(traffic.sources.requests) % 2
    traffic = replace(traffic, sources=replace(traffic.sources, traffic_class=classes), classes=("chat", "batch"))
    targets = tuple(
        SloTarget(metric="ttft_s", quantile=0.5, limit_s=limit_s, traffic_class=name)
        for name, limit_s in (("chat", 1e-6), ("batch", 1e5), ("nobody", 1e-6))
    )
    found = run(job(traffic=traffic, slos=targets)).scenario().horizons[0]
    assert found.breached.tolist() == [[True, False, False]] * 4
    assert found.goodput_requests_per_s == pytest.approx(found.arrivals / 20.0 / 2, rel=0.4)


def test_a_flushed_cache_costs_prefill_again() -> None:
    hashes = tuple(range(1, 26))
    traffic = plan(2.0, sigma=0.0)
    n = traffic.sources.requests
    sources = replace(
        traffic.sources,
        isl_tokens=np.full(n, 410),
        hash_offsets=np.arange(n + 1) * 25,
        hash_values=np.tile(np.array(hashes), n),
        hash_first=np.full(n * 25, -1),
    )
    waiting = (CarriedRequest(20, 1, -(10**12)),)
    cached = EngineState(waiting=waiting, cached_hashes=hashes, hash_block_tokens=16)
    engine = EngineSetup("e0", config(enable_prefix_caching=True), COST, state=cached)
    asked = job(
        engines=(engine,),
        traffic=replace(traffic, sources=sources, hash_block_tokens=16),
        scenarios=(BASELINE, CACHE_FLUSH),
        horizons_s=(2.0,),
    )
    result = run(asked)
    warm, cold = (result.scenario(name).horizons[0].latency("ttft_s", 0.95) for name in ("baseline", "cache_flush"))
    assert (cold > warm + 0.02).all()


def test_noise_moves_whole_windows_and_averages_to_one() -> None:
    streams = job().streams
    factors = np.array([noise_of(noise(), streams, r, "e0").multipliers[1] / 65_536 for r in range(200)])  # type: ignore[union-attr]
    assert float(factors.mean()) == pytest.approx(1.0, abs=0.03)
    assert float(np.log(factors.mean(axis=1)).std()) == pytest.approx(0.1, rel=0.2)
    wander = np.log(factors) - np.log(factors).mean(axis=1, keepdims=True)
    assert float(np.mean(wander[:, 1:] * wander[:, :-1]) / np.mean(wander**2)) == pytest.approx(0.5, abs=0.1)
    assert noise_of(None, streams, 0, "e0") is None
    assert (
        noise_of(noise(), streams, 0, "e0").multipliers.tolist()
        != noise_of(noise(), streams, 0, "e1").multipliers.tolist()
    )  # type: ignore[union-attr]


def test_engines_share_requests_while_they_are_available() -> None:
    two = (EngineSetup("e0", config(), COST), EngineSetup("e1", config(engine="e1"), COST))
    balanced = run(job(engines=two)).scenario()
    assert balanced.requests_ratio == pytest.approx(np.full((4, 2), 0.5), abs=0.02)
    starting = run(job(engines=(two[0], replace(two[1], available_from_s=15.0)))).scenario()
    assert (starting.requests_ratio[:, 1] < 0.35).all()
    gone = run(job(engines=(two[0], replace(two[1], available_until_s=0.0)))).scenario()
    assert (gone.requests_ratio[:, 1] == 0.0).all()


def test_a_slow_engine_gets_fewer_requests_from_a_router_that_looks() -> None:
    two = (EngineSetup("e0", config(), COST), EngineSetup("e1", config(engine="e1"), COST.scaled(4.0)))
    looking = run(job(engines=two, traffic=plan(12.0))).scenario()
    blind = run(job(engines=two, traffic=plan(12.0), routing="round_robin")).scenario()
    assert (looking.requests_ratio[:, 1] < 0.4).all()
    assert blind.requests_ratio == pytest.approx(np.full((4, 2), 0.5), abs=0.02)
    assert (looking.horizons[0].latency("e2e_s", 0.95) < blind.horizons[0].latency("e2e_s", 0.95)).all()
    weighted = (replace(two[0], weight=3.0), two[1])
    shares = run(job(engines=weighted, routing="weighted")).scenario().requests_ratio
    assert shares[:, 0] == pytest.approx(np.full(4, 0.75), abs=0.03)


def test_prefill_and_decode_apart_pay_for_the_transfer_and_say_what_ran() -> None:
    prefill = EngineSetup("p", config(engine="p", role="prefill"), COST)
    decode = EngineSetup("d", config(engine="d", role="decode"), COST)
    apart = job(engines=(prefill, decode), link=KvLink(token_ps=10**9, cv=0.3), fine_replications=2)
    result = run(apart)
    assert result.engine == "simpy"
    assert "disaggregation" in result.fallback
    slower = run(replace(apart, link=KvLink(token_ps=2 * 10**9, cv=0.3)))
    one, two = (each.scenario().horizons[0].latency("e2e_s", 0.5) for each in (result, slower))
    assert (two > one + 0.1).all()


def test_an_engine_that_is_lost_leaves_its_work_to_the_others() -> None:
    two = (EngineSetup("e0", config(), COST), EngineSetup("e1", config(engine="e1"), COST))
    lost = run(job(engines=(two[0], replace(two[1], gone_at_s=5.0)), fine_replications=2))
    assert "disappears" in lost.fallback
    assert (lost.scenario().requests_ratio[:, 1] < 0.35).all()
    assert (lost.scenario().horizons[0].success_ratio == 1.0).all()


def test_engines_on_one_device_slow_each_other_down() -> None:
    two = tuple(EngineSetup(name, config(engine=name), COST) for name in ("e0", "e1"))
    alone = run(job(engines=two, traffic=plan(8.0), fine_replications=2)).scenario().horizons[0]
    shared = run(
        job(engines=tuple(replace(e, device="gpu0") for e in two), traffic=plan(8.0), fine_replications=2)
    ).scenario()
    assert (shared.horizons[0].latency("tpot_s", 0.5) > alone.latency("tpot_s", 0.5)).all()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="routing must be one of"):
        run(job(routing="by_smell"))


def test_balance_and_curves_cover_the_simulated_span() -> None:
    asked = job(grid_s=0.5)
    found = run(asked).scenario()
    assert found.curves.waiting_requests.shape == (4, int(asked.span_s / 0.5) + 1)
    assert (found.curves.busy_ratio >= 0.0).all()
    assert (found.curves.busy_ratio <= 1.0).all()
    assert (found.curves.kv_ratio <= 1.0).all()
    assert (found.engine_busy_ratio > 0.0).all()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"engines": ()}, "job.engines"),
        ({"horizons_s": (60.0, 30.0)}, "job.horizons_s"),
        ({"horizons_s": ()}, "job.horizons_s"),
        ({"horizons_s": (1e6,)}, "rate outlook"),
        ({"coarse_replications": 9}, "coarse_replications"),
        ({"scenarios": (BASELINE, Scenario("baseline", rate_factor=2.0))}, "job.scenarios"),
        ({"grid_s": math.nan}, "job.grid_s"),
        ({"grid_s": 21.0}, "shortest horizon"),
        ({"share": (2, 2)}, "job.share"),
        ({"share": (0, 3)}, "job.share"),
        ({"arrivals_beyond_s": -1.0}, "job.arrivals_beyond_s"),
    ],
)
def test_bad_jobs_are_named(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        job(**fields)


def test_shares_of_different_jobs_do_not_join() -> None:
    shares = split(job(with_insight=True), 2)
    assert [share.with_insight for share in shares] == [True, False]
    with pytest.raises(ValueError, match="not shares of one job"):
        joined([run(shares[0]), run(replace(shares[1], tick=8))])
    with pytest.raises(ValueError, match="no results"):
        joined([])
    with pytest.raises(ValueError, match="at least one part"):
        split(job(), 0)


def test_bad_overheads_and_times_are_named() -> None:
    with pytest.raises(ValueError, match="to_engine_s"):
        FrontendOverheads(to_engine_s=(0.2, 0.1))
    with pytest.raises(ValueError, match="to_client_s"):
        FrontendOverheads(to_client_s=(math.nan,))
    with pytest.raises(ValueError, match="available_from_s"):
        EngineSetup("e0", config(), COST, available_from_s=2.0, available_until_s=1.0)


def test_results_are_asked_by_name() -> None:
    result = run(job())
    with pytest.raises(ValueError, match="no scenario 'burst'"):
        result.scenario("burst")
    with pytest.raises(ValueError, match=r"no horizon of 7\.0 s"):
        result.scenario().horizon(7.0)
    with pytest.raises(ValueError, match="quantile"):
        result.scenario().horizons[0].latency("ttft_s", 0.3)
    assert 0.0 <= result.breach_probability(0, 20.0) <= 1.0


def test_a_cost_no_engine_can_run_is_refused_before_anything_runs() -> None:
    absurd = FrozenStepCost.uniform(fixed_ps=2**50)
    with pytest.raises(ValueError, match="coefficient"):
        run(job(engines=(EngineSetup("e0", config(), absurd),)))
    with pytest.raises(ValueError, match="KV block"):
        run(job(engines=(EngineSetup("e0", msgspec.structs.replace(config(), kv_blocks=1), COST),)))
