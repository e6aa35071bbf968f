"""What the page is told of deployments: parts that changed, once, and nothing that grows without bound."""

import time
from typing import Any

import msgspec
import pytest
from made_page import Told, named, story

from pipelines.log import LogRecord
from pipelines.outputs import MADE_HEADER
from pipelines.web import fleet as fleet_module
from pipelines.web.fleet import Fleet
from pipelines.web.payload import Cursor, changed_parts, fleet, summary
from pipelines.web.view import MAX_ACTIONS, MAX_CHANGES, DeploymentView
from schemas.changes import Change
from schemas.codec import decode
from schemas.scores import BiasTrendCell, Replay
from schemas.topics import ACTIONS, DLQ, FORECASTS, SCORES, STATE
from twin.ledger import Ledger

pytestmark = pytest.mark.slow

UNTIL_S = 155.0
US = 1_000_000


@pytest.fixture(scope="module")
def told() -> list[Any]:
    """Records of the story, decoded, without snapshots."""
    messages = [each.message for each in story(UNTIL_S) if each.message.topic != STATE.name]
    return [decode(message.topic, message.value).record for message in messages]


@pytest.fixture
def view(told: list[Any]) -> DeploymentView:
    made = DeploymentView("tiny")
    for record in told:
        made.take(record, time.time_ns() // 1000)
    return made


def plain(found: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(found))


def applied(held: dict[str, Any], parts: dict[str, Any]) -> None:
    """As the page applies parts: rows by their time, everything else as a whole."""
    for name, part in plain(parts).items():
        if name in ("bands", "observed", "engine_rows"):
            rows = held.setdefault(name, {"rows": {}})["rows"] | {row[0]: row for row in part["rows"]}
            held[name] = part | {"rows": rows}
        else:
            held[name] = part


def test_a_reader_that_applies_what_it_is_told_knows_what_a_new_one_is_told(told: list[Any]) -> None:
    view, cursor, held = DeploymentView("tiny"), Cursor(), {}
    for number, record in enumerate(told):
        view.take(record, 1)
        if number % 700 == 0:
            applied(held, changed_parts(view, cursor))
    applied(held, changed_parts(view, cursor))
    fresh: dict[str, Any] = {}
    applied(fresh, changed_parts(view, Cursor()))
    assert held == fresh


def test_nothing_is_told_again_while_nothing_changes(view: DeploymentView) -> None:
    cursor = Cursor()
    assert set(changed_parts(view, cursor)) >= {
        "now",
        "forecast",
        "bands",
        "observed",
        "engine_rows",
        "scores",
        "setup",
    }
    assert changed_parts(view, cursor) == {}


def test_a_forecast_that_brings_no_newer_event_is_told_as_new(view: DeploymentView, told: list[Any]) -> None:
    cursor = Cursor()
    changed_parts(view, cursor)
    again = next(record for record in reversed(told) if type(record).__name__ == "Forecast")
    view.take(again, 77)
    parts = changed_parts(view, cursor)
    assert parts["now"]["made_us"] == parts["forecast"]["made_us"] == 77


def test_parts_are_json_without_numbers_that_are_none(view: DeploymentView) -> None:
    text = msgspec.json.encode(changed_parts(view, Cursor())).decode()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert len(text) < 400_000


def test_the_summary_is_of_the_newest_forecast(view: DeploymentView, told: list[Any]) -> None:
    found = summary(view)
    newest = max(record.as_of_us for record in told if type(record).__name__ == "Forecast")
    assert found["as_of_us"] == newest
    assert 0.5 < found["breach_probability"] <= 1.0
    assert found["slo"].limit_s == 0.5
    assert len(found["trend"]) >= 10
    assert found["alerts"][0]["kind"] == "slo_risk"


def test_a_window_scored_twice_counts_once(view: DeploymentView, told: list[Any]) -> None:
    before = plain(changed_parts(view, Cursor())["scores"])
    for record in told:
        if type(record).__name__ == "Score":
            view.take(record)
    assert plain(changed_parts(view, Cursor())["scores"]) == before


def test_why_the_last_window_missed_is_told_with_the_scores(view: DeploymentView, told: list[Any]) -> None:
    cursor = Cursor()
    assert changed_parts(view, cursor)["scores"]["replay"] is None
    name, at_us = view.board.deployment, view.board.newest_us
    found = Replay(
        deployment=name, as_of_us=at_us - 10**8, window_s=60.0, closed_us=at_us, members=9, cells=(), roles=(),
        cause="costs", error_log=0.2, costs_log=0.3, rest_log=-0.1, evidence="step time +35%",
        trend=(BiasTrendCell(quantile=0.99, rounds=8, bias_log=0.2, change_log=0.3, z=3.0, grows=True),),
    )  # fmt: skip
    view.take(found)
    shown = changed_parts(view, cursor)["scores"]["replay"]
    assert (shown["cause"], shown["error_log"], shown["evidence"]) == ("costs", 0.2, "step time +35%")
    assert shown["grows"] == [0.99]


def test_an_expired_proposal_is_not_open(view: DeploymentView, told: list[Any]) -> None:
    actions = [record for record in told if type(record).__name__ == "Action"]
    assert actions
    assert view.open_actions
    view.board.newest_us = max(action.expires_us for action in actions) + 1
    assert view.open_actions == []


def test_an_answered_proposal_is_not_open(view: DeploymentView) -> None:
    action = view.open_actions[0]
    change = Change(deployment="tiny", at_us=action.at_us + US, kind="scale", action_id=action.action_id)
    view.take(change)
    assert action not in view.open_actions
    assert view.actions[action.action_id].ended == "applied"
    view.take(change)
    assert list(view.changes).count(change) == 1


def test_histories_are_bounded(view: DeploymentView) -> None:
    action = view.open_actions[0]
    for number in range(3 * MAX_CHANGES):
        view.take(Change(deployment="tiny", at_us=action.at_us + number, kind="config"))
        view.take(msgspec.structs.replace(action, action_id=f"a{number}"))
    assert len(view.changes) == MAX_CHANGES
    assert len(view.actions) == MAX_ACTIONS


def record(
    topic: str, value: bytes | None, *, key: bytes = b"d", made: bytes | None = None, offset: int = 0
) -> LogRecord:
    headers = () if made is None else ((MADE_HEADER, made),)
    return LogRecord(topic, 0, offset, 0, key, value, headers)


@pytest.mark.parametrize("value", [b"", b"nonsense", b"{}", b'{"record":"forecast"}', None, b"\xff" * 100])
def test_no_record_makes_the_fleet_raise(value: bytes | None) -> None:
    known = Fleet()
    for topic in (FORECASTS.name, SCORES.name, ACTIONS.name, STATE.name, DLQ.name):
        known.take(record(topic, value))
        known.take(record(topic, value, key=b"\xff", made=b"later"))
    assert known.views == {}
    assert known.dead_letters == 2
    fleet(known)


def test_deployments_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_DEPLOYMENTS", 2)
    known = Fleet()
    first = next(each.message for each in story(UNTIL_S) if each.message.topic == FORECASTS.name)
    for name in ("a", "b", "c", "d", "c"):
        message = next(iter(named([Told(0.0, first)], name))).message
        known.take(record(FORECASTS.name, message.value, made=b"12"))
    assert list(known.views) == ["a", "b"]
    assert known.left_out == 2
    assert known.views["a"].made_us["coarse"] == 12


def test_the_newest_state_is_kept_as_bytes_and_a_tombstone_ends_it() -> None:
    known = Fleet()
    known.take(record(STATE.name, b"old", offset=1))
    known.take(record(STATE.name, b"new", offset=2))
    assert (known.states["d"].value, known.states["d"].version) == (b"new", (0, 2))
    known.take(record(STATE.name, None, offset=3))
    assert known.states == {}


def test_the_ledger_is_the_projects_own_over_what_is_held(view: DeploymentView, told: list[Any]) -> None:
    assert changed_parts(DeploymentView("empty"), Cursor())["ledger"] is None
    whole = Ledger("tiny")
    for each in told:
        whole.on_record(each)
    account = whole.account()
    found = changed_parts(view, Cursor())["ledger"]
    assert account.breaches
    assert (found["breaches"], found["foreseen"], found["pages"]) == (
        len(account.breaches),
        account.foreseen,
        account.pages,
    )
    assert sum(found["fates"].values()) == found["proposals"] == len(account.proposals) > 0
    assert found["engine_hours"] == account.engine_hours
