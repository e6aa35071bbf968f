"""Steps of one engine as columns: the form in which cost models learn. Holds data and refuses bad rows; learns nothing.

Law: every row of a block built here ends as exactly one of kept or refused, and refused rows are counted by reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.steps import Step
from twin.cost.shape import StepShape

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FEATURES: Final = (
    "prefill_requests",
    "prefill_tokens",
    "prefill_attention_pairs",
    "decode_requests",
    "decode_context_tokens",
)
"""Column order of `StepBlock.shapes`: the fields of `StepShape`."""
PAIRS: Final = FEATURES.index("prefill_attention_pairs")


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Consecutive steps of one engine, in order of event time; n rows.

    `at_us` (n, int64): event time, the end of the step. `shapes` (n, 5): columns in the order of `FEATURES`.
    `duration_s` (n,): start to end. `gap_s` (n,): end of the step before to the start of this one while work was
    waiting, empty steps between them included; NaN where the engine idled or the step before is unknown.
    `class_s`: durations per span class (n,); NaN where a step carries no classes, 0 where it carries only others.
    """

    at_us: IntArray
    shapes: FloatArray
    duration_s: FloatArray
    gap_s: FloatArray
    class_s: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.at_us)
        if self.shapes.shape != (n, len(FEATURES)):
            raise ValueError(f"shapes must have the shape ({n}, {len(FEATURES)}), got {self.shapes.shape}")
        for name, column in (("duration_s", self.duration_s), ("gap_s", self.gap_s), *self.class_s.items()):
            if column.shape != (n,):
                raise ValueError(f"{name} must have {n} rows like at_us, got the shape {column.shape}")

    def __len__(self) -> int:
        return len(self.at_us)

    @classmethod
    def from_steps(cls, steps: Sequence[Step], previous: Step | None = None) -> "StepBlock":
        """Columns of wire steps of one engine. `previous` is the step before the first, for its gap."""
        columns = _columns(steps)
        classes = sorted({name for step in steps if step.class_us for name in step.class_us})
        class_s = {name: np.full(len(steps), np.nan) for name in classes}
        for i, step in enumerate(steps if classes else ()):
            if step.class_us:
                for name in classes:
                    class_s[name][i] = step.class_us.get(name, 0) * 1e-6
        return cls(
            at_us=columns["start_us"] + columns["duration_us"],
            shapes=_shapes(columns),
            duration_s=columns["duration_us"].astype(np.float64) * 1e-6,
            gap_s=_gaps_s(columns, previous),
            class_s=class_s,
        )


_COLUMNS: Final = (
    "start_us",
    "duration_us",
    "prefill_requests",
    "prefill_tokens",
    "prefill_context_tokens",
    "prefill_attention_pairs",
    "decode_requests",
    "decode_context_tokens",
    "waiting",
    "running",
    "finished_requests",
)
_UNKNOWN: Final = -1
"""Stands for None in a column of counts."""


def _columns(steps: Sequence[Step]) -> dict[str, IntArray]:
    """Counts and times of steps (n,) by name. Attributes are written out: to get them by name takes twice as long."""
    columns = (
        [step.start_us for step in steps],
        [step.duration_us for step in steps],
        [step.prefill_requests for step in steps],
        [step.prefill_tokens for step in steps],
        [step.prefill_context_tokens for step in steps],
        [step.prefill_attention_pairs for step in steps],
        [step.decode_requests for step in steps],
        [step.decode_context_tokens for step in steps],
        [step.waiting for step in steps],
        [step.running for step in steps],
        [step.finished_requests for step in steps],
    )
    many = len(columns) * len(steps)
    try:
        table = np.fromiter(chain.from_iterable(columns), np.int64, many)
    except TypeError:  # a count that a record does not hold
        told = (_UNKNOWN if value is None else value for value in chain.from_iterable(columns))
        table = np.fromiter(told, np.int64, many)
    return dict(zip(_COLUMNS, table.reshape(len(columns), len(steps)), strict=True))


def _shapes(columns: Mapping[str, IntArray]) -> FloatArray:
    """`shape_row` of `shape_of` of every step."""
    shapes = np.stack([columns[name] for name in FEATURES], axis=1).astype(np.float64)
    estimated = columns["prefill_attention_pairs"] == _UNKNOWN
    if estimated.any():
        tokens, context = columns["prefill_tokens"][estimated], columns["prefill_context_tokens"][estimated]
        chunks = np.maximum(columns["prefill_requests"][estimated], 1)
        shapes[estimated, PAIRS] = np.rint(tokens * (context / chunks + (tokens / chunks + 1.0) / 2.0))
    return shapes


def shape_of(step: Step) -> StepShape:
    """Shape of a wire step. Attention pairs are estimated from sums where the record does not hold them:
    tokens x mean context before, plus the triangle of chunks of equal size."""
    pairs = step.prefill_attention_pairs
    if pairs is None:
        chunks = max(step.prefill_requests, 1)
        own = step.prefill_tokens / chunks
        pairs = round(step.prefill_tokens * (step.prefill_context_tokens / chunks + (own + 1.0) / 2.0))
    return StepShape(
        prefill_requests=step.prefill_requests,
        prefill_tokens=step.prefill_tokens,
        prefill_attention_pairs=pairs,
        decode_requests=step.decode_requests,
        decode_context_tokens=step.decode_context_tokens,
    )


def shape_row(shape: StepShape) -> tuple[int, ...]:
    """The five counts in the order of `FEATURES`."""
    return (
        shape.prefill_requests,
        shape.prefill_tokens,
        shape.prefill_attention_pairs,
        shape.decode_requests,
        shape.decode_context_tokens,
    )


def shape_features(shape: StepShape) -> dict[str, float]:
    """The five counts as river's feature dict.

    >>> shape_features(StepShape(decode_requests=2, decode_context_tokens=700))["decode_requests"]
    2.0
    """
    return {name: float(value) for name, value in zip(FEATURES, shape_row(shape), strict=True)}


def _gaps_s(columns: Mapping[str, IntArray], previous: Step | None) -> FloatArray:
    """Time from the last step that did work to this one, where work was left all the while; else NaN."""
    start_us = columns["start_us"]
    works = columns["prefill_tokens"] + columns["decode_requests"] > 0
    running, waiting = columns["running"], np.maximum(columns["waiting"], 0)
    leaves = (running != _UNKNOWN) & (running - columns["finished_requests"] + waiting > 0)
    places = np.arange(len(start_us))
    # The last step before each that worked or left nothing; 0 is the step before the first, 1 the first.
    last = np.maximum.accumulate(np.concatenate(([0], np.where(works | ~leaves, places + 1, 0))))[:-1]
    left_first = previous is not None and _works(previous) and _leaves_work(previous)
    left = np.concatenate(([left_first], leaves))[last]
    ended_us = np.concatenate(([previous.at_us if previous is not None else 0], start_us + columns["duration_us"]))
    return np.where(works & left, (start_us - ended_us[last]) * 1e-6, np.nan)


def _works(step: Step) -> bool:
    return step.prefill_tokens + step.decode_requests > 0


def _leaves_work(step: Step) -> bool:
    """Whether somebody is left to run or to wait; False where the record does not say."""
    return step.running is not None and step.running - step.finished_requests + (step.waiting or 0) > 0
