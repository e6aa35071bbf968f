"""Laws of the intake: units balance, redelivery changes nothing, a restored intake goes on as the first would have."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import Change, Tick
from schemas.codec import Decoded, decode, encode
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import Step, StepBatch
from schemas.topics import CHANGES, REQUESTS, STEPS, TICKS
from twin.accounting import Outcome
from twin.clock import Original, StepRun, Unit
from twin.intake import SNAPSHOT_ORIGINALS_BYTES, Intake, Message

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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=12), st.randoms())
def test_of_contents_in_conflict_none_is_released_whatever_the_order(told: list[tuple[int, int]], draw: Random) -> None:
    """Several contents of an identity, all within the lateness: requests and single steps."""
    contents = [lambda o, n, c: arrived(o, 1_000 + 10 * n + c, f"r{n}"), lambda o, n, c: one_step(o, n, c)]
    for content in contents:
        found = []
        for order in (told, draw.sample(told, len(told))):
            intake = Intake(LATENESS_US)
            messages = [content(offset, number, kind) for offset, (number, kind) in enumerate(order)]
            refused = [refusal for message in messages for refusal in intake.accept(message)]
            intake.accept(Message(TICKS.name, 0, 0, Decoded(Tick(deployment="d", at_us=START_US + 10**8))))
            released = units(intake)
            counts = intake.accounts.as_dict()
            assert counts["in"] == counts["applied"] + counts["duplicate"] + len(refused)
            assert len({refusal.position for refusal in refused}) == len(refused)
            found.append([unit.record for unit in released if not isinstance(unit.record, Tick)])
        kinds = {number: {kind for other, kind in told if other == number} for number, _ in told}
        assert len(found[0]) == sum(len(each) == 1 for each in kinds.values())
        assert found[0] == found[1]


def one_step(offset: int, number: int, kind: int) -> Message:
    step = Step(step=number, start_us=START_US + number * 10, duration_us=5 + kind)
    return Message(STEPS.name, 0, offset, Decoded(StepBatch(deployment="d", engine="0", steps=(step,))))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.sets(st.integers(0, 8), min_size=1), st.booleans())
def test_steps_in_conflict_leave_the_run_they_came_in(n: int, others: set[int], restarts: bool) -> None:
    intake = Intake(LATENESS_US)
    run = steps(0, 0, n)
    refused = list(intake.accept(run))
    for offset, number in enumerate(sorted(others), start=1):
        if restarts:
            again = Intake(LATENESS_US)
            again.restore(intake.snapshot(), intake.offsets())
            intake = again
        step = Step(step=number, start_us=START_US + number, duration_us=2)
        batch = StepBatch(deployment="d", engine="0", steps=(step,))
        refused += intake.accept(Message(STEPS.name, 0, offset, Decoded(batch)))
    bad = {number for number in others if number < n}
    assert {(refusal.position.offset, refusal.position.index) for refusal in refused} >= {(0, number) for number in bad}
    assert len(refused) == 2 * len(bad)
    assert intake.accounts.held() == len(intake) == n + len(others) - 2 * len(bad)
    intake.accept(Message(TICKS.name, 0, 0, Decoded(Tick(deployment="d", at_us=START_US + 10**8))))
    numbers = [unit.record.step for unit in units(intake) if isinstance(unit.record, Step)]
    assert numbers == sorted(set(range(n)) ^ others)


def test_a_conflict_reaches_what_waits_for_its_clock() -> None:
    intake = Intake(LATENESS_US)
    intake.accept(arrived(0, 0))
    assert intake.accept(arrived(1, 10**9, "r")) == []
    refused = intake.accept(arrived(2, 1, "r"))
    assert [refusal.position.offset for refusal in refused] == [1, 2]
    assert intake.accept(arrived(3, 2)) == []


def test_records_without_a_name_are_known_by_their_time_and_the_first_stands() -> None:
    intake = Intake(LATENESS_US)
    for offset, status in enumerate(("accepted", "applied")):
        change = Change(deployment="d", at_us=START_US, kind="scale", status=status)  # type: ignore[arg-type]
        refused = intake.accept(Message(CHANGES.name, 0, offset, Decoded(change)))
    assert [refusal.position.offset for refusal in refused] == [1]
    assert len(intake) == 1


def test_a_snapshot_holds_the_messages_of_the_newest_units_within_its_bound() -> None:
    intake = Intake(LATENESS_US)
    size = SNAPSHOT_ORIGINALS_BYTES // 3
    for offset, at_us in enumerate((30, 10, 20, 40, 10**9)):
        message = arrived(offset, at_us)
        intake.accept(Message(message.topic, 0, offset, message.decoded, b"", Original(value=bytes(size))))
    assert [item[2] for item in intake.snapshot()["originals"]] == [0, 3, 4]  # the last one is held for its clock


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
