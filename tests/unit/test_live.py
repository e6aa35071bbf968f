"""Laws of the live fold, against a small engine run written out by hand."""

import dataclasses

import msgspec

from schemas.requests import RequestArrived
from schemas.steps import Step, StepRow
from twin.live import LiveEngine

START_US = 1_796_052_000_000_000


def arrived(name: str, isl_tokens: int) -> RequestArrived:
    return RequestArrived(deployment="d", request_id=name, at_us=START_US, isl_tokens=isl_tokens)


def step(number: int, rows: list[StepRow], **counts: object) -> Step:
    decodes = [row for row in rows if row.kind == "decode"]
    prefills = [row for row in rows if row.kind != "decode"]
    defaults: dict[str, object] = {
        "prefill_requests": len(prefills),
        "prefill_tokens": sum(row.tokens for row in prefills),
        "decode_requests": len(decodes),
        "running": len(rows),
    }
    return Step(
        step=number,
        start_us=START_US + number * 10_000,
        duration_us=9_000,
        rows=tuple(rows),
        **{**defaults, **counts},  # type: ignore[arg-type]
    )


STEPS = [
    step(0, [StepRow("a", "first", 100, 0), StepRow("b", "first", 28, 0)]),
    step(1, [StepRow("a", "decode", 1, 100), StepRow("b", "chunk", 72, 28)]),
    step(2, [StepRow("a", "decode", 1, 101), StepRow("b", "decode", 1, 100)]),
    step(3, [StepRow("a", "decode", 1, 102)], preempted=("b",)),
    step(4, [StepRow("a", "decode", 1, 103), StepRow("b", "resumed", 38, 64)], cached_tokens=0),
    step(5, [StepRow("a", "decode", 1, 104), StepRow("b", "decode", 1, 102)]),
]


def fold(steps: list[Step]) -> LiveEngine:
    live = LiveEngine()
    for name in ("a", "b", "c"):
        live.arrive(arrived(name, 100))
    for each in steps:
        live.apply_steps([each])
    return live


def test_rows_give_exact_progress_through_a_preemption() -> None:
    live = fold(STEPS)
    a, b = live.running["a"], live.running["b"]
    assert (a.computed_tokens, a.generated_tokens) == (105, 6)
    assert (b.computed_tokens, b.generated_tokens, b.preemptions) == (103, 4, 1)
    assert a.first_token_us == STEPS[0].at_us
    assert b.first_token_us == STEPS[1].at_us
    assert list(live.waiting) == ["c"]


def test_a_decoding_request_has_computed_all_tokens_but_the_newest() -> None:
    for n in range(1, len(STEPS) + 1):
        for request in fold(STEPS[:n]).running.values():
            if request.generated_tokens:
                assert request.computed_tokens == request.isl_tokens + request.generated_tokens - 1


def test_counts_alone_give_the_same_progress() -> None:
    bare = [without_rows(each) for each in STEPS]
    exact, told = fold(STEPS), fold(bare)
    assert told.running == exact.running
    assert told.waiting == exact.waiting


def without_rows(each: Step) -> Step:
    """The same step without rows."""
    return msgspec.structs.replace(each, rows=())


def test_a_preempted_request_waits_first_in_line_with_nothing_computed() -> None:
    live = fold(STEPS[:4])
    assert list(live.waiting) == ["b", "c"]
    assert live.waiting["b"].computed_tokens == 0
    assert live.waiting["b"].generated_tokens == 2


def test_a_request_is_in_one_place_and_leaves_once() -> None:
    live = fold(STEPS)
    assert not set(live.running) & set(live.waiting)
    assert live.leave("b") is not None
    assert live.leave("b") is None
    assert len(live) == 2


def test_a_request_that_finished_in_the_engine_is_not_running_before_the_client_says_so() -> None:
    live = fold([*STEPS, step(6, [StepRow("a", "decode", 1, 105)])])
    assert list(live.running) == ["a"]


def test_snapshot_and_restore_change_nothing() -> None:
    live = fold(STEPS)
    again = LiveEngine()
    again.restore(live.snapshot())
    assert again.snapshot() == live.snapshot()
    assert dataclasses.asdict(again.running["b"]) == dataclasses.asdict(live.running["b"])
