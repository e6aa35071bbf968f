"""Steps of an engine made for tests: known costs, a known level over time, known noise."""

from collections.abc import Callable

import numpy as np

from twin.cost.block import FloatArray, StepBlock
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.shape import StepShape

START_US = 1_796_052_000_000_000
TRUTH = FrozenStepCost.uniform(
    fixed_ps=7_600_000_000,
    decode_request_ps=300_000_000,
    prefill_request_ps=500_000_000,
    prefill_token_ps=140_000_000,
    prefill_attention_pair_ps=170_000,
    decode_context_token_ps=500_000,
)


def shapes_of(n: int, seed: int, *, most_decodes: int = 24) -> list[StepShape]:
    """Steps as an engine makes them: mostly decodes, one in eight with a chunk of prefill, batches that drift."""
    rng = np.random.default_rng(seed)
    made = []
    decodes = most_decodes // 2
    for _ in range(n):
        decodes = int(np.clip(decodes + rng.integers(-2, 3), 0, most_decodes))
        chunk = int(rng.integers(1, 257)) if rng.random() < 0.125 or decodes == 0 else 0
        before = int(rng.integers(0, 512)) if chunk else 0
        pairs = chunk * before + chunk * (chunk + 1) // 2
        made.append(StepShape(int(chunk > 0), chunk, pairs, decodes, decodes * int(rng.integers(200, 400))))
    return made


def steps_of(
    shapes: list[StepShape],
    *,
    level: Callable[[float], float] = lambda _: 1.0,
    sigma: float = 0.0,
    seed: int = 0,
    truth: FrozenStepCost = TRUTH,
    gap_s: float = 0.0001,
    start_us: int = START_US,
) -> StepBlock:
    """Run shapes back to back: truth x level(seconds since the start) x lognormal noise of single steps."""
    noise = np.exp(np.random.default_rng(seed).standard_normal(len(shapes)) * sigma)
    at_s, ends, durations = 0.0, [], []
    for shape, factor in zip(shapes, noise, strict=True):
        duration_s = truth.step_ps(shape) / PS_PER_S * level(at_s) * factor
        at_s += duration_s + gap_s
        ends.append(start_us + round(at_s * 1e6))
        durations.append(duration_s)
    return StepBlock(
        at_us=np.array(ends, dtype=np.int64),
        shapes=rows_of(shapes),
        duration_s=np.array(durations),
        gap_s=np.full(len(shapes), gap_s),
    )


def rows_of(shapes: list[StepShape]) -> FloatArray:
    """Columns of shapes (n, 5)."""
    columns = [
        (s.prefill_requests, s.prefill_tokens, s.prefill_attention_pairs, s.decode_requests, s.decode_context_tokens)
        for s in shapes
    ]
    return np.array(columns, dtype=np.float64)


def part(block: StepBlock, start: int, end: int) -> StepBlock:
    """Rows start .. end of a block."""
    return StepBlock(
        at_us=block.at_us[start:end],
        shapes=block.shapes[start:end],
        duration_s=block.duration_s[start:end],
        gap_s=block.gap_s[start:end],
        class_s={name: column[start:end] for name, column in block.class_s.items()},
    )
