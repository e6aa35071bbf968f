"""Past arrivals made ready for resampling: which are recent enough, and their operational time. Keeps no state.

Law: operational time rises with time and advances by as many units as there are arrivals.
"""

import math
from dataclasses import dataclass

import numpy as np

from twin.metrics import FloatArray

LOOKBACK_S = 600.0
LEAST_ARRIVALS = 300
"""Where traffic is thin the window reaches further back, until it holds this many arrivals or `FURTHEST_S`."""
FURTHEST_S = 7200.0
BANDWIDTH_S = 60.0
"""Changes of the rate slower than this are its level, faster ones its burstiness."""
LOWEST_LEVEL_RATIO = 0.1
BLOCK_S = 10.0
LEAST_BLOCK_ARRIVALS = 8.0
_MOST_BINS = 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Settings of resampling: how far back, how slow a change is a change of level, how long a block is."""

    lookback_s: float = LOOKBACK_S
    bandwidth_s: float = BANDWIDTH_S
    block_s: float = BLOCK_S

    def __post_init__(self) -> None:
        for name in ("lookback_s", "bandwidth_s", "block_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"shape.{name} must be a finite number > 0, got {value}")


def window_start_s(arrived_s: FloatArray, shape: Shape) -> float:
    """Start of the window of sources, < 0, from sorted arrival times <= 0 (now is 0).

    Never before the first arrival: nothing is known of the time before, and that arrival itself lies outside.
    """
    if not arrived_s.size:
        return -shape.lookback_s
    thin_s = float(arrived_s[-min(LEAST_ARRIVALS, arrived_s.size)])
    start_s = max(min(-shape.lookback_s, thin_s), -max(FURTHEST_S, shape.lookback_s), float(arrived_s[0]))
    return min(start_s, -1.0)


def operational_time(arrived_s: FloatArray, start_s: float, bandwidth_s: float) -> FloatArray:
    """Operational times in (0, n] of n sorted arrivals in (`start_s`, 0]: the integral of the smoothed rate.

    The rate is smoothed with a Gaussian kernel, reflected at both ends.

    >>> operational_time(np.array([-9.0, -6.0, -3.0]), -10.0, 1000.0).round(6).tolist()
    [0.3, 1.2, 2.1]
    """
    span_s = -start_s
    bins = int(min(max(math.ceil(span_s / (bandwidth_s / 6.0)), 1), _MOST_BINS))
    edges = np.linspace(start_s, 0.0, bins + 1)
    counts = np.histogram(arrived_s, edges)[0].astype(np.float64)
    level = _smoothed(counts, bandwidth_s / (span_s / bins))
    level = np.maximum(level, LOWEST_LEVEL_RATIO * counts.mean())
    total = np.concatenate(([0.0], np.cumsum(level)))
    operational: FloatArray = np.interp(arrived_s, edges, total / total[-1]) * arrived_s.size
    return operational


def _smoothed(counts: FloatArray, sigma_bins: float) -> FloatArray:
    reach = int(min(math.ceil(3.0 * sigma_bins), counts.size))
    offsets = np.arange(-reach, reach + 1)
    kernel = np.exp(-0.5 * (offsets / sigma_bins) ** 2)
    padded = np.concatenate((counts[:reach][::-1], counts, counts[-reach:][::-1]))
    smooth: FloatArray = np.convolve(padded, kernel / kernel.sum(), mode="valid")
    return smooth
