"""Bookkeeping of what the level and the shape leave over, step by step. Decides nothing and predicts nothing.

Three accounts, because a slow minute is slow for all its steps: a histogram of single steps per role, the mean ratio
of 64-step epochs with its autocorrelation, and the error of costs frozen 60 s ago over 5 s bins.
Law: weights only shrink by decay, so no account grows without bound.
"""

from typing import Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from twin.cost.block import FloatArray
from twin.cost.fit import scale
from twin.cost.noise import EPOCH_STEPS, QUANTILES, RoleNoise, StepNoise

LOWEST_LOG: Final = -1.5
LOG_BIN: Final = 0.02
BINS: Final = 200
BIN_US: Final = 5_000_000
WINDOW_BINS: Final = 12
MIN_BINS: Final = 6
HORIZON_S: Final = WINDOW_BINS * BIN_US * 1e-6
HALF_LIFE_S: Final = 900.0
WINDOW_HALF_LIFE_S: Final = 3600.0
MIN_TAIL_STEPS: Final = 100.0
"""A role needs this much weight before its P99 is taken from its own steps."""
PRIOR_P99_RATIO: Final = 2.0
PRIOR_WINDOW_SIGMA: Final = 0.05
PRIOR_WINDOWS: Final = 3.0
PRIOR_EPOCH_SIGMA: Final = 0.05
PRIOR_EPOCHS: Final = 8.0
MAX_RHO: Final = 0.98
OUTLIER_LOG: Final = 0.25

E_ACTUAL, E_EXPECTED, E_STEPS, E_LAST, E_HAS_LAST, E_WEIGHT, E_SQUARES, E_PAIRS, E_PRODUCTS = range(9)
W_ACTUAL, W_SHAPE, W_LEVEL, W_SQUARES, W_WEIGHT, W_EPOCHS = range(6)


class Residuals(NamedTuple):
    """Accounts as arrays: `histogram` (3, BINS) weights; `p99_log` (3,) of log(observed / predicted); `epoch` (9,) and
    `window` (6,) sums; `ring` (WINDOW_BINS, 3): actual, shape and frozen level of closed bins; `ring_bin` their number
    since the epoch, `bin` (1,) the open one, -1 for none."""

    histogram: FloatArray
    p99_log: FloatArray
    epoch: FloatArray
    window: FloatArray
    ring: FloatArray
    ring_bin: NDArray[np.int64]
    bin: NDArray[np.int64]


def empty() -> Residuals:
    """Accounts before the first step."""
    return Residuals(
        histogram=np.zeros((3, BINS)),
        p99_log=np.full(3, np.log(PRIOR_P99_RATIO)),
        epoch=np.zeros(9),
        window=np.zeros(6),
        ring=np.zeros((WINDOW_BINS, 3)),
        ring_bin=np.full(WINDOW_BINS, -1, dtype=np.int64),
        bin=np.full(1, -1, dtype=np.int64),
    )


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def account(
    res: Residuals, role: int, at_us: int, seconds: float, shape_s: float, level: float, frozen_level: float
) -> None:
    """Enter one step: its duration, its level-free prediction, the level used, and the level a freeze would use."""
    index = int((np.log(seconds / (shape_s * level)) - LOWEST_LOG) / LOG_BIN)
    res.histogram[role, min(max(index, 0), BINS - 1)] += 1.0
    if at_us // BIN_US != res.bin[0]:
        _open_bin(res, at_us // BIN_US, frozen_level)
    _add(res.window, res.epoch, seconds, shape_s, level)


@numba.njit(cache=True, error_model="numpy", inline="always")  # type: ignore[untyped-decorator]
def _add(window: FloatArray, epoch: FloatArray, seconds: float, shape_s: float, level: float) -> None:
    """Enter one step into the open bin and the open epoch. Takes no `Residuals`: each array that is passed costs."""
    window[W_ACTUAL] += seconds
    window[W_SHAPE] += shape_s
    if epoch[E_STEPS] == 0.0:
        epoch[E_ACTUAL] = 0.0
        epoch[E_EXPECTED] = 0.0
    epoch[E_ACTUAL] += seconds
    epoch[E_EXPECTED] += shape_s * level
    epoch[E_STEPS] += 1.0
    if epoch[E_STEPS] >= EPOCH_STEPS:
        _close_epoch(epoch)
        window[W_EPOCHS] += 1.0


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _open_bin(res: Residuals, now: int, frozen_level: float) -> None:
    if res.bin[0] >= 0:
        _close_bin(res, max(now - res.bin[0], 1))
    res.bin[0] = now
    res.window[W_ACTUAL] = 0.0
    res.window[W_SHAPE] = 0.0
    res.window[W_LEVEL] = frozen_level
    _find_p99(res)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _close_epoch(epoch: FloatArray) -> None:
    error = np.log(epoch[E_ACTUAL] / epoch[E_EXPECTED])
    error = min(max(error, -OUTLIER_LOG), OUTLIER_LOG)
    keep = 0.999
    epoch[E_WEIGHT] = epoch[E_WEIGHT] * keep + 1.0
    epoch[E_SQUARES] = epoch[E_SQUARES] * keep + error * error
    if epoch[E_HAS_LAST] > 0.0:
        epoch[E_PAIRS] = epoch[E_PAIRS] * keep + 1.0
        epoch[E_PRODUCTS] = epoch[E_PRODUCTS] * keep + error * epoch[E_LAST]
    epoch[E_LAST] = error
    epoch[E_HAS_LAST] = 1.0
    epoch[E_STEPS] = 0.0


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _close_bin(res: Residuals, passed_bins: int) -> None:
    """Put the open bin into the ring and score the costs frozen at the start of the window that ends with it."""
    window = res.window
    number = res.bin[0]
    slot = number % WINDOW_BINS
    res.ring[slot, 0] = window[W_ACTUAL]
    res.ring[slot, 1] = window[W_SHAPE]
    res.ring[slot, 2] = window[W_LEVEL]
    res.ring_bin[slot] = number
    passed_s = passed_bins * BIN_US * 1e-6
    scale(res.histogram, 0.5 ** (passed_s / HALF_LIFE_S))
    keep = 0.5 ** (passed_s / WINDOW_HALF_LIFE_S)
    actual = 0.0
    shape = 0.0
    first = number + 1
    level = 1.0
    bins = 0
    for i in range(WINDOW_BINS):
        if res.ring_bin[i] > number - WINDOW_BINS and res.ring_bin[i] <= number:
            actual += res.ring[i, 0]
            shape += res.ring[i, 1]
            bins += 1
            if res.ring_bin[i] < first:
                first = res.ring_bin[i]
                level = res.ring[i, 2]
    window[W_SQUARES] *= keep
    window[W_WEIGHT] *= keep
    window[W_EPOCHS] *= keep
    if bins >= MIN_BINS and first == number - WINDOW_BINS + 1 and shape > 0.0:
        error = np.log(actual / (shape * level))
        error = min(max(error, -OUTLIER_LOG), OUTLIER_LOG)
        window[W_SQUARES] += error * error / WINDOW_BINS
        window[W_WEIGHT] += 1.0 / WINDOW_BINS


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _find_p99(res: Residuals) -> None:
    for role in range(3):
        total = 0.0
        for i in range(BINS):
            total += res.histogram[role, i]
        if total < MIN_TAIL_STEPS:
            continue
        left = 0.01 * total
        index = BINS - 1
        while index > 0 and res.histogram[role, index] <= left:
            left -= res.histogram[role, index]
            index -= 1
        inside = left / max(res.histogram[role, index], 1e-300)
        res.p99_log[role] = LOWEST_LOG + LOG_BIN * (index + 1.0 - inside)


@numba.njit(cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def forget_window(res: Residuals) -> None:
    """Start windows and epochs anew after a jump of the level: costs frozen before it are no test of the noise."""
    for i in range(WINDOW_BINS):
        res.ring_bin[i] = -1
    res.bin[0] = -1
    res.epoch[E_STEPS] = 0.0
    res.epoch[E_HAS_LAST] = 0.0


def summarise(res: Residuals) -> StepNoise:
    """The accounts as `StepNoise`, shrunk towards the prior while they are young."""
    epoch, window = res.epoch, res.window
    epoch_variance = (epoch[E_SQUARES] + PRIOR_EPOCHS * PRIOR_EPOCH_SIGMA**2) / (epoch[E_WEIGHT] + PRIOR_EPOCHS)
    covariance = epoch[E_PRODUCTS] / (epoch[E_PAIRS] + PRIOR_EPOCHS)
    rho = float(np.clip(covariance / epoch_variance, 0.0, MAX_RHO))
    total = (window[W_SQUARES] + PRIOR_WINDOWS * PRIOR_WINDOW_SIGMA**2) / (window[W_WEIGHT] + PRIOR_WINDOWS)
    epochs = max(window[W_EPOCHS] / max(window[W_WEIGHT], 1.0), 1.0)
    inside = epoch_variance * min((1.0 + rho) / (1.0 - rho) / epochs, 1.0)
    roles = [_role_noise(res.histogram[role]) for role in range(3)]
    return StepNoise(
        horizon_s=HORIZON_S,
        window_sigma_ratio=float(np.sqrt(max(total - inside, 0.25 * total))),
        epoch_sigma_ratio=float(np.sqrt(epoch_variance)),
        epoch_rho=rho,
        windows=float(window[W_WEIGHT]),
        prefill=roles[0],
        decode=roles[1],
        mixed=roles[2],
    )


def _role_noise(weights: FloatArray) -> RoleNoise:
    total = float(weights.sum())
    if total < MIN_TAIL_STEPS:
        spread = np.log(PRIOR_P99_RATIO)
        logs = np.interp(QUANTILES, (0.01, 0.25, 0.5, 0.75, 0.99), (-0.2, -0.05, 0.0, 0.05, spread))
    else:
        edges = LOWEST_LOG + LOG_BIN * np.arange(BINS + 1)
        logs = np.interp(np.array(QUANTILES) * total, np.concatenate(([0.0], np.cumsum(weights))), edges)
    return RoleNoise(ratio_quantiles=tuple(float(value) for value in np.exp(logs)), steps=total)
