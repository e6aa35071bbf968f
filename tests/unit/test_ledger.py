"""Laws of the ledger, on a made service that is late in a stretch that is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from test_advise import LINEAGE, change, predicted, scale

from pipelines.cli import main
from schemas.actions import Action, Withdrawal
from schemas.alerts import Alert
from schemas.changes import Change
from schemas.requests import RequestFinished
from schemas.slos import Slos, SloTarget
from twin.ledger import Account, Ledger
from twin.ledger_engines import Steps

START_US = 1_800_000_000_000_000
TARGET = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)
LATE = (300.0, 400.0)


def at(second: float) -> int:
    return START_US + round(second * 1e6)


def finished(late: Sequence[tuple[float, float]] = (LATE,), span_s: int = 900) -> list[RequestFinished]:
    """Two requests per second; TTFT 0.1 s, and 1 s in the late stretches."""
    made = []
    for number in range(2 * span_s):
        when = number / 2
        slow = any(begin <= when < end for begin, end in late)
        first = at(when + (1.0 if slow else 0.1))
        made.append(
            RequestFinished(
                deployment="d",
                request_id=str(number),
                at_us=first + 100_000,
                arrived_us=at(when),
                first_token_us=first,
                isl_tokens=10,
                osl_tokens=2,
            )
        )
    return made


def page(fired_s: float, resolved_s: float, name: str = "p") -> list[Alert]:
    return [
        Alert(
            deployment="d", at_us=at(s), alert_id=name, kind="slo_risk", state=state, cause="ttft", onset_us=at(fired_s)
        )
        for s, state in ((fired_s, "firing"), (resolved_s, "resolved"))
    ]


def action(opened_s: float, engines: int = 2, delta: int = 1, name: str = "a") -> Action:
    return Action(
        deployment="d",
        at_us=at(opened_s),
        action_id=name,
        state="proposed",
        phase="fine",
        what=scale(engines, delta),
        reversible=delta > 0,
        executable=True,
        act_before_us=at(opened_s + 10),
        expires_us=at(opened_s + 20),
        before=predicted(1.0),
        after=predicted(2.0),
        cost_engine_hours_per_hour=float(delta),
        confidence_ratio=0.9,
        authority="full",
        credibility="high",
        start_s=120.0,
        reasons=("why",),
        lineage=LINEAGE,
        opened_us=at(opened_s),
    )


def withdrawn(second: float, name: str = "a") -> Withdrawal:
    return Withdrawal(deployment="d", at_us=at(second), action_id=name, phase="fine", reason="over")


def done(second: float, before: int, after: int, name: str = "", status: str = "applied") -> Change:
    return Change(
        deployment="d",
        at_us=at(second),
        kind="scale",
        status=status,  # type: ignore[arg-type]
        action_id=name,
        engines_before=before,
        engines_after=after,
    )


def account(*records: Any, late: Sequence[tuple[float, float]] = (LATE,)) -> Account:
    ledger = Ledger("d", (TARGET,))
    for record in (*finished(late), *records):
        ledger.on_record(record)
    found = ledger.account()
    assert found.foreseen + sum(breach.foreseen_us is None for breach in found.breaches) == len(found.breaches)
    return found


def test_a_breach_is_found_where_it_is() -> None:
    (breach,) = account().breaches
    assert breach.foreseen_us is None
    assert at(LATE[0]) <= breach.start_us <= at(LATE[0] + 10)
    assert at(LATE[1]) <= breach.end_us <= at(LATE[1] + 31)
    assert breach.missed_requests == 200
    assert account(late=()).breaches == ()
    assert account(late=((300.0, 300.5),)).breaches == ()


@pytest.mark.parametrize(
    ("fired_s", "foreseen", "false"), [(250, True, 0), (350, False, 0), (50, False, 1), (600, False, 1)]
)
def test_a_page_counts_only_before_and_near(fired_s: float, foreseen: bool, false: int) -> None:
    found = account(*page(fired_s, fired_s + 20))
    assert bool(found.foreseen) is foreseen
    assert (found.pages, found.false_pages) == (1, false)
    if foreseen:
        assert found.breaches[0].lead_s == pytest.approx((found.breaches[0].start_us - at(fired_s)) / 1e6)


def test_a_proposal_ahead_foresees_and_one_that_would_be_ready_covers() -> None:
    early = account(action(150.0))
    assert (early.foreseen, early.covered, early.covered_requests) == (1, 1, 200)
    late = account(action(200.0))
    assert (late.foreseen, late.covered) == (1, 0)  # ready at 320 s only
    assert late.needless == 0


def test_fates_add_up_and_only_what_nobody_obeyed_can_be_needless() -> None:
    found = account(
        action(20.0, name="withdrawn"),
        withdrawn(60.0, "withdrawn"),
        action(210.0, name="obeyed"),
        done(211.0, 2, 3, "obeyed"),
        action(500.0, engines=3, name="refused"),
        done(505.0, 3, 4, "refused", "rejected"),
        action(700.0, engines=3, name="left"),
        action(800.0, engines=3, delta=-1, name="down"),
    )
    fates = {each.action.action_id: (each.fate, each.needless) for each in found.proposals}
    assert fates == {
        "withdrawn": ("withdrawn", True),
        "obeyed": ("obeyed", None),
        "refused": ("refused", True),
        "left": ("left", True),
        "down": ("left", None),
    }
    assert found.obeyed == 1


def test_order_across_topics_changes_nothing() -> None:
    records = [*page(250, 280), action(200.0), withdrawn(450.0), done(500.0, 2, 3), done(600.0, 3, 2)]
    assert account(*records) == account(*reversed(records))


def test_engine_hours_are_the_integral_of_the_count() -> None:
    found = account(done(450.0, 2, 4), done(450.0 + 225.0, 4, 1))
    end_s = (found.end_us - START_US) / 1e6
    assert found.engine_hours == pytest.approx((450 * 2 + 225 * 4 + (end_s - 675)) / 3600)
    assert (found.steps_done, found.reversals_done) == (2, 1)
    told_twice = account(done(450.0, 2, 4, "x", "accepted"), done(460.0, 2, 4, "x"), done(675.0, 4, 1))
    assert told_twice.engine_hours == pytest.approx(found.engine_hours)


def test_had_you_obeyed_adds_what_stood() -> None:
    found = account(action(200.0), withdrawn(560.0))
    assert found.engine_hours is not None
    assert found.engine_hours_obeyed == pytest.approx(found.engine_hours + 360 / 3600)
    assert account().engine_hours is None


def test_reversals_are_turns() -> None:
    up, down = action(10.0, name="1"), action(400.0, engines=3, delta=-1, name="2")
    assert account(up, withdrawn(30.0, "1"), down).reversals_proposed == 1
    assert account(up, withdrawn(30.0, "1"), action(400.0, name="3")).reversals_proposed == 0
    assert Steps(((0, 2), (1, 3), (2, 4))).reversals == 0


def test_an_answer_of_the_scheduler_is_an_obeyed_proposal() -> None:
    told = action(210.0)
    assert account(told, change(told, "accepted", 0)).proposals[0].fate == "obeyed"


def test_nothing_finished_is_nothing_to_account_for() -> None:
    with pytest.raises(ValueError, match="nothing to account for"):
        Ledger("d").account()


def test_targets_of_a_record_replace_those_given() -> None:
    slos = Slos(deployment="d", at_us=at(0), targets=(SloTarget(metric="ttft_s", quantile=0.95, limit_s=5.0),))
    assert account(slos).breaches == ()


def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ledger"]) == 2
    assert main(["ledger", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "a folder, or --broker" in said
    assert "neither an archive" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_command_accounts_for_a_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "twincast.toml").write_text(
        '[forecast]\ninsight = false\nscenarios = ["baseline"]\nhorizons_s = [30.0]\n'
        "coarse_replications = 1\nfine_replications = 2\nperiod_s = 60.0\n"
    )
    folder = Path(__file__).resolve().parents[2] / "examples" / "recordings" / "steady"
    arguments = ["--config", str(tmp_path / "twincast.toml"), "ledger", str(folder), "--slo", "ttft_s:0.95:5", "--json"]
    assert main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["requests"] > 100
    assert found["breaches"] == []
    assert found["mode"] == "shadow"
