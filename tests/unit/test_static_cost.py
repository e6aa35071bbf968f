"""Static costs add up to the recorded step time; a speed that changed is seen, and its mean is one."""

import numpy as np
import pytest

from tests.made_jobs import COST
from tests.made_known import steps
from twin.cost.block import StepBlock
from twin.cost.exact import ExactStepCost
from twin.cost.frozen import PS_PER_S
from twin.cost.shape import Role, StepShape
from twin.cost.static import static_cost


def test_static_costs_add_up_to_the_recorded_time_role_by_role() -> None:
    block = StepBlock.from_steps(steps(900, slow_after=450))
    found = static_cost(block, 16)
    assert found.steps == 900
    assert found.most_decodes == 15
    for role in Role:
        rows = [i for i, row in enumerate(block.shapes) if StepShape(*map(int, row)).role is role]
        taken = block.duration_s[rows].sum()
        assert found.expected_s[rows].sum() == pytest.approx(taken, rel=1e-6)


def test_true_costs_are_found_with_the_time_between_steps_in_them() -> None:
    found = static_cost(StepBlock.from_steps(steps(1500, gap_us=3000)), 16)
    shape = StepShape(decode_requests=8, decode_context_tokens=1200)
    expected_s = COST.step_ps(shape) / PS_PER_S + 3e-3
    assert found.cost.step_ps(shape) / PS_PER_S == pytest.approx(expected_s, rel=0.03)


def test_a_slow_half_shows_in_the_speed_and_a_steady_machine_is_one_throughout() -> None:
    halves = static_cost(StepBlock.from_steps(steps(1200, slow_after=600)), 16).speed_ratios(0.5, 64)
    assert halves.shape == (19,)
    assert halves[-4:].mean() / halves[:4].mean() == pytest.approx(2.0, rel=0.1)
    steady = static_cost(StepBlock.from_steps(steps(1200)), 16).speed_ratios(0.5, 64)
    np.testing.assert_allclose(steady, 1.0, atol=0.05)


def test_steps_that_did_nothing_teach_nothing() -> None:
    idle = [s for s in steps(50) if not (s.prefill_tokens or s.decode_requests)]
    with pytest.raises(ValueError, match="none of 0 steps"):
        static_cost(StepBlock.from_steps(idle), 16)
    with pytest.raises(ValueError, match="window_s"):
        static_cost(StepBlock.from_steps(steps(100)), 16).speed_ratios(0.0, 64)


def test_exact_costs_are_the_step_time_itself_and_a_bad_one_is_refused() -> None:
    shape = StepShape(decode_requests=3)
    cost = ExactStepCost(lambda asked: 0.001 * asked.decode_requests**2)
    assert cost.step_ps(shape) == cost.step_ps(shape) == 9_000_000_000
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="step time of"):
            ExactStepCost(lambda _, bad=bad: bad).step_ps(shape)
