"""What every `StepCost` promises, and what river asks of its estimators. A new cost adds one line to COSTS."""

import copy
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from river import datasets
from river.checks import common

from twin.cost.block import StepBlock
from twin.cost.freeze import OperatingRange
from twin.cost.frozen import FrozenStepCost, RoleCost, StepCost
from twin.cost.model import GENERIC_PRIOR, StepCostModel
from twin.cost.prior import prior_step_cost
from twin.cost.shape import StepShape
from twin.graph.build import operator_graph
from twin.graph.model import model_from_config
from twin.hardware.presets import preset

TINY_LLAMA: dict[str, str | int | float | bool | None] = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 32000,
}


def _roofline() -> FrozenStepCost:
    graph = operator_graph(model_from_config(TINY_LLAMA))
    return prior_step_cost(graph, preset("h100-sxm"), OperatingRange(max_num_seqs=64, max_num_batched_tokens=2048))


def _learned(prior: StepCost | None = None) -> StepCostModel:
    rng = np.random.default_rng(1)
    n = 2_000
    decodes = rng.integers(0, 24, n).astype(float)
    tokens = np.where((decodes == 0) | (rng.random(n) < 0.2), rng.integers(1, 256, n), 0).astype(float)
    shapes = np.stack([tokens > 0, tokens, tokens * (tokens + 1) / 2, decodes, decodes * 300], axis=1).astype(float)
    seconds = (0.005 + shapes @ np.array([1e-4, 1e-4, 1e-7, 3e-4, 5e-7])) * np.exp(0.05 * rng.standard_normal(n))
    at_us = 1_796_052_000_000_000 + np.cumsum(np.rint(seconds * 1e6)).astype(np.int64)
    model = StepCostModel(prior)
    model.learn_many(StepBlock(at_us=at_us, shapes=shapes, duration_s=seconds, gap_s=np.full(n, 1e-4)))
    return model


COSTS: dict[str, Callable[[], StepCost]] = {
    "uniform": lambda: GENERIC_PRIOR,
    "one role each": lambda: FrozenStepCost(RoleCost((5,)), RoleCost((7, 9)), RoleCost((8, 8, 11))),
    "roofline": _roofline,
    "learned": lambda: _learned().freeze(64),
    "learned from a roofline": lambda: _learned(_roofline()).freeze(64),
    "never taught": lambda: StepCostModel().freeze(64),
    "scaled": lambda: _learned().freeze(64).scaled(1.7),
}
SHAPES = [
    StepShape(int(tokens > 0), tokens, tokens * (before + tokens), decodes, decodes * context)
    for tokens, before, decodes, context in product((0, 1, 100, 5_000), (0, 10_000), (0, 1, 30, 500), (1, 4_000))
]
COUNTS = (
    "prefill_requests",
    "prefill_tokens",
    "prefill_attention_pairs",
    "decode_requests",
    "decode_context_tokens",
)


@pytest.fixture(params=COSTS, scope="module")
def cost(request: pytest.FixtureRequest) -> StepCost:
    return COSTS[request.param]()


def test_every_shape_takes_time_in_whole_picoseconds(cost: StepCost) -> None:
    for shape in SHAPES:
        taken = cost.step_ps(shape)
        assert type(taken) is int
        assert taken > 0


def test_the_same_shape_costs_the_same(cost: StepCost) -> None:
    assert [cost.step_ps(shape) for shape in SHAPES] == [copy.deepcopy(cost).step_ps(shape) for shape in SHAPES]


@pytest.mark.parametrize("count", COUNTS)
def test_more_work_of_a_kind_never_costs_less(cost: StepCost, count: str) -> None:
    for shape in SHAPES:
        values = {name: getattr(shape, name) for name in COUNTS}
        more = StepShape(**{**values, count: values[count] * 2 + 1})
        if more.role is shape.role:
            assert cost.step_ps(more) >= cost.step_ps(shape)


# River's own checks. `yield_checks` itself needs scikit-learn to load its data sets, so they are named here.
PLAIN_CHECKS = [
    common.check_repr,
    common.check_str,
    common.check_tags,
    common.check_clone_same_class,
    common.check_clone_is_idempotent,
    common.check_init_has_default_params_for_tests,
    common.check_init_default_params_are_not_mutable,
    common.check_doc,
    common.check_clone_changes_memory_addresses,
    common.check_mutate_can_be_idempotent,
    common.check_pickling_supports_roundtrip,
    common.check_repr_roundtrips_clone,
    common.check_clone_with_new_params_applies,
    common.check_get_params_matches_signature,
]
DATA_CHECKS = [
    common.check_learn_one,
    common.check_pickling,
    common.check_shuffle_features_no_impact,
    common.check_emerging_features,
    common.check_disappearing_features,
    common.check_radically_disappearing_features,
    common.check_predict_one_pure,
    common.check_predict_one_before_any_learn,
    common.check_no_state_aliasing_with_input,
    common.check_clone_is_independent,
    common.check_bounded_memory_growth,
]


def _steps(n: int) -> list[tuple[dict[str, float], float]]:
    rng = np.random.default_rng(2)
    decodes = rng.integers(1, 24, n)
    return [
        ({"decode_requests": float(d), "decode_context_tokens": float(d * 300)}, 0.005 + 3e-4 * float(d))
        for d in decodes
    ]


@pytest.mark.parametrize("check", PLAIN_CHECKS, ids=lambda check: check.__name__)
def test_river_conventions(check: Callable[[StepCostModel], None]) -> None:
    check(StepCostModel())


@pytest.mark.parametrize("check", DATA_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("data", ["steps", "polls"])
def test_river_checks_on_data(check: Callable[..., None], data: str) -> None:
    """`polls` are election polls: to a step cost, features it does not know and labels of absurd size."""
    rows = _steps(200) if data == "steps" else list(datasets.TrumpApproval().take(200))
    check(StepCostModel(), dataset=rows)
