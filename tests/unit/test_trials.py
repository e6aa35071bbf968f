"""Laws of trials: equal random numbers, what is tried when, and members that an engine started now can still help."""

from dataclasses import replace

import numpy as np
import pytest
from made_jobs import COST, config, job, plan

import twin.advise.trials as trials_module
from schemas.actions import CutOver, HoldBack, Scale, SetLimit, ShiftTraffic
from schemas.slos import SloTarget
from twin.advise.rounds import is_reversible
from twin.advise.trials import surface, tried
from twin.advise.upper_side import interval, judged
from twin.insight import run_with_insight
from twin.job import EngineSetup, SimulationJob, Trials, Tried
from twin.simulate import run
from twin.split import joined, split
from twin.traffic.plan import TrafficPlan

ASKED = Trials(start_s=10.0, window_s=10.0, near_s=10.0, replications=4, deltas=(-1, 0, 1, 2))
CALM_PER_S, BUSY_PER_S = 0.5, 80.0


def asking(rate_per_s: float, engines: int = 1, **fields: object) -> SimulationJob:
    made = tuple(EngineSetup(f"e{k}", config(engine=f"e{k}"), COST) for k in range(engines))
    known = {"traffic": plan(rate_per_s), "engines": made, "trials": ASKED}
    return job(**(known | fields))


def deltas(found: tuple[Tried, ...]) -> list[int]:
    return [each.what.engines_after - each.what.engines_before for each in found if isinstance(each.what, Scale)]


def test_calm_tries_only_fewer_and_danger_more_until_it_is_over() -> None:
    assert deltas(tried(asking(CALM_PER_S))) == [0]
    assert deltas(tried(asking(CALM_PER_S, engines=2))) == [0, -1]
    assert deltas(tried(asking(BUSY_PER_S))) == [0, 1, 2]
    assert deltas(tried(asking(BUSY_PER_S, phase="coarse"))) == [0, 1, 2]
    assert deltas(tried(asking(CALM_PER_S, engines=2, phase="coarse"))) == [0]


@pytest.mark.parametrize("fields", [{"slos": ()}, {"trials": None}])
def test_nothing_is_tried_without_targets_or_when_not_asked(fields: dict[str, object]) -> None:
    assert tried(asking(BUSY_PER_S, **fields)) == ()


def test_a_candidate_that_changes_nothing_is_doing_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_module, "resized", lambda engines, delta, ready_s: engines)
    found = tried(asking(BUSY_PER_S))
    assert len(found) > 2
    for each in found:
        if isinstance(each.what, Scale):
            assert each.found.latency_s.tobytes() == each.without.latency_s.tobytes()
            assert judged(each, asking(1.0).slos).load_ratio == judged(each, asking(1.0).slos).load_without_ratio


def test_more_engines_never_serve_fewer_well_and_start_late() -> None:
    plain, one, two = (each.found for each in tried(asking(BUSY_PER_S))[:3])
    assert plain.goodput_requests_per_s.mean() <= one.goodput_requests_per_s.mean()
    assert one.goodput_requests_per_s.mean() <= two.goodput_requests_per_s.mean()
    never = replace(ASKED, start_s=10.0)
    late = tried(asking(BUSY_PER_S, trials=never, arrivals_beyond_s=0.0))
    assert late[0].members_from_s == 10.0
    assert np.all(late[0].found.arrivals < run(asking(BUSY_PER_S)).scenario().horizons[0].arrivals)


def test_the_danger_is_told_from_the_part_of_the_window_in_which_it_begins() -> None:
    """From a rate that one engine carries to one it does not: requests wait longer and longer."""
    calm = tried(asking(CALM_PER_S))[0]
    assert calm.danger_after_s is None
    assert tried(asking(BUSY_PER_S))[0].danger_after_s == ASKED.start_s
    late = replace(ASKED, start_s=4.0, window_s=16.0, demand_per_s=34.0, now_per_s=CALM_PER_S)
    begins_s = []
    for limit_s in (1.0, 4.0, 8.0, 10.0):
        slow = (SloTarget(metric="ttft_s", quantile=0.95, limit_s=limit_s),)
        begins_s.append(tried(asking(CALM_PER_S, trials=late, slos=slow))[0].danger_after_s)
    assert begins_s == [4.0, 8.0, 12.0, 16.0]


def test_engines_are_tried_on_the_demand_and_the_surface_on_the_forecast() -> None:
    asked = replace(ASKED, demand_per_s=BUSY_PER_S, now_per_s=BUSY_PER_S)
    demanded, plain = asking(CALM_PER_S, trials=asked), asking(CALM_PER_S)
    found = tried(demanded)
    rate = found[0].found.arrivals.mean() / ASKED.window_s
    assert rate == pytest.approx(BUSY_PER_S, rel=0.25)
    assert deltas(found) == [0, 1, 2]
    for one, two in zip(surface(demanded, found), surface(plain, tried(plain)), strict=True):
        assert one.goodput_requests_per_s.tobytes() == two.goodput_requests_per_s.tobytes()
        assert (one.from_s, one.to_s) == (ASKED.start_s, ASKED.start_s + ASKED.window_s)


def test_members_of_a_window_are_those_that_arrive_in_it() -> None:
    whole = run(asking(3.0, horizons_s=(20.0,))).scenario().horizons[0]
    first = run(asking(3.0, horizons_s=(8.0,), arrivals_beyond_s=17.0)).scenario().horizons[0]
    later = run(asking(3.0, horizons_s=(20.0,), members_from_s=8.0)).scenario().horizons[0]
    assert np.array_equal(later.arrivals + first.arrivals, whole.arrivals)
    assert later.arrivals.sum() > 0
    with pytest.raises(ValueError, match="members_from_s"):
        asking(3.0, members_from_s=20.0)


def test_other_actions_are_tried_only_where_a_target_is_soon_missed() -> None:
    assert not [each for each in tried(asking(CALM_PER_S)) if not isinstance(each.what, Scale)]
    found = [each.what for each in tried(asking(BUSY_PER_S))]
    limits = {each.limit for each in found if isinstance(each, SetLimit)}
    assert limits == {"max_num_seqs", "max_num_batched_tokens", "watermark_ratio"}
    assert not [each for each in found if isinstance(each, ShiftTraffic | HoldBack)]
    assert not [
        each
        for each in tried(asking(BUSY_PER_S, trials=replace(ASKED, others=False)))
        if not isinstance(each.what, Scale)
    ]


def test_traffic_is_shifted_to_the_faster_engine_unless_routing_does_that() -> None:
    engines = (EngineSetup("e0", config(), COST), EngineSetup("e1", config(engine="e1"), COST.scaled(3.0)))
    slow = replace(asking(30.0, routing="round_robin"), engines=engines)
    (shift,) = [each for each in tried(slow) if isinstance(each.what, ShiftTraffic)]
    assert isinstance(shift.what, ShiftTraffic)
    assert [round(each.weight, 2) for each in shift.what.weights] == [0.75, 0.25]
    assert shift.found.goodput_requests_per_s.mean() > shift.without.goodput_requests_per_s.mean()
    assert not [
        each for each in tried(replace(slow, routing="least_outstanding")) if isinstance(each.what, ShiftTraffic)
    ]


def _with_priorities() -> TrafficPlan:
    traffic = plan(BUSY_PER_S)
    low = np.arange(traffic.sources.requests) % 2
    return replace(traffic, sources=replace(traffic.sources, priority=low))


def test_a_service_is_cut_over_from_an_engine_that_is_clearly_slower() -> None:
    def found(*factors: float, rate_per_s: float = 6.0, **fields: object) -> list[Tried]:
        engines = tuple(EngineSetup(f"e{k}", config(engine=f"e{k}"), COST.scaled(f)) for k, f in enumerate(factors))
        slow = replace(asking(rate_per_s, routing="round_robin", **fields), engines=engines)
        return [each for each in tried(slow) if isinstance(each.what, CutOver)]

    (cut,) = found(1.0, 12.0, 1.0)
    assert cut.what == CutOver(engine="e1", to=("e0", "e2"))
    assert cut.found.goodput_requests_per_s.mean() > cut.without.goodput_requests_per_s.mean()
    assert is_reversible(judged(cut, asking(1.0).slos))
    assert np.array_equal(cut.found.arrivals, cut.without.arrivals)
    assert not found(1.0, 1.4, 1.0, rate_per_s=BUSY_PER_S)
    assert not found(12.0, rate_per_s=BUSY_PER_S)
    assert not found(1.0, 12.0, 1.0, trials=replace(ASKED, others=False))


def test_the_least_important_traffic_can_be_put_off_or_refused() -> None:
    found = {
        each.what.how: each
        for each in tried(asking(BUSY_PER_S, traffic=_with_priorities()))
        if isinstance(each.what, HoldBack)
    }
    assert set(found) == {"defer", "shed"}
    assert all(
        each.what.traffic_ratio == pytest.approx(0.5) for each in found.values() if isinstance(each.what, HoldBack)
    )
    shed = found["shed"]
    assert shed.found.arrivals.mean() == pytest.approx(shed.without.arrivals.mean() / 2, rel=0.25)


def test_the_response_surface_takes_what_was_tried_and_adds_the_rest() -> None:
    busy, calm = asking(BUSY_PER_S, engines=2), asking(CALM_PER_S, engines=2)
    for asked in (busy, calm):
        found = tried(asked)
        points = surface(asked, found)
        assert [point.engines for point in points] == [1, 2, 3, 4]
        plain = next(each for each in found if isinstance(each.what, Scale) and each.what.engines_after == 2)
        assert points[1].goodput_requests_per_s.tobytes() == plain.found.goodput_requests_per_s.tobytes()
    assert surface(replace(busy, trials=None), ()) == []


@pytest.mark.parametrize("phase", ["coarse", "fine"])
def test_shares_of_a_job_try_what_the_whole_tries(phase: str) -> None:
    whole = asking(BUSY_PER_S, phase=phase)
    together = joined([run_with_insight(part) for part in split(whole, 2)])
    apart = run_with_insight(whole)
    assert [each.what for each in together.tried] == [each.what for each in apart.tried]
    for one, two in zip(together.tried, apart.tried, strict=True):
        assert one.found.latency_s.tobytes() == two.found.latency_s.tobytes()


@pytest.mark.parametrize(("limit_s", "load"), [(0.001, float("inf")), (50.0, 0.0)])
def test_a_target_of_a_quantile_that_is_not_simulated_counts_by_futures(limit_s: float, load: float) -> None:
    target = SloTarget(metric="ttft_s", quantile=0.9, limit_s=limit_s)
    (plain, *_) = tried(asking(CALM_PER_S, slos=(target,)))
    assert judged(plain, (target,)).load_ratio == load


def test_the_interval_is_stretched_on_the_log_scale_and_undefined_is_none() -> None:
    values = np.array([1.0, 2.0, 4.0])
    narrow, wide = interval(values), interval(values, 2.0)
    assert narrow is not None
    assert wide is not None
    assert wide[1] == narrow[1]
    assert wide[2] / wide[1] == pytest.approx((narrow[2] / narrow[1]) ** 2)
    assert interval(np.array([np.nan])) is None


@pytest.mark.parametrize(
    "fields",
    [{"start_s": -1.0}, {"window_s": 0.0}, {"deltas": (1, 2)}, {"replications": 1}, {"trip_ratio": float("nan")}],
)
def test_impossible_trials_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="trials"):
        Trials(**fields)  # type: ignore[arg-type]
