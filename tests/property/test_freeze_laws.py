"""Laws of freezing: an affine cost comes back, and whatever comes back keeps the promises of a step cost."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.cost.freeze import OperatingRange, freeze, freeze_error_ratio
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.shape import Role, StepShape

WORK = OperatingRange(max_num_seqs=32, max_num_batched_tokens=512)
PS = st.integers(0, 10**8)


@settings(max_examples=15, deadline=None)
@given(st.integers(10**8, 10**10), PS, PS, PS, st.integers(0, 10**5), st.integers(0, 10**6))
def test_an_affine_cost_comes_back(fixed: int, decode: int, request: int, token: int, pair: int, context: int) -> None:
    cost = FrozenStepCost.uniform(
        fixed_ps=fixed,
        decode_request_ps=decode,
        prefill_request_ps=request,
        prefill_token_ps=token,
        prefill_attention_pair_ps=pair,
        decode_context_token_ps=context,
    )
    frozen = freeze(lambda shape: cost.step_ps(shape) / PS_PER_S, WORK)
    for role in Role:
        for shape in WORK.shapes(role, between=True):
            assert frozen.step_ps(shape) == pytest.approx(cost.step_ps(shape), rel=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-4, 1e-1), st.floats(0.0, 1e-3), st.floats(0.3, 2.0))
def test_a_frozen_cost_is_positive_and_never_falls(fixed: float, slope: float, power: float) -> None:
    frozen = freeze(lambda s: fixed + slope * (s.prefill_tokens + s.decode_requests) ** power, WORK)
    for shapes in (
        [StepShape(decode_requests=n, decode_context_tokens=100 * n) for n in range(64)],
        [StepShape(1, n, n * n // 2) for n in range(1, 600, 7)],
        [StepShape(1, n, n * n // 2, 8, 800) for n in range(1, 600, 7)],
    ):
        costs = [frozen.step_ps(shape) for shape in shapes]
        assert costs[0] > 0
        assert all(b >= a for a, b in pairwise(costs))


def test_the_stated_error_is_that_of_points_between_the_fitted_ones() -> None:
    def bent(shape: StepShape) -> float:
        return 1e-3 + max(0.0, shape.prefill_tokens - 100) * 1e-5

    frozen = freeze(bent, WORK)
    errors = freeze_error_ratio(bent, frozen, WORK)
    assert errors[Role.DECODE] == pytest.approx((0.0, 0.0), abs=1e-6)
    assert 0.0 < errors[Role.PREFILL][0] <= errors[Role.PREFILL][1]
    worst = max(abs(frozen.step_ps(s) / PS_PER_S / bent(s) - 1) for s in WORK.shapes(Role.PREFILL, between=True))
    assert errors[Role.PREFILL][1] <= worst


def test_an_engine_that_never_mixes_still_freezes() -> None:
    frozen = freeze(lambda shape: 1e-3, OperatingRange(max_num_seqs=1, max_num_batched_tokens=1))
    assert frozen.step_ps(StepShape(decode_requests=1, decode_context_tokens=5)) == pytest.approx(1e9, rel=1e-6)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_without_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be finite and > 0 s"):
        freeze(lambda shape: seconds, WORK)


@pytest.mark.parametrize("bad", [{"max_num_seqs": 0}, {"max_num_batched_tokens": 0}, {"context_tokens": ()}])
def test_an_empty_range_is_refused_by_field(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        OperatingRange(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **bad})  # type: ignore[arg-type]
