"""Records of actions survive the wire, and what they may not say is refused."""

import pytest

from schemas.actions import (
    Action,
    CutOver,
    EngineWeight,
    HoldBack,
    Predicted,
    Scale,
    SetLimit,
    ShiftTraffic,
    What,
    Withdrawal,
)
from schemas.codec import SchemaError, decode, encode
from schemas.forecasts import Estimate
from schemas.lineage import Lineage
from schemas.topics import ACTIONS

AT_US = 1_700_000_000_000_000
LINEAGE = Lineage(twincast_version="1", settings_hash="a", costs_hash="b", seed=1, replications=4, engine="kernel")
KINDS = (
    Scale(engines_before=2, engines_after=1, device="A100", remove=("e1",)),
    ShiftTraffic(weights=(EngineWeight(engine="e0", weight=0.25), EngineWeight(engine="e1", weight=0.75))),
    SetLimit(limit="max_num_seqs", before=24, after=32),
    HoldBack(how="defer", priority_from=1, traffic_ratio=0.3),
    CutOver(engine="e1", to=("e0", "e2")),
)


def _action(what: What) -> Action:
    predicted = Predicted(
        horizon_s=120.0, breach_probability=0.5, goodput_requests_per_s=Estimate(value=2.0, low=1.0, high=3.0)
    )
    return Action(
        deployment="d",
        at_us=AT_US,
        action_id="d/scale/1",
        state="proposed",
        phase="fine",
        what=what,
        reversible=True,
        executable=False,
        act_before_us=AT_US,
        expires_us=AT_US,
        before=predicted,
        after=predicted,
        cost_engine_hours_per_hour=1.0,
        confidence_ratio=0.9,
        authority="advisory",
        credibility="low",
        start_s=120.0,
        reasons=("why",),
        lineage=LINEAGE,
        opened_us=AT_US,
    )


@pytest.mark.parametrize("what", KINDS, ids=lambda what: type(what).__name__)
def test_an_action_is_the_same_after_the_wire(what: What) -> None:
    action = _action(what)
    assert decode(ACTIONS.name, encode(action)).record == action


def test_a_withdrawal_is_told_from_an_action() -> None:
    withdrawal = Withdrawal(deployment="d", at_us=AT_US, action_id="d/scale/1", phase="fine", reason="rate fell")
    assert decode(ACTIONS.name, encode(withdrawal)).record == withdrawal


def test_a_kind_that_does_not_exist_is_refused() -> None:
    body = encode(_action(KINDS[0])).replace(b'"kind":"scale"', b'"kind":"reboot"')
    with pytest.raises(SchemaError):
        decode(ACTIONS.name, body)
