"""Any step time frozen into the integer, affine form that simulation uses, over the range an engine works in.

Fits relative errors by non-negative least squares, one role at a time; knows nothing of operators or hardware.
Law: the frozen cost is > 0, never falls when a count grows, and equals a step time that is itself affine.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from twin.cost.block import FloatArray
from twin.cost.fit import WIDTH, expand, solve, to_role_cost
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost, StepCost
from twin.cost.shape import Role, StepShape

StepSeconds = Callable[[StepShape], float]
_SOLVES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingRange:
    """Where an engine works: its two limits, and the contexts its requests have.

    `context_tokens` are mean contexts of decoding sequences and tokens before a prefill chunk, small to large.
    `least_prefill_tokens` is the smallest prefill that matters: below a few hundred tokens a step is bound by memory
    and flat, which no affine form follows, so raising it makes large steps more exact.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    context_tokens: tuple[int, ...] = (64, 512, 2048)
    least_prefill_tokens: int = 16

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "least_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"operating range: {name} must be >= 1, got {getattr(self, name)}")
        if not self.context_tokens or min(self.context_tokens) < 1:
            raise ValueError(f"operating range: context_tokens must be one or more >= 1, got {self.context_tokens}")

    def shapes(self, role: Role, *, between: bool = False) -> Iterator[StepShape]:
        """Steps of one role on a geometric grid; `between` gives the points halfway, to check a fit by."""
        decodes = _geometric(1, self.max_num_seqs, between) if role is not Role.PREFILL else [0]
        tokens = _geometric(
            min(self.least_prefill_tokens, self.max_num_batched_tokens), self.max_num_batched_tokens, between
        )
        for n in decodes:
            for context in self.context_tokens if n else (0,):
                if role is Role.DECODE:
                    yield StepShape(decode_requests=n, decode_context_tokens=n * context)
                    continue
                for scheduled in tokens:
                    chunked = scheduled - n
                    if chunked >= 1:
                        yield from self._chunked(chunked, n, context)

    def _chunked(self, tokens: int, n: int, context: int) -> Iterator[StepShape]:
        """Prefill tokens in one chunk or four; with context before them where nothing decodes."""
        for requests in (1, 4) if tokens >= 64 else (1,):
            chunk = tokens / requests
            for before in (0,) if n else (0, self.context_tokens[-1]):
                pairs = round(tokens * (before + (chunk + 1) / 2))
                yield StepShape(requests, tokens, pairs, n, n * context)


def freeze(step_s: StepSeconds, work: OperatingRange) -> FrozenStepCost:
    """The `FrozenStepCost` nearest to `step_s` (seconds, > 0) over the range.

    Raises ValueError if a step takes no time or is not finite.
    """
    return FrozenStepCost(
        prefill=_fitted(step_s, work, Role.PREFILL),
        decode=_fitted(step_s, work, Role.DECODE),
        mixed=_fitted(step_s, work, Role.MIXED) if work.max_num_batched_tokens > 1 else RoleCost((PS_PER_S,)),
    )


def freeze_error_ratio(
    step_s: StepSeconds, frozen: StepCost, work: OperatingRange
) -> Mapping[Role, tuple[float, float]]:
    """Median and 95th percentile of |frozen / step - 1| per role, at points that were not fitted."""
    errors: dict[Role, tuple[float, float]] = {}
    for role in Role:
        ratios = [frozen.step_ps(shape) / PS_PER_S / step_s(shape) for shape in work.shapes(role, between=True)]
        if ratios:
            away = np.abs(np.array(ratios) - 1.0)
            errors[role] = float(np.median(away)), float(np.quantile(away, 0.95))
    return errors


def _fitted(step_s: StepSeconds, work: OperatingRange, role: Role) -> RoleCost:
    shapes = list(work.shapes(role))
    rows = np.zeros((len(shapes), WIDTH))
    for row, shape in zip(rows, shapes, strict=True):
        expand(_counts(shape), row)
    seconds = np.array([step_s(shape) for shape in shapes])
    if not (np.isfinite(seconds).all() and seconds.min() > 0.0):
        worst = shapes[int(np.argmin(np.where(np.isfinite(seconds), seconds, -1.0)))]
        raise ValueError(f"step time of {worst} must be finite and > 0 s; check the costs it is made of")
    scaled = rows / seconds[:, None]
    square, moment = scaled.T @ scaled, scaled.sum(axis=0)
    coefficients = np.zeros(WIDTH)
    coefficients[0] = seconds.min()
    for _ in range(_SOLVES):
        solve(square, moment, coefficients)
    coefficients[0] = max(coefficients[0], seconds.min() * 1e-3)
    return to_role_cost(coefficients, 1.0, 0.0, work.max_num_seqs)


def _counts(shape: StepShape) -> FloatArray:
    return np.array(
        [
            shape.prefill_requests,
            shape.prefill_tokens,
            shape.prefill_attention_pairs,
            shape.decode_requests,
            shape.decode_context_tokens,
        ],
        dtype=np.float64,
    )


def _geometric(low: int, high: int, between: bool) -> list[int]:
    """Whole numbers from `low` to `high`, each about twice the one before; or the points between them."""
    points = [low]
    while points[-1] * 2 < high:
        points.append(points[-1] * 2)
    if high > low:
        points.append(high)
    if between and len(points) > 1:
        points = [round((a * b) ** 0.5) for a, b in pairwise(points)]
    return points
