"""One set of step costs for a whole recording, and how far the machine's speed strayed from it. Knows no engine.

For looking back: the future of every step is known. Live costs come from `twin.cost.model`.
Law: over all steps that did work, the static cost adds up to the recorded step time, and so it does for each role
with steps enough to tell.
"""

from dataclasses import dataclass, replace

import numpy as np

from twin.cost.block import FloatArray, StepBlock
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost
from twin.cost.model import StepCostModel
from twin.cost.noise import StepNoise
from twin.cost.shape import Role, StepShape

FOREVER_S = 1e8
"""Half-life of shapes: what a batch costs is taken to be the same from the first step to the last."""
LEAST_ROLE_STEPS = 50
"""Roles with fewer steps take the factor of all steps together."""


@dataclass(frozen=True, slots=True, eq=False)
class StaticCost:
    """Costs that hold for all of a recording's steps.

    `at_s` (n,) is the end of each step that did work, seconds since the first one's; `duration_s` and `expected_s` (n,)
    are what it took and what the cost says, time between steps left out. `most_decodes` is the largest batch seen.
    """

    cost: FrozenStepCost
    noise: StepNoise
    at_s: FloatArray
    duration_s: FloatArray
    expected_s: FloatArray
    most_decodes: int

    @property
    def steps(self) -> int:
        """Steps that did work."""
        return len(self.at_s)

    def speed_ratios(self, window_s: float, steps_per_value: int) -> FloatArray:
        """Recorded over expected step time in windows of `window_s`, one value for every so many steps, float64[k].

        > 1 is slower. Raises ValueError unless `window_s` > 0 and `steps_per_value` >= 1.
        """
        if not (window_s > 0.0 and steps_per_value >= 1):
            raise ValueError(f"speed needs window_s > 0 and steps_per_value >= 1, got {window_s}, {steps_per_value}")
        window = (self.at_s / window_s).astype(np.int64)
        taken, expected = np.bincount(window, self.duration_s), np.bincount(window, self.expected_s)
        worked = expected > 0.0
        middle = (np.flatnonzero(worked) + 0.5) * window_s
        ratio = np.interp(self.at_s, middle, taken[worked] / expected[worked])
        bounds = np.arange(0, self.steps, steps_per_value)
        means: FloatArray = np.add.reduceat(ratio, bounds) / np.diff(np.append(bounds, self.steps))
        return means


def static_cost(block: StepBlock, max_num_seqs: int) -> StaticCost:
    """Learn all steps of one engine, then scale each role so that it adds up to what was recorded.

    Raises ValueError if no step did work, or `max_num_seqs` is not in 1 .. 65536.
    """
    model = StepCostModel(shape_half_life_s=FOREVER_S)
    used = model.learn_block(block).accepted
    if not used.any():
        raise ValueError(f"none of {len(block)} steps did work that can be learned; refused: {model.refused}")
    frozen = model.freeze(max_num_seqs, with_gap=False)
    shapes = [StepShape(*(int(count) for count in row)) for row in block.shapes[used]]
    roles = np.array([list(Role).index(shape.role) for shape in shapes])
    expected_s = np.array([frozen.step_ps(shape) for shape in shapes]) / PS_PER_S
    duration_s = block.duration_s[used]
    factors = _factors(roles, duration_s, expected_s)
    gap_ps = round(model.gap_s * PS_PER_S)
    at_us = block.at_us[used]
    return StaticCost(
        cost=FrozenStepCost(
            **{str(role): _later(frozen.role(role).scaled(factors[i]), gap_ps) for i, role in enumerate(Role)}
        ),
        noise=model.noise(),
        at_s=(at_us - at_us[0]) / 1e6,
        duration_s=duration_s,
        expected_s=expected_s * np.array(factors)[roles],
        most_decodes=max(shape.decode_requests for shape in shapes),
    )


def _factors(roles: FloatArray, duration_s: FloatArray, expected_s: FloatArray) -> list[float]:
    """Recorded over expected time of each role, in the order of `Role`."""
    overall = float(duration_s.sum() / expected_s.sum())
    factors = []
    for number in range(len(Role)):
        own = roles == number
        enough = np.count_nonzero(own) >= LEAST_ROLE_STEPS
        factors.append(float(duration_s[own].sum() / expected_s[own].sum()) if enough else overall)
    return factors


def _later(role: RoleCost, gap_ps: int) -> RoleCost:
    """The cost with the time between steps in it."""
    return replace(role, decode_requests_ps=tuple(value + gap_ps for value in role.decode_requests_ps))
