"""Wire steps as columns: shapes, gaps and classes."""

import numpy as np
import pytest

from schemas.steps import Step
from twin.cost.block import FEATURES, StepBlock, shape_features, shape_of, shape_row
from twin.cost.shape import StepShape

START_US = 1_796_052_000_000_000


def step(at_ms: int, **fields: object) -> Step:
    base = {"step": at_ms, "start_us": START_US + at_ms * 1_000, "duration_us": 5_000, "decode_requests": 1}
    return Step(**{**base, "running": 1, "waiting": 0, **fields})  # type: ignore[arg-type]


def test_columns_are_the_shape_in_the_order_of_the_features() -> None:
    shape = StepShape(1, 2, 3, 4, 5)
    assert shape_row(shape) == (1, 2, 3, 4, 5)
    assert list(shape_features(shape)) == list(FEATURES)
    assert list(shape_features(shape).values()) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_block_holds_what_the_steps_say() -> None:
    block = StepBlock.from_steps([step(0), step(10, duration_us=7_000, decode_requests=3, decode_context_tokens=90)])
    assert block.at_us.tolist() == [START_US + 5_000, START_US + 17_000]
    assert block.duration_s.tolist() == pytest.approx([0.005, 0.007])
    assert block.shapes[1].tolist() == [0, 0, 0, 3, 90]


def test_a_gap_is_counted_only_while_work_is_left() -> None:
    steps = [step(0), step(6), step(12, finished_requests=1), step(300), step(306, running=None), step(312)]
    gaps = StepBlock.from_steps(steps).gap_s
    assert gaps[[1, 2, 4]].tolist() == pytest.approx([0.001] * 3)
    assert np.isnan(gaps[[0, 3, 5]]).all()


def test_a_gap_reaches_over_steps_that_did_nothing() -> None:
    empty = step(6, decode_requests=0, duration_us=400, running=0, waiting=3)
    gaps = StepBlock.from_steps([step(0), empty, step(8)]).gap_s
    assert gaps[2] == pytest.approx(0.003)
    assert np.isnan(gaps[1])


def test_the_step_before_a_block_gives_its_first_gap() -> None:
    steps = [step(6 * i) for i in range(10)]
    whole = StepBlock.from_steps(steps)
    halves = StepBlock.from_steps(steps[:4]), StepBlock.from_steps(steps[4:], previous=steps[3])
    np.testing.assert_array_equal(np.concatenate([half.gap_s for half in halves]), whole.gap_s)


def test_attention_pairs_are_estimated_where_only_sums_are_known() -> None:
    known = step(0, prefill_requests=1, prefill_tokens=100, prefill_context_tokens=50, prefill_attention_pairs=10_050)
    sums = step(0, prefill_requests=1, prefill_tokens=100, prefill_context_tokens=50)
    assert shape_of(known).prefill_attention_pairs == 100 * 50 + 100 * 101 // 2 == 10_050
    assert shape_of(sums) == shape_of(known)


def test_classes_are_zero_where_a_step_has_others_and_nan_where_it_has_none() -> None:
    steps = [step(0, class_us={"attention": 1_000}), step(6, class_us={"copy": 500}), step(12)]
    block = StepBlock.from_steps(steps)
    assert block.class_s["attention"][:2].tolist() == [0.001, 0.0]
    assert block.class_s["copy"][:2].tolist() == [0.0, 0.0005]
    assert np.isnan(block.class_s["copy"][2])


@pytest.mark.parametrize("name", ["shapes", "duration_s", "gap_s", "attention"])
def test_columns_of_unequal_length_are_refused(name: str) -> None:
    columns = {"shapes": np.zeros((3, 5)), "duration_s": np.ones(3), "gap_s": np.ones(3), "attention": np.ones(3)}
    columns[name] = columns[name][:2]
    with pytest.raises(ValueError, match=name):
        StepBlock(
            at_us=np.arange(3),
            shapes=columns["shapes"],
            duration_s=columns["duration_s"],
            gap_s=columns["gap_s"],
            class_s={"attention": columns["attention"]},
        )
