"""A small closed loop: what is decided changes nothing before it, and a constant load gives no step and its reverse."""

import tomllib

import numpy as np
import pytest

from tests.bench.bench_closed_loop import TOML, Case, Point, against, cases
from tests.bench.closed_loop_schedulers import Reactive, Twin
from tests.bench.closed_loop_service import Account
from twin.advise.policy import Policy


def case(minutes: float, low_per_s: float, high_per_s: float) -> Case:
    settings = tomllib.loads(TOML.read_text(encoding="utf-8"))
    (ramp,) = [trace for trace in settings["traces"] if trace["name"] == "ramp"]
    settings["traces"] = [ramp | {"minutes": minutes, "low_per_s": low_per_s, "high_per_s": high_per_s}]
    return next(iter(cases(settings, [], [1], quick=True)))


def twin(made: Case) -> Twin:
    return Twin(Policy(allowed=("scale",)), made.prior, made.slos, 10.0, made.seed)


@pytest.fixture(scope="module")
def small() -> Case:
    return case(6.0, 3.0, 14.0)


def test_what_is_decided_changes_nothing_before_it(small: Case) -> None:
    service, other = small.service(), small.service()
    for number, at_s in enumerate((60.0, 100.0, 200.0)):
        service.order(at_s, number + 3)
    before, after = service.result(200.0), other.result(200.0)
    early = service.requests.arrived_s[: before.requests.first_token_ps.size] < 55.0
    done = early & (before.requests.status == 0) & (before.requests.last_token_ps < 60 * 10**12)
    assert done.sum() > 50
    assert np.array_equal(before.requests.last_token_ps[done], after.requests.last_token_ps[done])
    assert np.array_equal(before.engine_index[done], after.engine_index[done])


def test_the_truth_is_that_of_the_engine_that_steps_singly(small: Case) -> None:
    service = small.service()
    service.order(5.0, 1)
    assert service.same_step_by_step(12.0)


def test_engines_cost_from_their_order_and_drained_ones_until_they_are_empty(small: Case) -> None:
    service = small.service()
    service.order(100.0, 4)
    service.order(150.0, 2)  # those that start are given up
    end_s = small.requests.span_s
    account = service.account()
    assert account.engine_hours == pytest.approx((2 * end_s + 2 * 50.0) / 3600)
    assert (account.steps, account.reversals) == (2, 1)
    assert account.requests == small.requests.arrived_s.size


def test_the_front_holds_what_nobody_beats_and_a_better_point_is_better() -> None:
    points = [Point("r", 0, Account(v, 1000, h, 0, 0)) for v, h in ((0, 8.0), (10, 4.0), (40, 5.0), (300, 3.0))]
    fewer, saved = against(points, Point("t", 0, Account(5, 1000, 4.0, 0, 0)))
    assert fewer == pytest.approx(0.5)
    assert saved is not None
    assert saved > 0.1
    assert against(points, Point("t", 0, Account(10, 1000, 4.0, 0, 0))) == pytest.approx((0.0, 0.0))
    few = against(points, Point("t", 0, Account(10, 1000, 2.0, 0, 0)))  # in fewer hours than any: a least difference
    assert few == pytest.approx((1.0 - 10 / 300, 0.5))
    assert against(points, Point("t", 0, Account(400, 1000, 2.0, 0, 0)))[0] is None
    some = [point for point in points if point.account.violations]
    assert against(some, Point("t", 0, Account(0, 1000, 3.0, 0, 0)))[1] == pytest.approx(0.25)
    assert against(some, Point("t", 0, Account(0, 1000, 9.0, 0, 0)))[1] is None


@pytest.mark.slow
def test_the_twin_grows_with_a_ramp_before_requests_are_late() -> None:
    made = case(12.0, 3.0, 12.0)
    fixed, led = made.service().account(240.0), made.run(twin(made))
    assert led.steps >= 1
    assert led.violations < fixed.violations / 4


@pytest.mark.slow
def test_a_constant_load_gives_no_step_and_its_reverse() -> None:
    made = case(6.0, 6.0, 6.0)
    assert made.run(twin(made)).reversals == 0
    assert made.run(Reactive(0.3, 1, 16, 300.0)).requests > 0
