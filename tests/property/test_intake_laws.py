"""Laws of the intake: units balance, redelivery changes nothing, a restored intake goes on as the first would have."""

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Decoded, decode, encode
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import Step, StepBatch
from schemas.topics import REQUESTS, STEPS
from twin.accounting import Outcome
from twin.clock import StepRun, Unit
from twin.intake import Intake, Message

START_US = 1_796_052_000_000_000
LATENESS_US = {REQUESTS.name: 1_000_000, STEPS.name: 1_000_000}


def arrived(offset: int, at_us: int, name: str | None = None) -> Message:
    event = RequestArrived(deployment="d", request_id=name or f"r{offset}", at_us=START_US + at_us, isl_tokens=9)
    return Message(REQUESTS.name, 0, offset, Decoded(event))


def steps(offset: int, at_us: int, n: int = 3) -> Message:
    made = tuple(Step(step=offset * 100 + i, start_us=START_US + at_us + i, duration_us=1) for i in range(n))
    return Message(STEPS.name, 0, offset, Decoded(StepBatch(deployment="d", engine="0", steps=made), units=n))


streams = st.lists(st.tuples(st.booleans(), st.integers(0, 8_000_000)), min_size=1, max_size=40)


def messages_of(stream: list[tuple[bool, int]]) -> list[Message]:
    return [arrived(i, at) if is_request else steps(i, at) for i, (is_request, at) in enumerate(stream)]


def released(intake: Intake, messages: list[Message]) -> list[Unit]:
    out = []
    for message in messages:
        intake.accept(message)
        out.extend(units(intake))
    return out


def units(intake: Intake, until_us: int = START_US + 10**9) -> list[Unit]:
    """What is released, one by one."""
    out: list[Unit] = []
    for item in intake.release(until_us):
        out += item.units() if isinstance(item, StepRun) else [item]
    return out


@settings(max_examples=60, deadline=None)
@given(streams)
def test_units_in_are_units_settled_and_units_held(stream: list[tuple[bool, int]]) -> None:
    intake = Intake(LATENESS_US)
    applied = released(intake, messages_of(stream))
    counts = intake.accounts.as_dict()
    assert counts["in"] == sum(1 if is_request else 3 for is_request, _ in stream)
    assert counts["applied"] == len(applied)
    assert intake.accounts.held() == len(intake)


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_redelivery_changes_nothing(stream: list[tuple[bool, int]], data: st.DataObject) -> None:
    messages = messages_of(stream)
    back = data.draw(st.integers(0, len(messages)))
    once, twice = Intake(LATENESS_US), Intake(LATENESS_US)
    expected = released(once, messages)
    got = released(twice, messages[:back]) + released(twice, messages)
    assert got == expected
    assert twice.snapshot() == once.snapshot()


@settings(max_examples=60, deadline=None)
@given(streams, st.data())
def test_a_restored_intake_goes_on_as_the_first(stream: list[tuple[bool, int]], data: st.DataObject) -> None:
    messages = messages_of(stream)
    cut = data.draw(st.integers(0, len(messages)))
    whole = Intake(LATENESS_US)
    expected = released(whole, messages)
    first, second = Intake(LATENESS_US), Intake(LATENESS_US)
    got = released(first, messages[:cut])
    second.restore(first.snapshot(), first.offsets())
    got += released(second, messages)  # redelivered from the start
    assert got == expected
    assert second.snapshot() == whole.snapshot()


def test_the_same_record_twice_counts_once_and_another_payload_is_a_conflict() -> None:
    intake = Intake(LATENESS_US)
    assert intake.accept(arrived(0, 10, "r")) == []
    assert intake.accept(arrived(1, 10, "r")) == []
    (refusal,) = intake.accept(arrived(2, 11, "r"))
    assert (refusal.outcome, refusal.reason, refusal.position.offset) == (Outcome.QUARANTINED, "id_conflict", 2)
    counts = intake.accounts.as_dict()
    assert (counts["duplicate"], counts["quarantined"], len(intake)) == (1, 1, 1)


def test_a_late_record_is_refused_and_named() -> None:
    intake = Intake({REQUESTS.name: 1_000_000})
    intake.accept(arrived(0, 5_000_000))
    (refusal,) = intake.accept(arrived(1, 3_900_000))
    assert refusal.outcome is Outcome.LATE


def test_time_running_backwards_inside_a_request_is_quarantined() -> None:
    intake = Intake(LATENESS_US)
    event = RequestFinished(
        deployment="d",
        request_id="r",
        at_us=START_US,
        arrived_us=START_US + 1,
        isl_tokens=4,
        osl_tokens=4,
    )
    (refusal,) = intake.accept(Message(REQUESTS.name, 0, 0, Decoded(event)))
    assert (refusal.outcome, refusal.reason) == (Outcome.QUARANTINED, "negative_duration")


def test_a_partly_bad_message_applies_its_good_steps() -> None:
    good = encode(StepBatch(deployment="d", engine="0", steps=steps(0, 0).decoded.record.steps))  # type: ignore[union-attr]
    bad = good.replace(b'"step":1,', b'"step":-1,', 1)
    assert bad != good
    intake = Intake({STEPS.name: 0})
    (refusal,) = intake.accept(Message(STEPS.name, 0, 0, decode(STEPS.name, bad)))
    assert (refusal.outcome, refusal.position.index) == (Outcome.DEAD_LETTER, 1)
    assert [unit.position.index for unit in units(intake, START_US + 10)] == [0, 2]
    assert intake.accounts.as_dict()["in"] == 3


def test_a_tombstone_is_counted_and_nothing_more() -> None:
    intake = Intake(LATENESS_US)
    assert intake.accept(Message(REQUESTS.name, 0, 0, None, b"r")) == []
    assert intake.accounts.as_dict()["tombstone"] == 1
