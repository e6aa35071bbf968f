"""The fold of traffic: what a plan may know, what is forgotten, what a source without arrivals can still tell."""

import numpy as np
import orjson
import pytest
from made_traffic import arrived, finished, history_of, poisson, ramp, us

from schemas.requests import RequestAborted, RequestRejected
from twin.traffic.history import TrafficHistory
from twin.traffic.plan import UNKNOWN_TOKENS, TrafficPlan
from twin.traffic.sources import Shape, operational_time


def test_a_plan_holds_no_length_of_a_request_that_has_not_finished() -> None:
    history = TrafficHistory()
    for number in range(10):
        history.arrived(arrived(number, float(number)))
    for number in range(5):
        history.finished(finished(number, float(number), number + 0.5, osl=77))
    plan = history.plan(us(10.0), {"r7": 12})
    assert plan.sources.osl_tokens.tolist() == [77] * 4 + [UNKNOWN_TOKENS] * 5
    assert plan.sources.generated_tokens.tolist() == [0, 0, 0, 0, 0, 0, 12, 0, 0]


def test_a_request_that_ends_badly_is_known_to_be_longer_than_it_got() -> None:
    history = TrafficHistory()
    for number in range(4):
        history.arrived(arrived(number, float(number)))
    history.ended(RequestAborted(deployment="d", request_id="r2", at_us=us(5.0), osl_tokens=30))
    history.ended(RequestRejected(deployment="d", request_id="r3", at_us=us(5.0)))
    history.ended(RequestRejected(deployment="d", request_id="x", at_us=us(6.0), arrived_us=us(6.0), isl_tokens=9))
    history.ended(RequestRejected(deployment="d", request_id="y", at_us=us(6.0)))
    sources = history.plan(us(10.0), {"r2": 5}).sources
    assert sources.isl_tokens.tolist() == [100, 100, 100, 9]
    assert sources.osl_tokens.tolist() == [UNKNOWN_TOKENS] * 4
    assert sources.generated_tokens.tolist() == [0, 30, 0, 0]


def test_an_arrival_told_twice_is_one() -> None:
    history = TrafficHistory()
    for _ in range(3):
        history.arrived(arrived(1, 1.0))
    assert len(history) == 1


def same(one: TrafficPlan, other: TrafficPlan) -> bool:
    return all(
        np.array_equal(getattr(one.sources, name), getattr(other.sources, name))
        for name in ("at", "isl_tokens", "osl_tokens", "generated_tokens", "hash_values", "hash_first", "hash_offsets")
    ) and np.array_equal(one.rate.arrivals, other.rate.arrivals)


def test_a_snapshot_through_json_changes_no_plan() -> None:
    history = TrafficHistory(capacity=256)
    times = poisson(4.0, 120.0)
    for number, time_s in enumerate(times.tolist()):
        history.arrived(arrived(number, time_s, isl=64, hashes=[number % 7, 100 + number], block=16))
        if number >= 8 and number % 5:
            history.finished(finished(number - 8, float(times[number - 8]), time_s))
        history.advance(us(time_s))
    restored = TrafficHistory.restore(orjson.loads(orjson.dumps(history.snapshot())))
    for each in (history, restored):
        each.arrived(arrived(9_999, 121.0, isl=64, hashes=[3, 4], block=16))
        each.finished(finished(int(times.size) - 1, float(times[-1]), 121.5))
    assert same(history.plan(us(122.0), {"r9999": 3}), restored.plan(us(122.0), {"r9999": 3}))
    assert orjson.dumps(history.snapshot()) == orjson.dumps(restored.snapshot())


def test_a_source_without_arrivals_is_remembered_as_such() -> None:
    times = poisson(8.0, 300.0, 2)
    history = history_of(times, 200.0, serve_s=12.0, ends_only=True)
    restored = TrafficHistory.restore(orjson.loads(orjson.dumps(history.snapshot())))
    assert same(history.plan(us(200.0)), restored.plan(us(200.0)))


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 0"):
        TrafficHistory.restore({**TrafficHistory().snapshot(), "version": 0})


def test_what_happens_later_changes_no_plan() -> None:
    times = poisson(5.0, 200.0, 4)
    early = history_of(times, 100.0).plan(us(100.0))
    late = history_of(times, 100.0)
    for number in range(times.size, times.size + 40):
        late.arrived(arrived(number, 100.0 + number / 100.0, isl=9_999))
        late.finished(finished(number - 60, 90.0, 101.0 + number / 100.0, osl=9_999))
    for number in np.flatnonzero((times > 99.0) & (times < 100.0)).tolist():
        late.finished(finished(number, float(times[number]), 100.5, osl=9_999))
    assert UNKNOWN_TOKENS in early.sources.osl_tokens
    assert same(early, late.plan(us(100.0)))


def test_a_plan_before_what_was_learned_is_refused() -> None:
    history = history_of(poisson(5.0, 200.0), 150.0)
    with pytest.raises(ValueError, match="already learned"):
        history.plan(us(100.0))


def test_memory_does_not_grow() -> None:
    history = TrafficHistory(capacity=64)
    for number in range(3_000):
        history.arrived(arrived(number, number / 50.0, hashes=range(number, number + 3), block=16))
    assert len(history) == 64
    assert len(history.snapshot()["open"]) == 64
    assert history.plan(us(61.0)).sources.requests == 63
    with pytest.raises(ValueError, match="capacity"):
        TrafficHistory(capacity=3)


def test_the_end_of_a_forgotten_arrival_changes_nothing() -> None:
    history = TrafficHistory(capacity=64)
    for number in range(100):
        history.arrived(arrived(number, number / 10.0))
    before = history.snapshot()
    history.finished(finished(5, 0.5, 10.0, osl=40))
    assert history.snapshot() == before


def test_ends_alone_give_the_rate_without_the_missing_last_seconds() -> None:
    """Arrivals of the last seconds are told only later: a naive count would see the rate fall."""
    times = poisson(8.0, 300.0, 2)
    told = history_of(times, 200.0, serve_s=12.0, ends_only=True).plan(us(200.0))
    naive = float(np.count_nonzero((times > 170.0) & (times <= 188.0))) / 30.0
    assert naive < 6.0
    assert told.rate.mean_per_s(30.0) == pytest.approx(8.0, rel=0.15)


def test_counts_of_the_engines_tell_arrivals_that_nobody_announced() -> None:
    """Requests last 30 s, and the rate doubles 20 s ago: ends cannot know, ends and counts together do."""
    times = np.concatenate((np.arange(0.0, 100.0, 0.5), np.arange(100.0, 120.0, 0.25)))
    plain, fresh = TrafficHistory(), TrafficHistory()
    for number, time_s in enumerate(times[times <= 90.0].tolist()):
        plain.finished(finished(number, time_s, time_s + 30.0))
    arrived_by = {second: int((times <= second).sum()) for second in range(5, 121, 5)}
    ended_by = {second: int((times + 30.0 <= second).sum()) for second in arrived_by}
    number = 0
    for second in range(5, 121, 5):
        while number < len(times) and times[number] + 30.0 <= second:
            fresh.finished(finished(number, float(times[number]), float(times[number]) + 30.0))
            number += 1
        fresh.inside(us(second), arrived_by[second] - ended_by[second])
        if second % 10 == 0:
            fresh.advance(us(second))
    assert plain.plan(us(120.0)).rate.mean_per_s(10.0) == pytest.approx(2.0, rel=0.15)
    assert fresh.plan(us(120.0)).rate.mean_per_s(10.0) == pytest.approx(4.0, rel=0.25)
    again = TrafficHistory.restore(orjson.loads(orjson.dumps(fresh.snapshot())))
    assert same(again.plan(us(120.0)), fresh.plan(us(120.0)))
    for history in (fresh, again):
        history.inside(us(130.0), 200)
    assert same(again.plan(us(130.0)), fresh.plan(us(130.0)))


def test_prefixes_remember_who_came_first() -> None:
    history = TrafficHistory()
    history.arrived(arrived(0, 0.0, isl=64, hashes=[1, 2], block=16))
    history.arrived(arrived(1, 1.0, isl=64, hashes=[1, 5], block=16))
    history.arrived(arrived(2, 2.0, isl=64, hashes=[1, 5, 9], block=16))
    plan = history.plan(us(3.0))
    assert plan.hash_block_tokens == 16
    assert plan.sources.hash_values.tolist() == [1, 5, 1, 5, 9]
    assert plan.sources.hash_first.tolist() == [-1, 0, -1, 0, 1]


def test_a_change_of_level_is_taken_out_and_bursts_stay() -> None:
    """On operational time a ramp is flat: first and second half hold as many arrivals."""
    times = ramp(2.0, 20.0, 600.0, 5) - 600.0
    at = operational_time(times, -600.0, 60.0)
    assert (np.diff(at) >= 0.0).all()
    assert at[-1] <= times.size
    half = np.count_nonzero(at < times.size / 2)
    assert half == pytest.approx(times.size / 2, rel=0.1)
    assert np.count_nonzero(times < -300.0) < 0.35 * times.size


def test_operational_time_never_runs_past_the_arrivals() -> None:
    """The last arrival may be at the very end, where a sum of rates rounds up."""
    for seed in range(200):
        times = np.append(poisson(3.0, 50.0, seed), 50.0) - 50.0
        at = operational_time(times, -50.0, 7.0)
        assert at[0] >= 0.0
        assert at[-1] == times.size


def test_thin_traffic_reaches_further_back() -> None:
    history = history_of(poisson(0.1, 4_000.0), 4_000.0)
    assert history.plan(us(4_000.0)).sources.requests > 250
    busy = history_of(poisson(2.0, 1_000.0), 1_000.0).plan(us(1_000.0)).sources.requests
    assert busy == pytest.approx(1_200, rel=0.1)


def test_no_traffic_at_all_makes_an_empty_plan() -> None:
    plan = TrafficHistory().plan(us(5.0))
    assert plan.sources.requests == 0
    assert plan.rate.mean_per_s(30.0) == 0.0


def test_two_hours_ahead_has_a_rate_and_more_doubt() -> None:
    rate = history_of(poisson(1.0, 3_000.0), 3_000.0).rate()
    assert rate.mean_per_s(7_200.0) == pytest.approx(1.0, rel=0.2)
    assert rate.sigma_at(7_200.0) >= rate.sigma_at(30.0)


@pytest.mark.parametrize("field", ["lookback_s", "bandwidth_s", "block_s"])
def test_bad_shapes_are_named(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Shape(**{field: float("nan")})
