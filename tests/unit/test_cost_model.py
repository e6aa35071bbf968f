"""Learned step costs: what must hold whatever the engine, then what a known engine must teach."""

import dataclasses
from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import START_US, TRUTH, part, rows_of, shapes_of, steps_of

from twin.cost.block import FEATURES, StepBlock, shape_features
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.model import StepCostModel
from twin.cost.shape import Role, StepShape

DECODE = StepShape(decode_requests=8, decode_context_tokens=2400)
PREFILL = StepShape(1, 128, 128 * 129 // 2)
MIXED = StepShape(1, 128, 128 * 129 // 2, 8, 2400)
PROBES = (DECODE, PREFILL, MIXED)


def learned(block: StepBlock) -> StepCostModel:
    model = StepCostModel()
    model.learn_many(block)
    return model


def truth_s(shape: StepShape) -> float:
    return TRUTH.step_ps(shape) / PS_PER_S


def one(at_us: int, shape: StepShape, seconds: float) -> StepBlock:
    return StepBlock(
        at_us=np.array([at_us], dtype=np.int64),
        shapes=rows_of([shape]),
        duration_s=np.array([seconds]),
        gap_s=np.array([np.nan]),
    )


TRAINED = learned(steps_of(shapes_of(3_000, 1), sigma=0.05, seed=1))


@given(st.lists(st.integers(0, 700), max_size=6))
@settings(max_examples=15, deadline=None)
def test_blocks_and_single_steps_lead_to_the_same_bytes(cuts: list[int]) -> None:
    block = steps_of(shapes_of(700, 3), sigma=0.05)
    whole, cut = StepCostModel(), StepCostModel()
    predicted = whole.learn_many(block)
    bounds = [0, *sorted(cuts), 700]
    in_parts = np.concatenate([cut.learn_many(part(block, a, b)) for a, b in pairwise(bounds)])
    assert orjson.dumps(whole.snapshot()) == orjson.dumps(cut.snapshot())
    np.testing.assert_array_equal(predicted, in_parts)


def test_river_protocol_and_block_agree() -> None:
    shapes = shapes_of(300, 4)
    block = steps_of(shapes, sigma=0.05)
    whole, single = StepCostModel(), StepCostModel()
    whole.learn_many(block)
    for i, shape in enumerate(shapes):
        assert single.predict_one(shape_features(shape)) > 0.0
        single.learn_one(
            shape_features(shape), block.duration_s[i], at_us=int(block.at_us[i]), gap_s=float(block.gap_s[i])
        )
    for probe in PROBES:
        assert single.predict_one(shape_features(probe)) == pytest.approx(whole.predict(probe), rel=1e-5)
    assert single.snapshot() == whole.snapshot()


BAD = {
    "not_finite": (DECODE, float("nan")),
    "not_positive": (DECODE, -0.01),
    "no_tokens": (StepShape(), 0.0004),
    "absurd_duration": (DECODE, 1e19),
    "absurd_shape": (StepShape(decode_requests=1, decode_context_tokens=10**12), 0.01),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_step_is_counted_and_changes_nothing_else(reason: str) -> None:
    shape, seconds = BAD[reason]
    block = steps_of(shapes_of(400, 5), sigma=0.05)
    model, same = learned(block), learned(block)
    told = model.learn_block(one(int(block.at_us[-1]) + 10_000, shape, seconds))
    assert model.refused == {reason: 1}
    assert not told.accepted.any()
    assert np.isnan(told.predicted_s).all()
    changed, unchanged = model.snapshot(), same.snapshot()
    changed["state"]["refused"] = unchanged["state"]["refused"]
    assert changed == unchanged


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_shape_that_is_not_finite_never_reaches_the_model(value: float) -> None:
    model = learned(steps_of(shapes_of(200, 5)))
    before = model.predict(DECODE)
    for name in FEATURES:
        model.learn_one({**shape_features(DECODE), name: value}, 0.01, at_us=model.at_us + 10_000)
    assert model.refused == {"not_finite": 5}
    assert model.predict(DECODE) == before


def test_a_step_told_twice_is_learned_once() -> None:
    block = steps_of(shapes_of(100, 6))
    model = learned(block)
    model.learn_many(part(block, 99, 100))
    assert model.refused == {"duplicate": 1}
    assert model.steps == 100


def test_steps_before_the_last_one_are_refused_until_the_clock_is_seen_to_be_wrong() -> None:
    model = learned(steps_of(shapes_of(500, 7)))
    back = steps_of(shapes_of(100, 8), start_us=START_US - 3_600_000_000)
    model.learn_many(back)
    assert model.refused == {"clock_back": 64}
    assert model.steps == 500 + 36
    assert model.at_us == back.at_us[-1]


def test_one_clock_in_the_future_does_not_silence_the_engine() -> None:
    model = learned(steps_of(shapes_of(500, 7)))
    now_us = model.at_us
    model.learn_many(one(now_us + 10**13, DECODE, truth_s(DECODE)))
    model.learn_many(steps_of(shapes_of(200, 9), start_us=now_us))
    assert model.steps == 501 + 200 - 64
    assert model.predict(DECODE) == pytest.approx(truth_s(DECODE), rel=0.02)


@given(
    st.integers(0, 3),
    st.integers(0, 4096),
    st.integers(0, 10**7),
    st.integers(0, 600),
    st.integers(0, 10**6),
    st.sampled_from(range(5)),
    st.integers(1, 1000),
)
@settings(max_examples=100, deadline=None)
def test_a_cost_is_positive_and_within_a_role_never_falls_as_a_count_grows(
    requests: int, tokens: int, pairs: int, decodes: int, context: int, which: int, more: int
) -> None:
    shape = StepShape(requests, tokens, pairs, decodes, context)
    name = FEATURES[which]
    larger = dataclasses.replace(shape, **{name: getattr(shape, name) + more})
    frozen = TRAINED.freeze(256)
    assert TRAINED.predict(shape) > 0.0
    assert frozen.step_ps(shape) > 0
    if larger.role is shape.role:
        assert TRAINED.predict(larger) >= TRAINED.predict(shape) * (1 - 1e-12)
        assert frozen.step_ps(larger) >= frozen.step_ps(shape)


def test_a_snapshot_goes_on_as_the_original() -> None:
    first, second = part(steps_of(shapes_of(1_500, 10), sigma=0.1), 0, 700), None
    second = part(steps_of(shapes_of(1_500, 10), sigma=0.1), 700, 1_500)
    original = learned(first)
    restored = StepCostModel.restore(orjson.loads(orjson.dumps(original.snapshot())))
    original.learn_many(second)
    restored.learn_many(second)
    assert orjson.dumps(original.snapshot()) == orjson.dumps(restored.snapshot())
    assert original.freeze(24) == restored.freeze(24)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 99),
        (("settings",), {}),
        (("state",), None),
        (("state", "joint"), [1.0]),
        (("state", "joint"), None),
        (("state", "met"), [-1]),
        (("state", "numbers"), ["x"] * 12),
        (("state", "strata", "weight"), [float("nan")]),
        (("state", "noise"), []),
        (("classes",), {"version": 1}),
    ],
)
def test_a_damaged_snapshot_is_refused(path: tuple[str, ...], value: object) -> None:
    data = learned(steps_of(shapes_of(100, 11))).snapshot()
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError, match="snapshot"):
        StepCostModel.restore(data)


def test_a_known_engine_is_learned() -> None:
    model = learned(steps_of(shapes_of(3_000, 12)))
    for shape in shapes_of(200, 13):
        assert model.predict(shape) == pytest.approx(truth_s(shape), rel=0.01)
    frozen = model.freeze(24, with_gap=False)
    for probe in PROBES:
        assert frozen.step_ps(probe) / PS_PER_S == pytest.approx(model.predict(probe), rel=0.005)


def test_an_engine_twice_as_slow_costs_twice_as_much() -> None:
    shapes = shapes_of(3_000, 12)
    slow = learned(steps_of(shapes, truth=TRUTH.scaled(2.0), sigma=0.05))
    fast = learned(steps_of(shapes, sigma=0.05))
    for probe in PROBES:
        assert slow.predict(probe) == pytest.approx(2.0 * fast.predict(probe), rel=0.02)


def test_a_slow_machine_is_not_blamed_on_the_batch() -> None:
    """The machine is slow exactly when the batch is large: the shape must keep the ratio of large to small."""
    small, large = shapes_of(1_500, 14, most_decodes=6), shapes_of(1_500, 15, most_decodes=24)
    calm = small + large + small + large
    model = learned(steps_of(calm, sigma=0.03))
    slow_from_s = (model.at_us - START_US) / 1e6
    rest = steps_of(calm + large * 2, level=lambda s: 1.5 if s > slow_from_s else 1.0, sigma=0.03)
    model.learn_many(part(rest, len(calm), len(calm) + 3_000))
    ratio = model.predict(StepShape(decode_requests=24)) / model.predict(StepShape(decode_requests=2))
    assert ratio == pytest.approx(
        truth_s(StepShape(decode_requests=24)) / truth_s(StepShape(decode_requests=2)), rel=0.05
    )
    assert model.level == pytest.approx(1.5, rel=0.05)


def test_a_jump_of_the_level_is_followed_within_seconds() -> None:
    shapes = shapes_of(6_000, 16)
    block = steps_of(shapes, level=lambda s: 2.1 if s > 30.0 else 1.0, sigma=0.05)
    model = StepCostModel()
    predicted = model.learn_many(block)
    seconds = (block.at_us - START_US) / 1e6
    after = (seconds > 36.0) & (seconds < 46.0)
    assert model.jumps == 1
    assert model.jumped_us == pytest.approx(START_US + 32_000_000, abs=2_000_000)
    assert StepCostModel().jumped_us is None
    assert np.mean(np.abs(predicted[after] / block.duration_s[after] - 1.0)) < 0.08


def test_work_of_a_kind_never_met_says_nothing_of_the_level() -> None:
    """Chunks far longer than any before, at three times the slope: the shape is wrong, not the machine."""
    dear = dataclasses.replace(TRUTH.prefill, prefill_token_ps=3 * TRUTH.prefill.prefill_token_ps)
    truth = FrozenStepCost(prefill=dear, decode=TRUTH.decode, mixed=TRUTH.mixed)
    decodes = [shape for shape in shapes_of(3_000, 27) if shape.role is not Role.PREFILL]
    model = learned(steps_of(decodes, sigma=0.03))
    chunks = [StepShape(1, 2_048, 2_048 * 1_024)] * 40
    block = steps_of(chunks + decodes[:500], sigma=0.03, truth=truth, start_us=model.at_us)
    told = model.learn_block(block)
    assert model.jumps == 0
    assert model.level == pytest.approx(1.0, rel=0.05)
    assert np.isnan(told.shape_s[:10]).all()
    assert model.predict(chunks[0]) == pytest.approx(truth.step_ps(chunks[0]) / PS_PER_S, rel=0.1)


def test_what_seems_to_get_cheaper_with_more_work_is_learned_as_flat() -> None:
    shapes = shapes_of(2_000, 25)
    block = steps_of(shapes)
    falling = 0.05 - 1e-6 * block.shapes[:, 4] - 2e-4 * block.shapes[:, 3] - 5e-5 * block.shapes[:, 1]
    model = learned(dataclasses.replace(block, duration_s=falling))
    small, large = StepShape(decode_requests=1, decode_context_tokens=100), StepShape(0, 0, 0, 24, 9_000)
    assert 0.0 < model.predict(small) <= model.predict(large)
    assert model.predict(PREFILL) <= model.predict(dataclasses.replace(PREFILL, prefill_tokens=256))


def test_hours_of_one_shape_do_not_push_out_the_rest() -> None:
    model = learned(steps_of(shapes_of(3_000, 17), sigma=0.03))
    steady = [StepShape(decode_requests=4, decode_context_tokens=1000)] * 20_000
    block = steps_of(steady, sigma=0.05, gap_s=0.6, start_us=model.at_us)
    assert (block.at_us[-1] - block.at_us[0]) / 3_600e6 > 3
    model.learn_many(block)
    for probe in (*PROBES, StepShape(decode_requests=24, decode_context_tokens=7000)):
        assert model.predict(probe) == pytest.approx(truth_s(probe), rel=0.06)


def test_the_prior_speaks_before_any_step_and_its_efficiency_is_learned() -> None:
    prior = TRUTH.scaled(0.5)
    model = StepCostModel(prior)
    for probe in PROBES:
        assert model.predict(probe) == pytest.approx(prior.step_ps(probe) / PS_PER_S, rel=0.01)
    decodes = [shape for shape in shapes_of(3_000, 18) if shape.role is Role.DECODE]
    model.learn_many(steps_of(decodes, sigma=0.02))
    assert not model.has_seen(PREFILL)
    assert model.has_seen(DECODE)
    assert model.predict(PREFILL) == pytest.approx(truth_s(PREFILL), rel=0.1)


def test_the_batch_goes_on_as_it_grew_where_it_was_never_seen() -> None:
    decodes = [shape for shape in shapes_of(3_000, 19, most_decodes=12) if shape.role is Role.DECODE]
    model = learned(steps_of(decodes, sigma=0.02))
    beyond = StepShape(decode_requests=48, decode_context_tokens=14_400)
    assert model.predict(beyond) == pytest.approx(truth_s(beyond), rel=0.15)


def test_the_mean_gap_is_part_of_a_frozen_step() -> None:
    block = steps_of(shapes_of(1_000, 20))
    gaps = block.gap_s.copy()
    gaps[::10] = 0.0021
    gaps[5::10] = np.nan
    model = learned(dataclasses.replace(block, gap_s=gaps))
    assert model.gap_s == pytest.approx((0.0021 + 8 * 0.0001) / 9, rel=0.02)
    with_gap, without = model.freeze(8), model.freeze(8, with_gap=False)
    assert with_gap.step_ps(DECODE) - without.step_ps(DECODE) == pytest.approx(model.gap_s * PS_PER_S, abs=2)


def test_rare_stalls_count_in_the_total_but_not_in_the_single_step() -> None:
    block = steps_of(shapes_of(4_000, 21))
    stalled = block.duration_s.copy()
    stalled[::400] += 0.5
    model = learned(dataclasses.replace(block, duration_s=stalled))
    frozen = model.freeze(24, with_gap=False)
    total = sum(frozen.step_ps(shape) for shape in shapes_of(4_000, 21)) / PS_PER_S
    assert total == pytest.approx(stalled.sum(), rel=0.05)
    assert total > block.duration_s.sum() * 1.03


def test_noise_tells_a_slow_minute_from_slow_steps() -> None:
    shapes = shapes_of(30_000, 22)
    single = learned(steps_of(shapes, sigma=0.1)).noise()
    rng = np.random.default_rng(5)
    levels = np.exp(np.cumsum(rng.standard_normal(40)) * 0.08)
    minutes = learned(steps_of(shapes, level=lambda s: float(levels[int(s // 15)]), sigma=0.1)).noise()
    assert single.windows > 3
    assert minutes.window_sigma_ratio > 1.5 * single.window_sigma_ratio
    assert minutes.epoch_rho > single.epoch_rho
    assert 0.0 <= single.epoch_rho < 0.3
    q05, q95 = single.decode.ratio_quantiles[1], single.decode.ratio_quantiles[-2]
    assert np.log(q95 / q05) == pytest.approx(2 * 1.645 * 0.1, rel=0.15)


def test_a_level_that_holds_is_no_noise() -> None:
    held = steps_of(shapes_of(30_000, 26), level=lambda s: 1.5 if s > 30.0 else 1.0, sigma=0.05)
    assert learned(held).noise().window_sigma_ratio < 0.04


def test_the_predicted_p99_is_exceeded_by_one_step_in_a_hundred() -> None:
    block = steps_of(shapes_of(20_000, 23), sigma=0.1)
    told = StepCostModel().learn_block(block)
    late = slice(8_000, None)
    assert np.mean(block.duration_s[late] > told.p99_s[late]) == pytest.approx(0.01, abs=0.004)


def test_classes_are_learned_apart_and_follow_the_level() -> None:
    shapes = shapes_of(4_000, 24)
    block = steps_of(shapes, level=lambda s: 1.3 if s > 20 else 1.0)
    attention = block.shapes[:, 4] * 5e-7 + block.shapes[:, 2] * 1.7e-7
    slow = block.duration_s / np.array([truth_s(shape) for shape in shapes])
    classes = {"attention": attention * slow, "compute": block.duration_s - attention * slow}
    model = learned(dataclasses.replace(block, class_s=classes))
    told = model.predict_classes(MIXED)
    assert set(told) == {"attention", "compute"}
    assert told["attention"] == pytest.approx(1.3 * (2400 * 5e-7 + 8256 * 1.7e-7), rel=0.05)
    assert sum(told.values()) == pytest.approx(model.predict(MIXED), rel=0.05)
    assert learned(block).predict_classes(MIXED) == {}


def test_classes_in_blocks_and_step_by_step_lead_to_the_same_bytes() -> None:
    block = steps_of(shapes_of(700, 28), sigma=0.05)
    block = dataclasses.replace(block, class_s={"attention": block.duration_s * 0.3, "copy": block.duration_s * 0.0})
    whole, single = learned(block), StepCostModel()
    for i in range(len(block)):
        single.learn_many(part(block, i, i + 1))
    assert orjson.dumps(single.snapshot()) == orjson.dumps(whole.snapshot())
    restored = StepCostModel.restore(orjson.loads(orjson.dumps(whole.snapshot())))
    assert restored.predict_classes(MIXED) == whole.predict_classes(MIXED)
    assert whole.predict_classes(MIXED)["copy"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("max_num_seqs", [0, -1, 70_000])
def test_a_batch_limit_out_of_range_is_refused(max_num_seqs: int) -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        TRAINED.freeze(max_num_seqs)


@pytest.mark.parametrize("name", ["level_half_life_s", "shape_half_life_s", "jump_ratio"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_setting_that_is_not_a_finite_number_above_zero_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        StepCostModel(**{name: value})


def test_a_prior_of_no_time_is_refused() -> None:
    class Nothing:
        def step_ps(self, shape: StepShape) -> int:
            return 0

    with pytest.raises(ValueError, match=r"prior.step_ps"):
        StepCostModel(Nothing())


def test_a_learned_cost_freezes_to_integers_the_engines_accept() -> None:
    assert isinstance(TRAINED.freeze(24), FrozenStepCost)
    assert len(TRAINED.freeze(24).decode.decode_requests_ps) == 25
