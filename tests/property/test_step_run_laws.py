"""Laws of steps that travel together: whatever is done to a run is what would have been done to each of its steps."""

import heapq
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Decoded
from schemas.steps import Step, StepBatch, StepRow
from schemas.topics import REQUESTS, STEPS
from twin import identity
from twin.clock import MAX_JUMP_US, EventClock, Position, ReorderBuffer, StepRun, Unit
from twin.engine_room import BLOCK_STEPS, EngineRoom
from twin.identity import Identities, Seen
from twin.intake import Intake, Message, Refusal
from twin.live import LiveEngine, LiveRequest

START_US = 1_796_052_000_000_000
LATENESS_US = {REQUESTS.name: 1_000_000, STEPS.name: 1_000_000}


def step(number: int, end_us: int, **more: int) -> Step:
    return Step(step=number, start_us=START_US + end_us - 1, duration_us=1, **more)


def run_of(offset: int, ends_us: list[int]) -> StepRun:
    steps = tuple(step(offset * 100 + i, at) for i, at in enumerate(sorted(ends_us)))
    return StepRun(Position(STEPS.name, 0, offset), "0", 0, steps, [s.at_us for s in steps], range(len(steps)))


ends = st.lists(st.integers(0, 30), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(ends, max_size=6), st.lists(st.integers(0, 30), max_size=8), st.lists(st.integers(0, 32), max_size=6))
def test_runs_are_released_in_the_order_of_their_units(
    runs: list[list[int]], single: list[int], until: list[int]
) -> None:
    together = ReorderBuffer()
    apart: list[tuple[int, Position, Unit]] = []
    for offset, ends_us in enumerate(runs):
        run = run_of(offset, ends_us)
        together.push_run(run)
        apart += [(unit.at_us, unit.position, unit) for unit in run.units()]
    for offset, at_us in enumerate(single):
        unit = Unit(START_US + at_us, Position(REQUESTS.name, 0, offset), None)
        together.push(unit)
        apart.append((unit.at_us, unit.position, unit))
    heapq.heapify(apart)
    for until_us in sorted(until):
        released: list[Unit] = []
        for item in together.pop_until(START_US + until_us):
            released += item.units() if isinstance(item, StepRun) else [item]
        expected = []
        while apart and apart[0][0] <= START_US + until_us:
            expected.append(heapq.heappop(apart)[2])
        assert released == expected
        assert len(together) == len(apart)
        assert together.units() == [unit for _, _, unit in sorted(apart)]


def test_steps_that_follow_each_other_come_as_one_run() -> None:
    buffer = ReorderBuffer()
    buffer.push_run(run_of(0, list(range(50))))
    buffer.push(Unit(START_US + 20, Position(REQUESTS.name, 0, 0), None))
    sizes = [len(item) if isinstance(item, StepRun) else 0 for item in buffer.pop_until(START_US + 40)]
    assert sizes == [20, 0, 21]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3 * MAX_JUMP_US), max_size=4),
    st.lists(st.integers(0, 3 * MAX_JUMP_US), min_size=1, max_size=6),
)
def test_a_plain_run_does_to_the_clock_what_its_units_do(before: list[int], ends_us: list[int]) -> None:
    """And only one that is plain is taken together."""
    one, other = EventClock(LATENESS_US), EventClock(LATENESS_US)
    for offset, at_us in enumerate(before):
        for clock in (one, other):
            clock.admit(Unit(START_US + at_us, Position(STEPS.name, 0, offset), None))
            clock.tick(START_US + at_us // 2)
            clock.advance()
    run = run_of(99, ends_us)
    plain = one.is_plain(STEPS.name, run.at_us[0], run.at_us[-1])
    outcomes = [(other.admit(unit), other.is_late(unit)) for unit in run.units()]
    untouched = all(
        answer == ([unit], []) and not late for (answer, late), unit in zip(outcomes, run.units(), strict=True)
    )
    assert untouched or not plain
    if plain:
        one.move(STEPS.name, run.at_us[-1])
        assert one.snapshot() == other.snapshot()
        assert one.advance() == other.advance()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 6), st.booleans()), max_size=20))
def test_a_run_is_remembered_as_its_steps_are(calls: list[tuple[int, int, int, bool]]) -> None:
    together, apart = Identities(), Identities()
    before = identity.REMEMBERED_STEPS
    identity.REMEMBERED_STEPS = 8
    try:
        for epoch, first, n, as_run in calls:
            steps = [step(first + i, 7) for i in range(n)]
            expected = [apart.check(unit_of(each, epoch)) for each in steps]
            if as_run and together.is_beyond("e", epoch, first):
                assert expected == [Seen.NEW] * n
                together.remember("e", epoch, first, [each.start_us ^ each.duration_us for each in steps])
            else:
                assert [together.check(unit_of(each, epoch)) for each in steps] == expected
        assert list(together.snapshot()["steps"].items()) == list(apart.snapshot()["steps"].items())
    finally:
        identity.REMEMBERED_STEPS = before


def unit_of(each: Step, epoch: int) -> Unit:
    return Unit(each.at_us, Position(STEPS.name, 0, 0), each, engine="e", epoch=epoch)


def test_numbers_of_engines_long_gone_are_forgotten() -> None:
    seen = Identities()
    for epoch in range(3 * identity.MAX_PLACES):
        seen.remember("e", epoch, 5, [1])
    assert len(seen._highest) <= identity.MAX_PLACES + 1
    assert not seen.is_beyond("e", 3 * identity.MAX_PLACES - 1, 5)


odd = st.sampled_from(["plain", "plain", "plain", "swapped", "again", "zero", "ahead", "backwards", "long", "skipping"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(odd, st.integers(1, 6), st.integers(0, 2_000_000)), min_size=1, max_size=25))
def test_messages_of_many_end_as_messages_of_one(stream: list[tuple[str, int, int]]) -> None:
    """The same steps, one message each, end the same way: outcomes, order of application, what is remembered."""
    many, single = Intake(LATENESS_US), Intake(LATENESS_US)
    number, now_us, offset = 0, 0, 0
    got: list[Step] = []
    expected: list[Step] = []
    refused: list[Refusal] = []
    refused_singly: list[Refusal] = []
    for place, (kind, n, gap_us) in enumerate(stream):
        now_us += gap_us
        steps = altered([step(number + i, now_us + i) for i in range(n)], kind)
        number += n
        batch = StepBatch(deployment="d", engine="0", steps=tuple(steps))
        refused += many.accept(Message(STEPS.name, 0, place, Decoded(batch, units=n)))
        for each in steps:
            lone = StepBatch(deployment="d", engine="0", steps=(each,))
            # The watermark moves after a message, and these stand for one.
            single.clock.advance = lambda: 0  # type: ignore[method-assign]
            refused_singly += single.accept(Message(STEPS.name, 0, offset, Decoded(lone)))
            del single.clock.advance  # type: ignore[method-assign]
            offset += 1
        for intake in (many, single):
            intake.clock.tick(START_US + now_us - 1_500_000)
            intake.clock.advance()
        got += steps_of(many)
        expected += steps_of(single)
    assert got == expected
    assert many.accounts.as_dict()["applied"] == len(got)
    assert many.accounts.as_dict() == single.accounts.as_dict()
    assert [(r.outcome, r.reason, r.record) for r in refused] == [
        (r.outcome, r.reason, r.record) for r in refused_singly
    ]
    assert many.snapshot()["identities"] == single.snapshot()["identities"]
    assert many.snapshot()["clock"] == single.snapshot()["clock"]


def altered(steps: list[Step], kind: str) -> list[Step]:
    last = steps[-1]
    if kind == "swapped":
        return steps[::-1]
    if kind == "again":
        return [*steps[:-1], steps[0]]
    if kind == "zero":
        return [*steps[:-1], msgspec.structs.replace(last, duration_us=0, decode_requests=1)]
    if kind == "ahead":
        return [*steps[:-1], msgspec.structs.replace(last, start_us=last.start_us + 2 * MAX_JUMP_US)]
    if kind == "backwards":
        return [*steps[:-1], msgspec.structs.replace(last, start_us=last.start_us - 3_000_000)]
    if kind == "long":
        return [*steps[:-1], msgspec.structs.replace(last, duration_us=90_000_000_000)]
    if kind == "skipping":
        return [*steps[:-1], msgspec.structs.replace(last, step=last.step + 1_000_000)]
    return steps


def steps_of(intake: Intake) -> list[Step]:
    found: list[Step] = []
    for item in intake.release(START_US + 10**12):
        found += item.steps if isinstance(item, StepRun) else [item.record]
    return found


shapes = st.tuples(
    st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from([(), (), (), ("r0",)]), st.integers(0, 9)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(shapes, min_size=1, max_size=30), st.lists(st.integers(1, 60), max_size=5), st.integers(0, 5))
def test_steps_fold_together_as_they_fold_one_by_one(
    scheduled: list[tuple[int, int, tuple[str, ...], int]], prompts: list[int], decoding: int
) -> None:
    steps = [
        Step(
            step=i, start_us=START_US + 10 * i, duration_us=5, decode_requests=decodes, prefill_requests=prefills,
            prefill_tokens=20 * prefills, preempted=preempted, kv_used_blocks=i,
            rows=(StepRow("r1", "decode", 1, 70),) if rows == 9 else (),
        )
        for i, (decodes, prefills, preempted, rows) in enumerate(scheduled)
    ]  # fmt: skip
    together, apart = live(prompts, decoding), live(prompts, decoding)
    together.apply_steps(steps)
    for each in steps:
        apart.apply_steps([each])
    assert together.snapshot() == apart.snapshot()


def live(prompts: list[int], decoding: int) -> LiveEngine:
    engine = LiveEngine()
    for place, isl_tokens in enumerate(prompts):
        request = LiveRequest(f"r{place}", START_US - place, isl_tokens)
        if place < decoding:
            request.generated_tokens = request.computed_tokens = 1 + place
            request.computed_tokens += isl_tokens - (place % 3)
            engine.running[request.request_id] = request
        else:
            engine.waiting[request.request_id] = request
    return engine


def test_blocks_are_learned_at_the_same_steps_however_they_come() -> None:
    steps = [step(i, 9_000 * i, decode_requests=2, running=2, decode_context_tokens=90) for i in range(2_600)]
    one, other = EngineRoom("0"), EngineRoom("0")
    blocks = [block for each in steps for block, _ in one.on_step(each)]
    cuts = [0, 10, 1_000, 1_030, 1_031, 2_600]
    parts = [block for a, b in pairwise(cuts) for block, _ in other.on_steps(steps[a:b])]
    assert [len(block) for block in parts] == [len(block) for block in blocks] == [BLOCK_STEPS] * 2
    assert one.snapshot() == other.snapshot()
