"""The compiled learning path: one step after another, level and shape apart. Holds no objects, only arrays.

duration = level(t) x shape(batch). The level is taken out before the shape is learned, or a slow machine would be
blamed on the batch.
Laws: a refused row changes nothing but its counter and `backward`; one row after another and all in one call lead to
the same bytes.

Numba keeps compiled code on disk per file and does not see that a file it calls has changed: after a change in `fit`,
`strata` or `residuals`, delete `twin/cost/__pycache__`.
"""

from typing import Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from twin.cost import residuals, strata
from twin.cost.block import FloatArray, IntArray
from twin.cost.fit import MIXED, WIDTH, expand, role_of, scale, stratum_of
from twin.cost.strata import Prior, Strata, add_to, refit

ACCEPTED: Final = 0
REASONS: Final = (
    "accepted",
    "not_finite",
    "not_positive",
    "no_tokens",
    "absurd_duration",
    "absurd_shape",
    "duplicate",
    "clock_back",
)
"""Outcome of a row by number; 0 is learned, every other one is a reason for refusal."""
MAX_STEP_S: Final = 600.0
MAX_TOKENS: Final = 1e9
MAX_PAIRS: Final = 1e16
BACKWARD_STEPS: Final = 64
"""So many steps in a row below the clock mean that the clock was wrong, not they."""

REFIT_STEPS: Final = 64
REFIT_UNFAMILIAR_STEPS: Final = 8
FAMILIAR_ROWS: Final = 20.0
"""A shape that was met less often says nothing of the level: its error is the shape's."""
WARM_STEPS: Final = 64
SETTLED_STEPS: Final = 512
CLIP: Final = 3.0
LEVEL_CLIP: Final = 5.0
FLOOR_S: Final = 0.2
"""The level keeps the weight of this much step time through any silence."""
SLOW_FACTOR: Final = 8.0
"""Half-life of the slow level over that of the level: a minute ahead, half of a deviation is gone."""
FAST_HALF_LIFE_S: Final = 0.25
FAST_SHARE: Final = 0.6
SHORT_HALF_LIFE_S: Final = 1.0
MAX_GAIN: Final = 0.2
JUMP_STEPS: Final = 32
JUMP_US: Final = 1_500_000
GAP_HALF_LIFE_S: Final = 60.0
MAX_GAP_S: Final = 1.0

# Places in `numbers`.
N_LEVEL, D_LEVEL, N_SLOW, D_SLOW, N_SHORT, D_SHORT, SHORT_LOG, FAST_LOG = range(8)
GAP_S, GAP_WEIGHT, EXCESS_S, CLIPPED_S, UNIT = range(8, 13)
NUMBERS: Final = 13
# Places in `whole`.
LAST_US, LEARNED, SINCE_REFIT, OFF_STEPS, OFF_SINCE_US, JUMPS, BACKWARD, LAST_JUMP_US = range(8)
WHOLES: Final = 8
# Places in `settings`.
LEVEL_HALF_LIFE_S, SHAPE_HALF_LIFE_S, JUMP_LOG = range(3)


class State(NamedTuple):
    """Everything learned. `strata` sums rows on y / level; `joint` (WIDTH,) and `roles` (3, WIDTH) are coefficients in
    seconds at level 1. `numbers` and `whole` are named by their indices, `refused` counts by `REASONS`."""

    strata: Strata
    joint: FloatArray
    roles: FloatArray
    numbers: FloatArray
    whole: IntArray
    refused: IntArray
    noise: residuals.Residuals


class Output(NamedTuple):
    """Per row (n,): outcome by `REASONS`; seconds predicted before learning, at level 1, and at P99; the level; whether
    the row tells of the level, which young models and shapes seldom met do not."""

    outcome: NDArray[np.int64]
    predicted_s: FloatArray
    shape_s: FloatArray
    p99_s: FloatArray
    level: FloatArray
    telling: NDArray[np.bool_]


def empty(prior: Prior) -> State:
    """The state before the first step: the prior's coefficients, and no rows."""
    return State(
        strata=strata.empty(),
        joint=prior.roles[MIXED].copy(),
        roles=prior.roles.copy(),
        numbers=np.zeros(NUMBERS),
        whole=np.zeros(WHOLES, dtype=np.int64),
        refused=np.zeros(len(REASONS), dtype=np.int64),
        noise=residuals.empty(),
    )


def output(rows: int) -> Output:
    """Room for what learning so many rows tells."""
    return Output(
        outcome=np.zeros(rows, dtype=np.int64),
        predicted_s=np.zeros(rows),
        shape_s=np.zeros(rows),
        p99_s=np.zeros(rows),
        level=np.zeros(rows),
        telling=np.zeros(rows, dtype=np.bool_),
    )


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def level_of(numbers: FloatArray) -> float:
    """Present level against the shape; 1 before the first step."""
    return numbers[N_LEVEL] / numbers[D_LEVEL] if numbers[D_LEVEL] > 0.0 else 1.0


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def frozen_level_of(numbers: FloatArray) -> float:
    """Level expected over the next minute: half way back from the present one to the slow one, stalls included."""
    if numbers[D_LEVEL] <= 0.0:
        return 1.0
    level = np.sqrt(numbers[N_LEVEL] / numbers[D_LEVEL] * numbers[N_SLOW] / numbers[D_SLOW])
    stalls = numbers[EXCESS_S] / numbers[CLIPPED_S] if numbers[CLIPPED_S] > 0.0 else 1.0
    return float(level * stalls)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def learn_rows(
    state: State,
    prior: Prior,
    settings: FloatArray,
    at_us: IntArray,
    shapes: FloatArray,
    seconds: FloatArray,
    gaps_s: FloatArray,
    out: Output,
) -> None:
    """Learn rows in order, and say per row what was predicted before it and what became of it."""
    features = np.zeros(WIDTH)
    for i in range(len(at_us)):
        outcome = _gate(state.whole, at_us[i], shapes, i, seconds[i])
        out.outcome[i] = outcome
        if outcome != ACCEPTED:
            state.refused[outcome] += 1
            out.predicted_s[i] = np.nan
            out.shape_s[i] = np.nan
            out.p99_s[i] = np.nan
            out.level[i] = np.nan
            out.telling[i] = False
            continue
        _learn_row(state, prior, settings, at_us[i], shapes[i], seconds[i], features, out, i)
        if gaps_s[i] >= 0.0 and gaps_s[i] <= MAX_GAP_S:
            _learn_gap(state.numbers, gaps_s[i], seconds[i])


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _gate(whole: IntArray, at_us: int, shapes: FloatArray, row: int, seconds: float) -> int:
    """Number of the reason to refuse a row, or ACCEPTED."""
    finite = np.isfinite(seconds)
    for j in range(5):
        finite = finite and np.isfinite(shapes[row, j])
    if not finite:
        return 1
    if seconds <= 0.0:
        return 2
    if seconds > MAX_STEP_S:
        return 4
    for j in range(5):
        if shapes[row, j] < 0.0 or shapes[row, j] > (MAX_PAIRS if j == 2 else MAX_TOKENS):
            return 5
    if shapes[row, 1] + shapes[row, 3] < 1.0:
        return 3
    if whole[LEARNED] > 0 and at_us <= whole[LAST_US]:
        if at_us == whole[LAST_US]:
            return 6
        whole[BACKWARD] += 1
        if whole[BACKWARD] <= BACKWARD_STEPS:
            return 7
    return ACCEPTED


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _learn_row(
    state: State,
    prior: Prior,
    settings: FloatArray,
    at_us: int,
    shape: FloatArray,
    seconds: float,
    features: FloatArray,
    out: Output,
    row: int,
) -> None:
    numbers, whole = state.numbers, state.whole
    role = role_of(shape)
    expand(shape, features)
    level = level_of(numbers)
    shape_s = _foresee(state, role, features, level, out, row)
    passed_s = max(at_us - whole[LAST_US], 0) * 1e-6 if whole[LEARNED] > 0 else 0.0
    whole[LAST_US] = at_us
    whole[BACKWARD] = 0
    whole[LEARNED] += 1
    settled = whole[LEARNED] > SETTLED_STEPS
    stratum = stratum_of(shape)
    familiar = state.strata.weight[stratum] >= FAMILIAR_ROWS
    out.telling[row] = settled and familiar
    if whole[LEARNED] > WARM_STEPS and familiar:
        residuals.account(state.noise, role, at_us, seconds, shape_s, level, frozen_level_of(numbers))
    if familiar or not settled:
        _move_level(state, settings, at_us, passed_s, seconds, shape_s, level)
    if whole[OFF_STEPS] == 0 or not (familiar and settled):
        target = seconds / level_of(numbers)
        if whole[LEARNED] > WARM_STEPS:
            target = min(max(target, shape_s / CLIP), shape_s * CLIP)
        half_life_s = settings[SHAPE_HALF_LIFE_S]
        add_to(state.strata, stratum, half_life_s, at_us, features, 1.0 / (shape_s * shape_s), target)
    whole[SINCE_REFIT] += 1
    young = whole[LEARNED] <= REFIT_STEPS and whole[LEARNED] & (whole[LEARNED] - 1) == 0
    if young or whole[SINCE_REFIT] >= (REFIT_STEPS if familiar else REFIT_UNFAMILIAR_STEPS):
        whole[SINCE_REFIT] = 0
        refit(state.strata, prior, settings[SHAPE_HALF_LIFE_S], at_us, state.joint, state.roles)
    if whole[LEARNED] == SETTLED_STEPS:
        _make_level_one(state)


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _foresee(state: State, role: int, features: FloatArray, level: float, out: Output, row: int) -> float:
    """Put the prediction of one row into `out`; returns it at level 1."""
    shape_s = 0.0
    for j in range(WIDTH):
        shape_s += features[j] * state.roles[role, j]
    out.shape_s[row] = shape_s
    out.level[row] = level
    out.predicted_s[row] = shape_s * level * np.exp(FAST_SHARE * state.numbers[FAST_LOG])
    out.p99_s[row] = shape_s * level * np.exp(state.noise.p99_log[role])
    return float(shape_s)


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _move_level(
    state: State,
    settings: FloatArray,
    at_us: int,
    passed_s: float,
    seconds: float,
    shape_s: float,
    level: float,
) -> None:
    """Follow the level, the slow level and the last second; start anew on a lasting jump."""
    numbers, whole = state.numbers, state.whole
    clipped = seconds
    if whole[LEARNED] > WARM_STEPS:
        clipped = min(seconds, LEVEL_CLIP * shape_s * level)
    half_life_s = settings[LEVEL_HALF_LIFE_S]
    slow = 0.5 ** (passed_s / (half_life_s * SLOW_FACTOR))
    short = 0.5 ** (passed_s / SHORT_HALF_LIFE_S)
    fast = 0.5 ** (passed_s / FAST_HALF_LIFE_S)
    _mix(numbers, N_LEVEL, 0.5 ** (passed_s / half_life_s), clipped, shape_s)
    _mix(numbers, N_SLOW, slow, clipped, shape_s)
    _mix(numbers, N_SHORT, short, clipped, shape_s)
    _mix(numbers, EXCESS_S, slow, seconds, clipped)
    error = np.log(seconds / (shape_s * level))
    numbers[FAST_LOG] = numbers[FAST_LOG] * fast + min(1.0 - fast, MAX_GAIN) * min(max(error, -0.5), 0.5)
    numbers[SHORT_LOG] = numbers[SHORT_LOG] * short + min(1.0 - short, MAX_GAIN) * min(max(error, -1.0), 1.0)
    if abs(numbers[SHORT_LOG]) <= settings[JUMP_LOG]:
        whole[OFF_STEPS] = 0
        return
    if whole[OFF_STEPS] == 0:
        whole[OFF_SINCE_US] = at_us
    whole[OFF_STEPS] += 1
    if whole[OFF_STEPS] >= JUMP_STEPS and at_us - whole[OFF_SINCE_US] >= JUMP_US:
        for place in (N_LEVEL, N_SLOW):
            numbers[place] = numbers[N_SHORT]
            numbers[place + 1] = numbers[D_SHORT]
        numbers[SHORT_LOG] = 0.0
        numbers[FAST_LOG] = 0.0
        whole[OFF_STEPS] = 0
        whole[JUMPS] += 1
        whole[LAST_JUMP_US] = at_us
        residuals.forget_window(state.noise)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _mix(numbers: FloatArray, place: int, keep: float, above: float, below: float) -> None:
    """Keep this share of a ratio of sums at `place` and `place + 1`, never under FLOOR_S, and add to both."""
    if numbers[place + 1] * keep < FLOOR_S and numbers[place + 1] > 0.0:
        keep = min(FLOOR_S / numbers[place + 1], 1.0)
    numbers[place] = numbers[place] * keep + above
    numbers[place + 1] = numbers[place + 1] * keep + below


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _learn_gap(numbers: FloatArray, gap_s: float, seconds: float) -> None:
    """Mean gap between steps while work waits; the mean, for it is the mean that sums up."""
    keep = 0.5 ** ((gap_s + seconds) / GAP_HALF_LIFE_S)
    numbers[GAP_S] = numbers[GAP_S] * keep + gap_s
    numbers[GAP_WEIGHT] = numbers[GAP_WEIGHT] * keep + 1.0


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _make_level_one(state: State) -> None:
    """Move the level into the shape once it has settled, so that it reads as a ratio from then on."""
    level = level_of(state.numbers)
    state.numbers[UNIT] = level
    scale(state.strata.gram, 1.0 / (level * level))
    scale(state.strata.moment, 1.0 / level)
    scale(state.joint, level)
    scale(state.roles, level)
    for place in (D_LEVEL, D_SLOW, D_SHORT):
        state.numbers[place] *= level
    for i in range(len(state.noise.ring)):
        state.noise.ring[i, 1] *= level
        state.noise.ring[i, 2] /= level
    state.noise.window[residuals.W_SHAPE] *= level
    state.noise.window[residuals.W_LEVEL] /= level
