"""Step durations for simulation: a cost, scaled by noise once per 64-step epoch. Learns and schedules nothing.

Law: a duration is a whole number of picoseconds > 0, the same in every engine for the same step number and shape.
"""

from dataclasses import dataclass

import numpy as np

from twin.cost.frozen import FrozenStepCost, RoleCost, StepCost
from twin.cost.shape import Role, StepShape
from twin.engine.types import NOISE_ONE, STEPS_PER_EPOCH, Int64Array, Noise

ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)
ROLE_INDEX = {role: i for i, role in enumerate(ROLES)}
PREFILL, DECODE, MIXED = range(3)
NO_NOISE = np.full((3, 1), NOISE_ONE, np.int64)


def scaled(value_ps: int, multiplier: int) -> int:
    """A coefficient times a fixed-point multiplier, rounded half up to whole picoseconds.

    >>> scaled(1001, NOISE_ONE), scaled(1001, NOISE_ONE // 2)
    (1001, 501)
    """
    return (value_ps * multiplier + NOISE_ONE // 2) // NOISE_ONE


@dataclass(frozen=True, slots=True)
class RoleTerms:
    """One role's coefficients in one epoch, scaled. `decode_requests_ps[n]` covers all n up to `max_num_seqs`."""

    decode_requests_ps: list[int]
    prefill_request_ps: int
    prefill_token_ps: int
    prefill_attention_pair_ps: int
    decode_context_token_ps: int


class Timing:
    """Durations of one engine's steps, by step number and shape."""

    def __init__(self, cost: StepCost, noise: Noise | None, max_num_seqs: int) -> None:
        self.affine = isinstance(cost, FrozenStepCost)
        self._cost = cost
        self._multipliers: list[list[int]] = (NO_NOISE if noise is None else noise.multipliers).tolist()
        self.epochs = len(self._multipliers[0])
        self._terms: dict[tuple[int, int], RoleTerms] = {}
        self._most = max_num_seqs

    def duration_ps(self, step: int, shape: StepShape) -> int:
        """Of the step with this number, counted from the window's start."""
        role = ROLE_INDEX[shape.role]
        if not self.affine:
            # A cost below 1 ps after scaling would let time stand still.
            return max(scaled(self._cost.step_ps(shape), self.multiplier(step, role)), 1)
        terms = self.terms(step, role)
        return (
            terms.decode_requests_ps[shape.decode_requests]
            + terms.prefill_request_ps * shape.prefill_requests
            + terms.prefill_token_ps * shape.prefill_tokens
            + terms.prefill_attention_pair_ps * shape.prefill_attention_pairs
            + terms.decode_context_token_ps * shape.decode_context_tokens
        )

    def multiplier(self, step: int, role: int) -> int:
        """The noise of this step's epoch."""
        return self._multipliers[role][step // STEPS_PER_EPOCH % self.epochs]

    def terms(self, step: int, role: int) -> RoleTerms:
        """Scaled coefficients in force at this step; only for an affine cost."""
        epoch = step // STEPS_PER_EPOCH % self.epochs
        found = self._terms.get((epoch, role))
        if found is None:
            found = self._terms[epoch, role] = self._scale(role, self._multipliers[role][epoch])
        return found

    def _scale(self, role: int, multiplier: int) -> RoleTerms:
        if not isinstance(self._cost, FrozenStepCost):
            raise TypeError("terms exist only for a FrozenStepCost; use duration_ps")
        cost: RoleCost = self._cost.role(ROLES[role])
        return RoleTerms(
            decode_requests_ps=[max(scaled(cost.decodes_ps(n), multiplier), 1) for n in range(self._most + 1)],
            prefill_request_ps=scaled(cost.prefill_request_ps, multiplier),
            prefill_token_ps=scaled(cost.prefill_token_ps, multiplier),
            prefill_attention_pair_ps=scaled(cost.prefill_attention_pair_ps, multiplier),
            decode_context_token_ps=scaled(cost.decode_context_token_ps, multiplier),
        )


def cost_table(cost: FrozenStepCost, max_num_seqs: int) -> Int64Array:
    """For the kernel, unscaled: per role the four other coefficients, then the cost of 0 .. max_num_seqs decodes."""
    rows = []
    for role in ROLES:
        c = cost.role(role)
        head = (c.prefill_request_ps, c.prefill_token_ps, c.prefill_attention_pair_ps, c.decode_context_token_ps)
        rows.append([*head, *(c.decodes_ps(n) for n in range(max_num_seqs + 1))])
    return np.array(rows, np.int64)
