"""Whatever passes the gate, the model stays finite: extreme rows, strange clocks, and the recordings at hand."""

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import START_US, rows_of, shapes_of, steps_of

from tests.bench import step_recordings
from twin.cost.block import StepBlock
from twin.cost.fit import STRATA, role_of, stratum_of
from twin.cost.model import StepCostModel
from twin.cost.shape import Role, StepShape

SHAPES = st.builds(
    StepShape,
    prefill_requests=st.integers(0, 10_000),
    prefill_tokens=st.integers(0, 10**9),
    prefill_attention_pairs=st.integers(0, 10**16),
    decode_requests=st.integers(0, 10**9),
    decode_context_tokens=st.integers(0, 10**9),
)
ROWS = st.tuples(SHAPES, st.floats(allow_nan=True), st.integers(-(10**12), 10**12), st.floats(allow_nan=True))
WARM = steps_of(shapes_of(600, 41), sigma=0.1)


def warm_model() -> StepCostModel:
    model = StepCostModel()
    model.learn_many(WARM)
    return model


WARM_DATA = orjson.dumps(warm_model().snapshot())


@given(st.lists(ROWS, min_size=1, max_size=60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_rows_leave_a_finite_model(rows: list[tuple[StepShape, float, int, float]], warm: bool) -> None:
    model = StepCostModel.restore(orjson.loads(WARM_DATA)) if warm else StepCostModel()
    before = model.steps
    block = StepBlock(
        at_us=np.cumsum([START_US, *(moved for _, _, moved, _ in rows[1:])]).astype(np.int64),
        shapes=rows_of([shape for shape, _, _, _ in rows]),
        duration_s=np.array([seconds for _, seconds, _, _ in rows]),
        gap_s=np.array([gap_s for _, _, _, gap_s in rows]),
    )
    with np.errstate(invalid="ignore"):
        learned = model.learn_block(block)
    assert model.steps - before + sum(model.refused.values()) == len(rows)
    assert (learned.predicted_s[learned.accepted] > 0.0).all()
    for shape in shapes_of(20, 42):
        assert 0.0 < model.predict(shape) < 1e6
    assert model.freeze(64).step_ps(StepShape(decode_requests=64)) > 0
    assert np.isfinite(model.noise().window_sigma_ratio)
    assert 0.0 <= model.gap_s <= 1.0
    restored = StepCostModel.restore(orjson.loads(orjson.dumps(model.snapshot())))
    assert orjson.dumps(restored.snapshot()) == orjson.dumps(model.snapshot())


@given(SHAPES)
@settings(max_examples=200, deadline=None)
def test_every_shape_has_a_stratum_of_its_own_role(shape: StepShape) -> None:
    row = rows_of([shape])[0]
    stratum = stratum_of(row)
    assert 0 <= stratum < STRATA
    names = (Role.PREFILL, Role.DECODE, Role.MIXED)
    assert names[role_of(row)] is shape.role
    one = rows_of([StepShape(1, max(shape.prefill_tokens, 1), 1, shape.decode_requests, 0)])[0]
    assert (stratum_of(one) == stratum) is (shape.prefill_tokens > 0)


@pytest.mark.parametrize("name", step_recordings.names() or ["none"])
def test_recorded_steps_are_foreseen(name: str) -> None:
    if name == "none":
        pytest.skip(f"no recordings in {step_recordings.RECORDINGS}")
    errors, roles = [], []
    for block in step_recordings.engines(name).values():
        predicted = StepCostModel().learn_many(block)
        late = np.isfinite(predicted) & (block.at_us - block.at_us[0] > 60_000_000)
        errors.append(np.abs(predicted[late] / block.duration_s[late] - 1.0))
        roles.append([role_of(row) for row in block.shapes[late]])
    every, role = np.concatenate(errors), np.concatenate(roles)
    assert every.mean() < 0.09
    assert all(every[role == i].mean() < 0.11 for i in range(3))
