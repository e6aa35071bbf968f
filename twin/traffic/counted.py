"""Arrivals by when, as the engines' own counts tell where requests are told only at their end. Forecasts nothing.

At the moment of a count all that have arrived have ended or are inside. Between two counts arrivals are taken to be
even. Law: the arrivals of neighbouring spans add up to those of both together, and none is below 0.
"""

from collections import deque

import numpy as np

POINTS = 256


class CountedArrivals:
    """The newest counts."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, int]] = deque(maxlen=POINTS)

    def on_counts(self, at_us: int, ended: int, inside: int) -> None:
        """At `at_us` so many requests had ended since the start, and so many were inside; a count back in time is
        passed over."""
        last_us, before = self._points[-1] if self._points else (0, 0)
        if at_us > last_us:
            self._points.append((at_us, max(ended + inside, before)))

    @property
    def until_us(self) -> int:
        """Time of the last count; 0 before the first."""
        return self._points[-1][0] if self._points else 0

    def between(self, start_us: int, end_us: int) -> float | None:
        """Arrivals in (start, end]; None where the counts do not reach.

        >>> counted = CountedArrivals()
        >>> counted.on_counts(10, ended=0, inside=4)
        >>> counted.on_counts(20, ended=9, inside=5)
        >>> counted.between(10, 15), counted.between(5, 15)
        (5.0, None)
        """
        if not self._points or not self._points[0][0] <= start_us <= end_us <= self.until_us:
            return None
        times = np.array([at_us for at_us, _ in self._points], np.float64) - self._points[0][0]
        counts = np.array([count for _, count in self._points], np.float64)
        edges = np.array([start_us, end_us], np.float64) - self._points[0][0]
        first, last = np.interp(edges, times, counts)
        return float(last - first)

    def snapshot(self) -> list[list[int]]:
        """Plain data."""
        return [list(point) for point in self._points]

    @classmethod
    def restore(cls, data: list[list[int]]) -> "CountedArrivals":
        """The counts of a snapshot."""
        counted = cls()
        counted._points.extend((at_us, count) for at_us, count in data)
        return counted
