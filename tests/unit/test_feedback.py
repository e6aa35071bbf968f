"""What was done counts: engines that are starting, measured start times, drains, windows that a change spoilt."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from made_jobs import AS_OF_US, COST, config, plan

from schemas.changes import Change
from schemas.engines import EngineConfig
from twin.clock import Position, Unit
from twin.deployment import DeploymentState, announced


def change(second: float, before: int, after: int, **fields: object) -> Change:
    known = {"deployment": "d", "at_us": AS_OF_US + round(second * 1e6), "kind": "scale", "status": "accepted"}
    return Change(**(known | {"engines_before": before, "engines_after": after} | fields))  # type: ignore[arg-type]


def ready(second: float) -> int:
    return AS_OF_US + round(second * 1e6)


def state_with(*records: Change | EngineConfig) -> DeploymentState:
    state = DeploymentState(300.0, ())
    for number, record in enumerate(records):
        state.apply(Unit(record.at_us, Position("t", 0, number, 0), record))
    return state


def starting(changes: Sequence[Change], known: int, now_s: float = 0.0) -> list[float]:
    return [(each - AS_OF_US) / 1e6 for each in announced(changes, AS_OF_US + round(now_s * 1e6), known)]


def test_engines_that_were_accepted_and_are_not_there_yet_are_starting() -> None:
    up = change(-10, 2, 4, action_id="a", ready_at_us=ready(110))
    assert starting([up], 2) == [110.0, 110.0]
    assert starting([up], 3) == [110.0]
    assert starting([up], 4) == []


def test_a_change_told_twice_counts_once_and_a_refused_one_not_at_all() -> None:
    accepted = change(-10, 2, 3, action_id="a", ready_at_us=ready(110))
    applied = change(-5, 2, 3, action_id="a", status="applied", ready_at_us=ready(115))
    assert starting([accepted, applied], 2) == [115.0]
    assert starting([accepted, change(-1, 2, 3, action_id="a", status="rejected")], 2) == []
    assert starting([change(-10, 2, 3)], 2) == []  # nobody says when it will be ready


def test_fewer_engines_take_those_that_are_starting_first() -> None:
    ups = [change(-30, 2, 3, ready_at_us=ready(90)), change(-20, 3, 4, ready_at_us=ready(100))]
    assert starting(ups, 2) == [90.0, 100.0]
    assert starting([*ups, change(-5, 4, 3)], 2) == [90.0]


def test_an_engine_that_should_be_there_is_believed_for_a_minute() -> None:
    up = change(-10, 2, 3, ready_at_us=ready(110))
    assert starting([up], 2, 150.0) == [110.0]
    assert starting([up], 2, 171.0) == []


def test_starting_engines_are_in_the_forecast_from_when_they_are_ready() -> None:
    state = state_with(config(), change(-10, 1, 2, ready_at_us=ready(50)))
    setups = state.setups(AS_OF_US, plan())
    assert [(setup.name, setup.available_from_s) for setup in setups] == [("e0", 0.0), ("starting-1", 50.0)]
    assert setups[1].config == setups[0].config
    assert not setups[1].state.running
    there = state_with(config(), change(-10, 1, 2, ready_at_us=ready(50)), config(engine="e1"))
    assert [setup.name for setup in there.setups(AS_OF_US, plan())] == ["e0", "e1"]


def test_a_drained_engine_takes_nothing_until_it_tells_a_configuration_again() -> None:
    first, second = config(at_us=AS_OF_US - 9), config(engine="e1", at_us=AS_OF_US - 9)
    drain = change(-0.000005, 0, 0, kind="drain", engine="e1", engines_before=None, engines_after=None)
    ends = [s.available_until_s for s in state_with(first, second, drain).setups(AS_OF_US, plan())]
    assert ends == [float("inf"), 0.0]
    back = config(engine="e1", at_us=AS_OF_US - 1)
    ends = [s.available_until_s for s in state_with(first, second, drain, back).setups(AS_OF_US, plan())]
    assert ends == [float("inf"), float("inf")]


def test_the_start_time_is_that_of_recent_changes() -> None:
    assert state_with().start_s is None
    ups = [change(k * 200, 2, 3, ready_at_us=ready(k * 200 + s)) for k, s in enumerate((100.0, 80.0, 300.0))]
    assert state_with(*ups).start_s == pytest.approx(100.0)
    down = change(900, 3, 2, ready_at_us=ready(901))
    assert state_with(*ups, down).start_s == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("fields", "spoilt"),
    [
        ({"status": "applied"}, True),
        ({"status": "rejected"}, False),
        ({"status": "accepted", "ready_at_us": ready(20)}, True),
        ({"status": "accepted", "ready_at_us": ready(90)}, False),
        ({"status": "accepted"}, False),
    ],
)
def test_a_window_is_spoilt_by_what_took_effect_in_it(fields: dict[str, object], spoilt: bool) -> None:
    state = state_with(change(10, 2, 3, **fields))
    assert state.changed_within(AS_OF_US, ready(30)) is spoilt
    assert not state.changed_within(ready(10), ready(30))  # it was known when the forecast was made
    assert not state.changed_within(AS_OF_US - 60_000_000, ready(5))


def test_costs_of_a_starting_engine_are_those_of_the_first() -> None:
    state = state_with(config(), change(-10, 1, 2, ready_at_us=ready(50)))
    first, second = state.setups(AS_OF_US, plan())
    assert replace(second, name="e0", available_from_s=0.0, state=first.state, presence=first.presence) == first
    assert first.cost != COST
