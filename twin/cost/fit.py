"""Least squares of step shapes: features, sums of rows per stratum, and the non-negative solution. Knows no clock.

A step costs a sum of non-negative slopes times features: 1, prefill requests, prefill tokens, attention pairs, decode
context tokens, and decoding sequences cut into segments at 4, 8, 16 ... 256. Rows weigh 1 / prediction^2, so that the
relative error is what is small. Rows are not stored but summed, one sum for each stratum of like shapes; see
`twin.cost.learner`.
Law: every coefficient is finite and >= 0, so a cost never falls when a count grows.
"""

from typing import Final

import numba
import numpy as np

from twin.cost.block import FloatArray
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost, StepCost
from twin.cost.shape import StepShape

SEGMENT_STARTS: Final = np.array([0.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
"""Where a segment of decoding sequences begins; the last one has no end."""
SEGMENTS: Final = len(SEGMENT_STARTS)
FIRST_SEGMENT: Final = 5
WIDTH: Final = FIRST_SEGMENT + SEGMENTS
"""Coefficients of a shape model."""
PACKED: Final = WIDTH * (WIDTH + 1) // 2
PREFILL, DECODE, MIXED = 0, 1, 2
DECODE_BINS: Final = 10
TOKEN_BINS: Final = 7
STRATA: Final = DECODE_BINS * TOKEN_BINS
SWEEPS: Final = 80
_DECODE_GRID = (0, 1, 4, 8, 16, 32, 64, 128, 256, 512)
_CONTEXT_GRID = (64, 512, 2048)
_CHUNK_GRID = (16, 64, 256, 1024, 4096)
_BEFORE_GRID = (0, 2048)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def expand(shape: FloatArray, features: FloatArray) -> None:
    """Features (WIDTH,) of one shape (5,), in place."""
    features[0] = 1.0
    features[1] = shape[0]
    features[2] = shape[1]
    features[3] = shape[2]
    features[4] = shape[4]
    decodes = shape[3]
    for j in range(SEGMENTS):
        start = SEGMENT_STARTS[j]
        above = max(decodes - start, 0.0)
        features[FIRST_SEGMENT + j] = above if j == SEGMENTS - 1 else min(above, SEGMENT_STARTS[j + 1] - start)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def role_of(shape: FloatArray) -> int:
    """0 prefill, 1 decode, 2 mixed: the rule of `StepShape.role`."""
    if shape[1] == 0.0:
        return DECODE
    return MIXED if shape[3] > 0.0 else PREFILL


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def stratum_of(shape: FloatArray) -> int:
    """Stratum of like shapes: powers of two of the sequences, powers of four of the prefill tokens."""
    decode_bin = 0
    while decode_bin < DECODE_BINS - 1 and shape[3] >= 2.0**decode_bin:
        decode_bin += 1
    token_bin = 0
    if shape[1] > 0.0:
        token_bin = 1
        while token_bin < TOKEN_BINS - 1 and shape[1] >= 4.0 ** (token_bin + 1):
            token_bin += 1
    return decode_bin * TOKEN_BINS + token_bin


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def add_row(gram: FloatArray, moment: FloatArray, features: FloatArray, weight: float, target: float) -> None:
    """Add one weighted row to a packed upper triangle (PACKED,) and its moment (WIDTH,)."""
    index = 0
    for i in range(WIDTH):
        scaled = weight * features[i]
        if scaled != 0.0:
            for j in range(i, WIDTH):
                gram[index + j - i] += scaled * features[j]
            moment[i] += scaled * target
        index += WIDTH - i


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def scale(array: FloatArray, factor: float) -> None:
    """Multiply in place. A loop, for array expressions compile ten times as long."""
    flat = array.ravel()
    for i in range(len(flat)):
        flat[i] *= factor


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def add_scaled(array: FloatArray, other: FloatArray, factor: float) -> None:
    """Add `factor` times another array of the same shape, in place."""
    flat = array.ravel()
    other_flat = other.ravel()
    for i in range(len(flat)):
        flat[i] += factor * other_flat[i]


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def unpack(packed: FloatArray, factor: float, square: FloatArray) -> None:
    """Add `factor` times a packed triangle to a symmetric matrix (WIDTH, WIDTH)."""
    index = 0
    for i in range(WIDTH):
        for j in range(i, WIDTH):
            value = factor * packed[index]
            square[i, j] += value
            if j != i:
                square[j, i] += value
            index += 1


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def continue_segments(square: FloatArray, coefficients: FloatArray, rows: float) -> None:
    """Pull each segment's slope towards the one before it, as strongly as `rows` rows at its far end would."""
    seconds = max(coefficients[0], 1e-9)
    for j in range(FIRST_SEGMENT + 1, WIDTH):
        width = SEGMENT_STARTS[j - FIRST_SEGMENT] - SEGMENT_STARTS[j - FIRST_SEGMENT - 1]
        seconds += coefficients[j - 1] * width
        pull = rows * (width / seconds) ** 2
        square[j, j] += pull
        square[j - 1, j - 1] += pull
        square[j, j - 1] -= pull
        square[j - 1, j] -= pull


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def solve(square: FloatArray, moment: FloatArray, coefficients: FloatArray) -> None:
    """Minimise x'Ax/2 - b'x over x >= 0 by coordinate descent from the given start, in place.

    The slope b - Ax is kept up to date, so that a coordinate that does not move costs nothing. Loops end at a length,
    not at WIDTH: a loop of constant length is unrolled and then not vectorised.
    """
    width = len(coefficients)
    slope = moment.copy()
    inverse = np.zeros(width)
    for j in range(width):
        for k in range(width):
            slope[j] -= square[j, k] * coefficients[k]
        if square[j, j] > 0.0:
            inverse[j] = 1.0 / square[j, j]
    ahead = slope[0]  # known before the others are, so that a coordinate need not wait for all of the one before
    for _ in range(SWEEPS):
        largest = 0.0
        for j in range(width):
            after = j + 1 if j + 1 < width else 0
            move = max(ahead * inverse[j], -coefficients[j])
            if inverse[j] == 0.0 or move == 0.0:
                ahead = slope[after]
                continue
            row = square[j]
            ahead = slope[after] - row[after] * move
            coefficients[j] += move
            for k in range(width):
                slope[k] -= row[k] * move
            largest = max(largest, move * move * square[j, j])
        if largest < 1e-12:
            break


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def predict_rows(shapes: FloatArray, coefficients: FloatArray, seconds: FloatArray) -> None:
    """Seconds (n,) of shapes (n, 5) under coefficients per role (3, WIDTH), in place."""
    features = np.zeros(WIDTH)
    for i in range(len(shapes)):
        expand(shapes[i], features)
        row = coefficients[role_of(shapes[i])]
        total = 0.0
        for j in range(WIDTH):
            total += features[j] * row[j]
        seconds[i] = total


def linearise(prior: StepCost) -> FloatArray:
    """Coefficients per role (3, WIDTH) in seconds that follow a prior; exact for `FrozenStepCost` up to the segments.

    Raises ValueError where the prior gives a step that takes no time.
    """
    if isinstance(prior, FrozenStepCost):
        return np.array([_of_role(role) for role in (prior.prefill, prior.decode, prior.mixed)])
    return np.array([_fitted(prior, role) for role in (PREFILL, DECODE, MIXED)])


def grid_of(role: int) -> list[StepShape]:
    """Shapes over the operating range of one role, where the prior speaks."""
    decodes = [0] if role == PREFILL else list(_DECODE_GRID[1:])
    chunks = [0] if role == DECODE else list(_CHUNK_GRID)
    shapes = []
    for n in decodes:
        for context in _CONTEXT_GRID if n else (0,):
            for chunk in chunks:
                for before in _BEFORE_GRID if chunk and not n else (0,):
                    pairs = chunk * before + chunk * (chunk + 1) // 2
                    shapes.append(StepShape(int(chunk > 0), chunk, pairs, n, n * context))
    return shapes


def prior_gram(role: int, coefficients: FloatArray) -> FloatArray:
    """Square (WIDTH, WIDTH) of the prior's grid rows of one role, weighted 1 / prediction^2, mean over rows."""
    rows = _grid_features(role)
    scaled = rows / np.maximum(rows @ coefficients, 1e-9)[:, None]
    return np.asarray(scaled.T @ scaled / len(rows))


def to_role_cost(coefficients: FloatArray, scale: float, gap_s: float, max_num_seqs: int) -> RoleCost:
    """Integer picoseconds of one role's coefficients (WIDTH,) times `scale`, plus the gap between steps."""
    counts = np.arange(max_num_seqs + 1, dtype=np.float64)
    table = np.full(max_num_seqs + 1, coefficients[0])
    for j, start in enumerate(SEGMENT_STARTS):
        end = SEGMENT_STARTS[j + 1] if j + 1 < SEGMENTS else np.inf
        table += coefficients[FIRST_SEGMENT + j] * (np.clip(counts, start, end) - start)
    whole = np.maximum(np.rint((table * scale + gap_s) * PS_PER_S), 1.0).astype(np.int64)
    return RoleCost(
        decode_requests_ps=tuple(int(value) for value in np.maximum.accumulate(whole)),
        prefill_request_ps=round(coefficients[1] * scale * PS_PER_S),
        prefill_token_ps=round(coefficients[2] * scale * PS_PER_S),
        prefill_attention_pair_ps=round(coefficients[3] * scale * PS_PER_S),
        decode_context_token_ps=round(coefficients[4] * scale * PS_PER_S),
    )


def _of_role(role: RoleCost) -> FloatArray:
    steps = [role.decodes_ps(round(start)) for start in SEGMENT_STARTS]
    steps.append(role.decodes_ps(2 * round(SEGMENT_STARTS[-1])))
    widths = np.diff([*SEGMENT_STARTS, 2 * SEGMENT_STARTS[-1]])
    slopes = np.diff(np.array(steps, dtype=np.float64)) / widths
    rest = (
        role.prefill_request_ps,
        role.prefill_token_ps,
        role.prefill_attention_pair_ps,
        role.decode_context_token_ps,
    )
    return np.array([steps[0], *rest, *slopes], dtype=np.float64) / PS_PER_S


def _fitted(prior: StepCost, role: int) -> FloatArray:
    shapes = grid_of(role)
    rows = _grid_features(role)
    seconds = np.array([prior.step_ps(shape) for shape in shapes], dtype=np.float64) / PS_PER_S
    if seconds.min() <= 0.0:
        worst = shapes[int(seconds.argmin())]
        raise ValueError(f"prior.step_ps({worst}) must be > 0 ps, got {seconds.min() * PS_PER_S:.0f}")
    scaled = rows / seconds[:, None]
    coefficients = np.zeros(WIDTH)
    coefficients[0] = seconds.min()
    square, moment = scaled.T @ scaled, scaled.T @ np.ones(len(rows))
    for _ in range(50):
        solve(square, moment, coefficients)
    coefficients[0] = max(coefficients[0], seconds.min() * 1e-3)
    return coefficients


def _grid_features(role: int) -> FloatArray:
    shapes = grid_of(role)
    rows = np.zeros((len(shapes), WIDTH))
    for row, shape in zip(rows, shapes, strict=True):
        counts = (
            shape.prefill_requests,
            shape.prefill_tokens,
            shape.prefill_attention_pairs,
            shape.decode_requests,
            shape.decode_context_tokens,
        )
        expand(np.array(counts, dtype=np.float64), row)
    return rows
