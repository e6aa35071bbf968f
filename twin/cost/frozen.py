"""Frozen step costs: integer picoseconds, affine in everything but the number of decoding sequences.

A learned model or a hardware prior is frozen into this form for simulation, so that two engines
(SimPy and the compiled kernel) add the same integers and agree bit by bit. Does not learn.
Law: cost > 0 and never falls when any count of the shape grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Protocol

from twin.cost.shape import Role, StepShape

PS_PER_S = 1_000_000_000_000


class StepCost(Protocol):
    """Duration of one step. A promise of every implementation: > 0 for every shape, deterministic."""

    def step_ps(self, shape: StepShape) -> int:
        """Picoseconds from the start of this step to the start of the next one when work is waiting."""
        ...


@dataclass(frozen=True, slots=True)
class RoleCost:
    """Coefficients of one role, all integer picoseconds >= 0.

    `decode_requests_ps[n]` is the cost of n decoding sequences (entry 0 is the fixed cost of the step);
    beyond its end the last increment goes on.
    """

    decode_requests_ps: tuple[int, ...]
    prefill_request_ps: int = 0
    prefill_token_ps: int = 0
    prefill_attention_pair_ps: int = 0
    decode_context_token_ps: int = 0

    def __post_init__(self) -> None:
        table = self.decode_requests_ps
        if not table or table[0] <= 0:
            raise ValueError(f"decode_requests_ps must start with a fixed cost > 0 ps, got {table[:1]}")
        if any(b < a for a, b in pairwise(table)):
            raise ValueError("decode_requests_ps must never fall as sequences are added")
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value < 0:
                raise ValueError(f"{field.name} must be >= 0 ps, got {value}")

    def step_ps(self, shape: StepShape) -> int:
        """Picoseconds of one step of this role."""
        return (
            self.decodes_ps(shape.decode_requests)
            + self.prefill_request_ps * shape.prefill_requests
            + self.prefill_token_ps * shape.prefill_tokens
            + self.prefill_attention_pair_ps * shape.prefill_attention_pairs
            + self.decode_context_token_ps * shape.decode_context_tokens
        )

    def decodes_ps(self, decode_requests: int) -> int:
        """Fixed cost plus that of `decode_requests` sequences, without their context."""
        table = self.decode_requests_ps
        last = len(table) - 1
        if decode_requests <= last:
            return table[decode_requests]
        increment = table[last] - table[last - 1] if last else 0
        return table[last] + increment * (decode_requests - last)

    def scaled(self, factor: float) -> "RoleCost":
        """All coefficients times `factor` > 0, rounded to whole picoseconds."""
        return RoleCost(
            decode_requests_ps=_scaled(self.decode_requests_ps, factor),
            prefill_request_ps=round(self.prefill_request_ps * factor),
            prefill_token_ps=round(self.prefill_token_ps * factor),
            prefill_attention_pair_ps=round(self.prefill_attention_pair_ps * factor),
            decode_context_token_ps=round(self.decode_context_token_ps * factor),
        )


@dataclass(frozen=True, slots=True)
class FrozenStepCost:
    """A `StepCost` with one `RoleCost` per role. The time between steps is part of the fixed costs.

    >>> cost = FrozenStepCost.uniform(fixed_ps=5_000_000_000, prefill_token_ps=150_000_000)
    >>> cost.step_ps(StepShape(prefill_requests=1, prefill_tokens=100, prefill_attention_pairs=5050))
    20000000000
    """

    prefill: RoleCost
    decode: RoleCost
    mixed: RoleCost

    @classmethod
    def uniform(
        cls,
        *,
        fixed_ps: int,
        decode_request_ps: int = 0,
        prefill_request_ps: int = 0,
        prefill_token_ps: int = 0,
        prefill_attention_pair_ps: int = 0,
        decode_context_token_ps: int = 0,
    ) -> "FrozenStepCost":
        """The same affine coefficients for all three roles."""
        role = RoleCost(
            decode_requests_ps=(fixed_ps, fixed_ps + decode_request_ps),
            prefill_request_ps=prefill_request_ps,
            prefill_token_ps=prefill_token_ps,
            prefill_attention_pair_ps=prefill_attention_pair_ps,
            decode_context_token_ps=decode_context_token_ps,
        )
        return cls(prefill=role, decode=role, mixed=role)

    def role(self, role: Role) -> RoleCost:
        """The coefficients of one role."""
        if role is Role.PREFILL:
            return self.prefill
        return self.decode if role is Role.DECODE else self.mixed

    def step_ps(self, shape: StepShape) -> int:
        """Picoseconds of one step; the role follows from the shape."""
        return self.role(shape.role).step_ps(shape)

    def scaled(self, factor: float) -> "FrozenStepCost":
        """Every role times `factor`."""
        if not 0.0 < factor < 1e6:
            raise ValueError(f"factor must be a finite number > 0, got {factor}")
        return replace(
            self,
            prefill=self.prefill.scaled(factor),
            decode=self.decode.scaled(factor),
            mixed=self.mixed.scaled(factor),
        )


def _scaled(table: Sequence[int], factor: float) -> tuple[int, ...]:
    return tuple(max(round(value * factor), 1) for value in table)
