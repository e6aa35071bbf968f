"""Laws of traffic on random histories: what draws keep, what plans may know, what rates may be."""

import numpy as np
import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from made_traffic import arrived, finished, us

from twin.traffic.draw import Arrivals, draw
from twin.traffic.history import TrafficHistory
from twin.traffic.plan import TrafficPlan
from twin.traffic.rate import RateForecaster
from twin.traffic.scenarios import BASELINE, BURST, LONG_TAIL, Scenario
from twin.traffic.streams import Streams

SEEDS = st.integers(0, 2**32 - 1)
UNTIL_S = 90.0


def random_history(seed: int) -> TrafficHistory:
    """Requests with random gaps, lengths, ends and prefixes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 150))
    times = np.sort(rng.uniform(0.0, UNTIL_S * 1.2, n))
    served = rng.exponential(10.0, n)
    isl, osl = rng.integers(16, 400, n), rng.integers(1, 300, n)
    events: list[tuple[float, int, bool]] = []
    for i in range(n):
        events += [(float(times[i]), i, True), (float(times[i] + served[i]), i, False)]
    history = TrafficHistory(capacity=64)
    for at_s, i, is_arrival in sorted(events):
        if at_s > UNTIL_S:
            break
        if is_arrival:
            blocks = [int(rng.integers(5)), *(10_000 * i + k for k in range(int(isl[i]) // 16 - 1))]
            history.arrived(arrived(i, at_s, isl=int(isl[i]), hashes=blocks, block=16))
        else:
            history.finished(finished(i, float(times[i]), at_s, isl=int(isl[i]), osl=int(osl[i])))
    return history


def drawn(plan: TrafficPlan, scenario: Scenario, replications: int) -> Arrivals:
    return draw(plan, Streams(3, "d", us(UNTIL_S)), replications=replications, span_s=25.0, scenario=scenario)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([BASELINE, BURST, LONG_TAIL, Scenario("shift", isl_factor=0.3, rate_factor=2.0)]))
def test_draws_are_sorted_whole_and_a_prefix_of_more_draws(seed: int, scenario: Scenario) -> None:
    plan = random_history(seed).plan(us(UNTIL_S))
    few, many = drawn(plan, scenario, 2), drawn(plan, scenario, 5)
    end, hashes = int(few.offsets[-1]), int(few.hash_offsets[-1])
    for name in ("arrived_s", "isl_tokens", "osl_tokens", "priority", "traffic_class"):
        assert np.array_equal(getattr(few, name), getattr(many, name)[:end])
    assert np.array_equal(few.hash_values, many.hash_values[:hashes])
    for low, high in zip(many.offsets[:-1].tolist(), many.offsets[1:].tolist(), strict=True):
        assert (np.diff(many.arrived_s[low:high]) >= 0.0).all()
    assert ((many.arrived_s >= 0.0) & (many.arrived_s <= 25.0)).all()
    assert (many.isl_tokens >= 1).all()
    assert (many.osl_tokens >= 1).all()
    assert (np.diff(many.hash_offsets) * 16 <= many.isl_tokens).all()


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_no_draw_knows_a_length_that_was_told_later(seed: int) -> None:
    """Ends after the plan's instant are applied with absurd lengths; no plan as of before may hold or use them."""
    as_of_s = 60.0
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.0, as_of_s, 40))
    ends = times + rng.exponential(20.0, 40)
    plans = []
    for told in (True, False):
        history = TrafficHistory()
        for i, time_s in enumerate(times.tolist()):
            history.arrived(arrived(i, time_s))
        for i in np.argsort(ends).tolist():
            if ends[i] <= as_of_s or told:
                history.finished(
                    finished(i, float(times[i]), float(ends[i]), osl=50 if ends[i] <= as_of_s else 777_777)
                )
        plans.append(history.plan(us(as_of_s)))
    one, two = (drawn(plan, BASELINE, 3) for plan in plans)
    assert np.array_equal(one.osl_tokens, two.osl_tokens)
    assert np.array_equal(one.arrived_s, two.arrived_s)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_a_history_restored_plans_and_snapshots_the_same(seed: int) -> None:
    history = random_history(seed)
    restored = TrafficHistory.restore(orjson.loads(orjson.dumps(history.snapshot())))
    one, two = history.plan(us(UNTIL_S)), restored.plan(us(UNTIL_S))
    assert drawn(one, BURST, 2).arrived_s.tobytes() == drawn(two, BURST, 2).arrived_s.tobytes()
    assert drawn(one, BURST, 2).osl_tokens.tobytes() == drawn(two, BURST, 2).osl_tokens.tobytes()
    assert orjson.dumps(history.snapshot()) == orjson.dumps(restored.snapshot())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=80))
def test_a_rate_is_never_negative_and_always_finite(counts: list[int]) -> None:
    forecaster = RateForecaster()
    for slot, count in enumerate(counts):
        forecaster.update(count, slot)
        forecast = forecaster.forecast()
        assert np.isfinite(forecast.arrivals).all()
        assert np.isfinite(forecast.level_sigma).all()
        assert (forecast.arrivals >= 0.0).all()
        low, high = forecast.interval_per_s(60.0)
        assert 0.0 <= low <= high < np.inf
