"""The level of an engine's speed over time, as noise of a simulation. Learns no shape of costs.

Engines wander by a few per cent (neighbours, clocks, temperature). A replay of a recorded stretch may follow that: each
epoch of 64 steps is scaled by what the steps around it took over what they were expected to.
Law: where every step took what was expected, every multiplier is 1.
"""

import numpy as np
from numpy.typing import NDArray

from twin.engine.types import STEPS_PER_EPOCH, Noise

FloatArray = NDArray[np.float64]


LEVEL_WINDOW_S = 5.0
"""Of 2 to 120 s the window that best predicts an epoch left out, in recordings of an engine on a shared machine."""


def followed_level(taken_s: FloatArray, expected_s: FloatArray, *, window_s: float = LEVEL_WINDOW_S) -> Noise:
    """Noise that follows the level of recorded steps, in order, smoothed over `window_s` of their time.

    The simulation must begin where the recording does: step k of the one is held against step k of the other.
    Raises ValueError if the arrays are empty, unlike, or hold anything but finite numbers > 0.

    >>> followed_level(np.full(128, 0.02), np.full(128, 0.01)).multipliers.tolist()[0]
    [131072, 131072]
    """
    if taken_s.shape != expected_s.shape or taken_s.ndim != 1 or not len(taken_s):
        raise ValueError(f"steps taken and expected must be equally many, got {taken_s.shape} and {expected_s.shape}")
    for name, values in (("taken_s", taken_s), ("expected_s", expected_s)):
        if not (np.isfinite(values).all() and values.min() > 0.0):
            raise ValueError(f"{name} must be finite and > 0 for every step")
    if not 0.0 < window_s < 1e9:
        raise ValueError(f"window_s must be a finite number > 0, got {window_s}")
    ends, half = np.cumsum(taken_s), STEPS_PER_EPOCH // 2
    middles = ends[np.minimum(np.arange(half, len(ends) + half, STEPS_PER_EPOCH), len(ends) - 1)]
    low = np.searchsorted(ends, middles - window_s / 2)
    high = np.minimum(np.searchsorted(ends, middles + window_s / 2), len(ends) - 1) + 1
    taken, expected = (np.concatenate(([0.0], np.cumsum(values))) for values in (taken_s, expected_s))
    ratio = (taken[high] - taken[low]) / (expected[high] - expected[low])
    return Noise.from_ratios(np.tile(ratio, (3, 1)))
