"""Resampled futures: the rate is reached, bursts and shared prefixes survive, scenarios change only what they say."""

import math
from itertools import pairwise

import numpy as np
import pytest
from made_traffic import bursty, history_of, poisson, us

from twin.traffic.draw import MAX_REQUESTS, Arrivals, draw
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan
from twin.traffic.scenarios import BASELINE, BURST, LONG_TAIL, Scenario
from twin.traffic.streams import Streams

STREAMS = Streams(root_seed=5, deployment="d", as_of_us=us(0))


def plan_of(times_s: np.ndarray, seconds: float, rate_per_s: float, sigma: float = 0.0) -> TrafficPlan:
    """Sources at `times_s` as they came, to be resampled at `rate_per_s`."""
    n = times_s.size
    at = times_s * (n / seconds)
    isl = np.arange(1, n + 1, dtype=np.int64)
    sources = Sources.plain(at, float(n), isl, isl + 1_000)
    lengths = OutputLengths.fit(isl, np.ones(n, np.bool_))
    return TrafficPlan(sources, 10.0 * n / seconds, RateForecast.steady(rate_per_s, sigma), lengths)


def drawn(plan: TrafficPlan, scenario: Scenario = BASELINE, replications: int = 20, span_s: float = 60.0) -> Arrivals:
    return draw(plan, STREAMS, replications=replications, span_s=span_s, scenario=scenario)


def part(arrivals: Arrivals, replication: int) -> slice:
    return slice(int(arrivals.offsets[replication]), int(arrivals.offsets[replication + 1]))


def dispersion(times_s: np.ndarray, span_s: float, slot_s: float = 1.0) -> float:
    counts = np.histogram(times_s, np.arange(0.0, span_s + slot_s, slot_s))[0]
    return float(counts.var() / counts.mean())


def uniform_generator(rate_per_s: float, span_s: float, seed: int) -> np.ndarray:
    """The usual load generator: the mean rate, evenly spread at random."""
    return poisson(rate_per_s, span_s, seed)


def test_the_forecast_rate_is_reached_whatever_the_past_rate() -> None:
    for rate in (1.0, 5.0, 20.0):
        arrivals = drawn(plan_of(poisson(5.0, 300.0), 300.0, rate), replications=100)
        counts = np.diff(arrivals.offsets)
        error = 4.0 * math.sqrt(rate * 60.0 / 100)
        assert float(counts.mean()) == pytest.approx(rate * 60.0, abs=error)


def test_times_rise_and_stay_within_the_span() -> None:
    arrivals = drawn(plan_of(bursty(5.0, 300.0), 300.0, 7.0))
    for replication in range(20):
        times = arrivals.arrived_s[part(arrivals, replication)]
        assert (np.diff(times) >= 0.0).all()
        assert 0.0 <= times[0] <= times[-1] <= 60.0


def test_bursts_survive_and_a_uniform_generator_loses() -> None:
    """Peak second of the next minute: resampling predicts it, a uniform mean rate cannot."""
    past, span_s = bursty(6.0, 600.0, seed=2), 60.0
    arrivals = drawn(plan_of(past, 600.0, 6.0), replications=60)
    ours = [dispersion(arrivals.arrived_s[part(arrivals, r)], span_s) for r in range(60)]
    uniform = [dispersion(uniform_generator(6.0, span_s, seed), span_s) for seed in range(60)]
    truth = [dispersion(bursty(6.0, span_s, 100 + seed), span_s) for seed in range(60)]
    assert float(np.median(ours)) == pytest.approx(float(np.median(truth)), rel=0.25)
    assert float(np.median(uniform)) < 0.25 * float(np.median(truth))


def test_lengths_come_in_the_pairs_they_were_seen_in() -> None:
    arrivals = drawn(plan_of(poisson(5.0, 300.0), 300.0, 5.0))
    assert (arrivals.osl_tokens == arrivals.isl_tokens + 1_000).all()


def test_neighbours_stay_neighbours_within_a_block() -> None:
    arrivals = drawn(plan_of(poisson(5.0, 300.0), 300.0, 5.0), replications=1)
    steps = np.diff(arrivals.isl_tokens)
    assert np.count_nonzero(steps == 1) > 0.9 * steps.size


def test_more_replications_leave_the_first_ones_as_they_are() -> None:
    plan = plan_of(bursty(5.0, 300.0), 300.0, 5.0, sigma=0.3)
    few, many = drawn(plan, LONG_TAIL, 3), drawn(plan, LONG_TAIL, 9)
    end = int(few.offsets[-1])
    assert np.array_equal(few.arrived_s, many.arrived_s[:end])
    assert np.array_equal(few.isl_tokens, many.isl_tokens[:end])
    assert np.array_equal(few.offsets, many.offsets[:4])


def test_replications_differ_and_so_do_deployments_and_instants() -> None:
    plan = plan_of(poisson(5.0, 300.0), 300.0, 5.0)
    one = drawn(plan, replications=2)
    assert not np.array_equal(one.arrived_s[part(one, 0)][:50], one.arrived_s[part(one, 1)][:50])
    for other in (Streams(5, "e", us(0)), Streams(5, "d", us(1)), Streams(6, "d", us(0))):
        again = draw(plan, other, replications=1, span_s=60.0, scenario=BASELINE)
        assert not np.array_equal(one.arrived_s[:50], again.arrived_s[:50])


def test_the_level_is_drawn_once_per_replication() -> None:
    sharp = np.diff(drawn(plan_of(poisson(5.0, 300.0), 300.0, 5.0), replications=200).offsets)
    doubtful = np.diff(drawn(plan_of(poisson(5.0, 300.0), 300.0, 5.0, sigma=0.4), replications=200).offsets)
    assert float(doubtful.std()) > 3 * float(sharp.std())
    assert float(doubtful.mean()) == pytest.approx(300.0, rel=0.12)


def test_a_burst_multiplies_arrivals_while_it_lasts_and_changes_nothing_before() -> None:
    plan = plan_of(poisson(5.0, 300.0), 300.0, 5.0)
    burst = Scenario("burst", burst_factor=4.0, burst_start_s=20.0, burst_s=10.0)
    plain, loud = drawn(plan, replications=100), drawn(plan, burst, replications=100)
    early = plain.arrived_s[part(plain, 7)]
    assert np.allclose(early[early < 20.0], loud.arrived_s[part(loud, 7)][: np.count_nonzero(early < 20.0)])

    def mean_within(arrivals: Arrivals, low_s: float, high_s: float) -> float:
        return float(np.count_nonzero((arrivals.arrived_s >= low_s) & (arrivals.arrived_s < high_s))) / 100

    assert mean_within(loud, 20.0, 30.0) == pytest.approx(200.0, rel=0.06)
    assert mean_within(loud, 30.0, 60.0) == pytest.approx(150.0, rel=0.06)
    assert np.count_nonzero(drawn(plan, BURST, 50).arrived_s < 30.0) / 50 == pytest.approx(600.0, rel=0.06)


def test_a_long_tail_stretches_its_share_and_leaves_the_others() -> None:
    plan = plan_of(poisson(20.0, 300.0), 300.0, 20.0)
    plain, long = drawn(plan), drawn(plan, LONG_TAIL)
    assert np.array_equal(plain.arrived_s, long.arrived_s)
    ratio = long.isl_tokens / plain.isl_tokens
    assert set(np.unique(ratio)) == {1.0, 10.0}
    assert float((ratio == 10.0).mean()) == pytest.approx(0.03, abs=0.005)
    assert np.array_equal(plain.osl_tokens, long.osl_tokens)


def test_a_shift_of_lengths_scales_them() -> None:
    plan = plan_of(poisson(5.0, 300.0), 300.0, 5.0)
    shifted = drawn(plan, Scenario("shift", isl_factor=0.001, osl_factor=2.0))
    assert shifted.isl_tokens.min() == 1
    assert np.array_equal(shifted.osl_tokens, 2 * drawn(plan).osl_tokens)


def test_nothing_to_resample_draws_nothing() -> None:
    none = np.zeros(0, np.int64)
    empty = TrafficPlan(
        Sources.plain(np.zeros(0), 0.0, none, none), 1.0, RateForecast.steady(5.0), OutputLengths.fit(none, none == 1)
    )
    assert drawn(empty).offsets.tolist() == [0] * 21
    assert drawn(plan_of(poisson(5.0, 300.0), 300.0, 0.0)).offsets[-1] == 0


def test_an_absurd_rate_is_bounded() -> None:
    plan = plan_of(poisson(5.0, 300.0), 300.0, 1e9)
    counts = np.diff(drawn(plan, replications=1).offsets)
    assert counts[0] <= MAX_REQUESTS


def test_a_silence_in_the_past_stays_in_the_draws() -> None:
    """Blocks of ten seconds keep gaps up to their length: half of every ten seconds was silent."""
    rng = np.random.default_rng(3)
    times = np.sort((np.floor(rng.uniform(0, 60, 3_000)) * 10.0) + rng.uniform(0, 5, 3_000))
    arrivals = drawn(plan_of(times, 600.0, 5.0), replications=20)
    gaps = np.concatenate([np.diff(arrivals.arrived_s[part(arrivals, r)]) for r in range(20)])
    assert np.count_nonzero(gaps > 2.0) / 20 > 4.0


def hashed_plan(first: list[list[int]], known_before: int = 0) -> TrafficPlan:
    """One request per second, each with the given prompt blocks; one block holds ten requests."""
    n = len(first)
    flat = np.array([value for hashes in first for value in hashes], np.int64)
    seen: dict[int, int] = {}
    for index, hashes in enumerate(first):
        for value in hashes:
            seen.setdefault(value, index)
    sources = Sources(
        at=np.arange(n) + 0.5,
        extent=float(n),
        isl_tokens=np.full(n, 64, np.int64),
        osl_tokens=np.full(n, 5, np.int64),
        generated_tokens=np.zeros(n, np.int64),
        priority=np.zeros(n, np.int64),
        traffic_class=np.zeros(n, np.int64),
        hash_offsets=np.concatenate(([0], np.cumsum([len(h) for h in first]))).astype(np.int64),
        hash_values=flat,
        hash_first=np.array([-1 if value <= known_before else seen[value] for value in flat.tolist()], np.int64),
    )
    lengths = OutputLengths.fit(np.full(n, 5), np.ones(n, np.bool_))
    return TrafficPlan(sources, 10.0, RateForecast.steady(1.0), lengths, hash_block_tokens=16)


def hashes_of(arrivals: Arrivals, request: int) -> list[int]:
    return arrivals.hash_values[arrivals.hash_offsets[request] : arrivals.hash_offsets[request + 1]].tolist()


def test_a_unique_prompt_never_meets_its_own_past_in_the_cache() -> None:
    past = [[1_000 + 2 * i, 1_001 + 2 * i] for i in range(40)]
    arrivals = drawn(hashed_plan(past), replications=3, span_s=200.0)
    drawn_hashes = arrivals.hash_values.tolist()
    assert not set(drawn_hashes) & {value for hashes in past for value in hashes}
    replication = arrivals.hash_values[: arrivals.hash_offsets[arrivals.offsets[1]]]
    assert np.unique(replication).size == replication.size


def test_a_prefix_shared_within_a_block_stays_shared_under_a_new_name() -> None:
    past = [[100 + i // 10, 1_000 + i] for i in range(40)]
    arrivals = drawn(hashed_plan(past), replications=1, span_s=100.0)
    firsts = [hashes_of(arrivals, request)[0] for request in range(arrivals.arrived_s.size)]
    shared = sum(a == b for a, b in pairwise(firsts))
    assert shared > 0.7 * len(firsts)
    lasts = [hashes_of(arrivals, request)[1] for request in range(arrivals.arrived_s.size)]
    assert len(set(lasts)) == len(lasts)


def test_a_prefix_known_before_keeps_its_name() -> None:
    past = [[7, 1_000 + i] for i in range(40)]
    arrivals = drawn(hashed_plan(past, known_before=7), replications=2, span_s=100.0)
    assert {hashes_of(arrivals, request)[0] for request in range(arrivals.arrived_s.size)} == {7}


def test_shorter_prompts_have_fewer_blocks() -> None:
    past = [[1, 2, 3, 4] for _ in range(40)]
    arrivals = drawn(hashed_plan(past, known_before=4), Scenario("short", isl_factor=0.5), span_s=100.0)
    assert hashes_of(arrivals, 0) == [1, 2]


@pytest.mark.parametrize("field", ["burst_factor", "isl_factor", "rate_factor", "long_prompt_factor"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_scenario_refuses_factors_that_make_no_traffic(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Scenario("bad", **{field: value})


def test_a_scenario_refuses_bad_times_and_shares() -> None:
    for fields in ({"burst_s": math.nan}, {"burst_start_s": -1.0}, {"long_prompt_ratio": 1.5}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            Scenario("bad", **fields)
    with pytest.raises(ValueError, match="name"):
        Scenario("")


def test_sources_refuse_what_could_not_be_drawn() -> None:
    ones = np.ones(2, np.int64)
    for at, extent, isl, osl, complaint in (
        (np.array([0.5, 0.4]), 2.0, ones, ones, "sorted"),
        (np.array([0.5, 2.4]), 2.0, ones, ones, "sorted"),
        (np.array([0.5, 1.5]), 2.0, 0 * ones, ones, ">= 1"),
        (np.array([0.5, 1.5]), 2.0, ones, 0 * ones, ">= 1"),
        (np.array([0.5, 1.5]), 2.0, ones[:1], ones, "one entry per arrival"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Sources.plain(at, extent, isl, osl)


def test_a_draw_from_real_records_repeats_byte_for_byte() -> None:
    history = history_of(bursty(5.0, 300.0), 200.0)
    plan = history.plan(us(200.0))
    one, two = drawn(plan, BURST), drawn(plan, BURST)
    assert one.arrived_s.tobytes() == two.arrived_s.tobytes()
    assert one.osl_tokens.tobytes() == two.osl_tokens.tobytes()
