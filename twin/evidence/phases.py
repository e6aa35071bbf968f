"""Stretches of a window in which the prefix cache gave about the same share. Knows no latencies.

The window is cut in slots of time; the cut into stretches is the one with the least squared error plus a price per
stretch that the scatter within slots sets. Laws: stretches are in order, touch, and cover the window; a constant ratio
is one stretch.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from twin.metrics import FloatArray

LEAST_SLOT_S = 5.0
MOST_SLOTS = 60
LEAST_SLOTS = 2
"""Slots that a stretch has at least."""
CLOSE_RATIO = 0.1
"""Neighbouring stretches whose mean ratios are closer than this are one."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Seconds from the window's start, and the mean share of a request's prompt that came from the cache."""

    from_s: float
    to_s: float
    hit_ratio: float

    @property
    def span_s(self) -> float:
        """How long it is."""
        return self.to_s - self.from_s


def stretches(at_s: FloatArray, hit_ratio: FloatArray, span_s: float) -> tuple[Stretch, ...]:
    """Stretches of n requests' hit ratios; `at_s` (n,) are seconds from the window's start. Raises ValueError for none.

    >>> at_s = np.arange(0.0, 60.0, 0.5)
    >>> found = stretches(at_s, np.where(at_s < 30.0, 0.0, 0.8), 60.0)
    >>> [(each.from_s, each.to_s, round(each.hit_ratio, 2)) for each in found]
    [(0.0, 30.0, 0.0), (30.0, 60.0, 0.8)]
    """
    if not at_s.size:
        raise ValueError("hit ratios of no request have no stretches")
    slots = int(max(min(span_s // LEAST_SLOT_S, MOST_SLOTS), 1))
    place = np.clip((at_s / span_s * slots).astype(np.int64), 0, slots - 1)
    bounds = _merged(_best_bounds(place, hit_ratio, slots), place, hit_ratio)
    found = []
    for low, high in pairwise(bounds):
        inside = (place >= low) & (place < high)
        found.append(Stretch(low / slots * span_s, high / slots * span_s, float(hit_ratio[inside].mean())))
    return tuple(found)


def _best_bounds(place: np.ndarray, values: FloatArray, slots: int) -> list[int]:
    """First slots of the stretches, and the end: dynamic programming over all cuts."""
    count = np.bincount(place, minlength=slots).astype(np.float64)
    sums, squares = np.bincount(place, values, slots), np.bincount(place, values * values, slots)
    total, first, second = (np.concatenate(([0.0], np.cumsum(each))) for each in (count, sums, squares))

    def error(low: int, high: int) -> float:
        n, s, q = total[high] - total[low], first[high] - first[low], second[high] - second[low]
        return float(q - s * s / n) if n else 0.0

    within = sum(error(slot, slot + 1) for slot in range(slots)) / max(values.size - slots, 1)
    price = 3.0 * max(within, 1e-4) * math.log(values.size + 1)
    best, back = [0.0] + [math.inf] * slots, [0] * (slots + 1)
    for high in range(1, slots + 1):
        for low in range(high):
            short = high - low < LEAST_SLOTS and slots >= LEAST_SLOTS
            if not short and best[low] + error(low, high) + price < best[high]:
                best[high], back[high] = best[low] + error(low, high) + price, low
    bounds = [slots]
    while bounds[0]:
        bounds.insert(0, back[bounds[0]])
    return bounds


def _merged(bounds: list[int], place: np.ndarray, values: FloatArray) -> list[int]:
    """Without cuts between stretches that are alike, and without stretches that no request came in."""
    kept = [bounds[0]]
    for bound, after in pairwise(bounds[1:]):
        before_part = values[(place >= kept[-1]) & (place < bound)]
        after_part = values[(place >= bound) & (place < after)]
        if before_part.size and after_part.size and abs(before_part.mean() - after_part.mean()) >= CLOSE_RATIO:
            kept.append(bound)
    return [*kept, bounds[-1]]
