"""The demand to be ready for once an engine started now would serve, learned from how wrong one was. Scales nothing.

Three experts each say what the rate will be in a window that begins when an engine started now is ready, and add the
upper quantile of what they had missed lately: the rate forecast; the rate of the last window, as if nothing changed;
and nothing at all, which leaves the quantile of the rates seen. Each is weighted by its quantile (pinball) loss, which
is what too few and too many engines cost at that level. The quantile of misses is the conformal one [1]: of few windows
it is the largest.
Laws: arrivals after a time change nothing said by then; what never missed has no reserve; memory does not grow.

References
----------
[1] Lei et al., Distribution-Free Predictive Inference for Regression, JASA 2018.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from twin.metrics import FloatArray

US_PER_S = 1_000_000
HALF_LIFE_S = 600.0
LEAST_WINDOWS = 1.0
"""So many windows, end to end, must have come to their end; before, nothing is said."""
ROWS_PER_WINDOW = 6
MAX_ROWS = 600
SHARPNESS = 5.0
"""An expert whose loss is twice the least weighs exp(-5) of it."""
EXPERTS = 3
_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Row:
    """What was said at a time: by each expert, before (`said`) and after (`upper`) what it had missed was added.

    `upper` is empty where it was too early to say.
    """

    at_us: int
    arrivals: int
    start_s: float
    said: tuple[float, ...]
    upper: tuple[float, ...]


class DemandReserve:
    """The upper side of the demand of one deployment.

    Parameters
    ----------
    level
        Share of windows in which the demand is to stay below what is said, in (0, 1).
    window_s
        Length of the windows, seconds > 0.

    Attributes
    ----------
    last_per_s
        Mean rate of the last window that was told of.
    """

    def __init__(self, level: float, window_s: float) -> None:
        if not 0.0 < level < 1.0 or not (math.isfinite(window_s) and window_s > 0.0):
            raise ValueError(f"reserve needs a level in (0, 1) and window_s > 0, got {level} and {window_s}")
        self.level = level
        self.window_s = window_s
        self.last_per_s = 0.0
        self._rows: deque[_Row] = deque(maxlen=MAX_ROWS)

    def on_tick(self, at_us: int, arrivals: int, expected_per_s: float, start_s: float) -> float | None:
        """The demand to be ready for, requests per second; None until enough has been seen.

        `arrivals` counts all up to `at_us`, `expected_per_s` is the rate forecast of the window that begins after
        `start_s`.
        """
        past = _Past.of(self._rows, at_us, arrivals, self.window_s)
        self.last_per_s = past.last_per_s(self.window_s)
        said = (max(expected_per_s, 0.0), self.last_per_s, 0.0)
        upper = self._upper(past, said)
        spacing_us = round(self.window_s / ROWS_PER_WINDOW * US_PER_S)
        if not self._rows or at_us - self._rows[-1].at_us >= spacing_us:
            self._rows.append(_Row(at_us, arrivals, start_s, said, upper))
        return self._blend(past, upper) if upper else None

    def _upper(self, past: "_Past", said: tuple[float, ...]) -> tuple[float, ...]:
        """What each expert says with what it missed lately; nothing before the first windows have ended."""
        windows = float(past.weights.sum()) / ROWS_PER_WINDOW
        if windows < LEAST_WINDOWS:
            return ()
        level = min(self.level * (windows + 1.0) / windows, 1.0)
        found = []
        for expert in range(EXPERTS):
            missed = past.demand - np.array([row.said[expert] for row in past.ended])
            found.append(max(said[expert] + _quantile(missed, past.weights, level), 0.0))
        return tuple(found)

    def _blend(self, past: "_Past", upper: tuple[float, ...]) -> float:
        judged = np.array([bool(row.upper) for row in past.ended])
        demand, weights = past.demand[judged], past.weights[judged]
        losses = []
        for expert in range(EXPERTS):
            over = demand - np.array([row.upper[expert] for row in past.ended if row.upper])
            losses.append(float(weights @ np.maximum(self.level * over, (self.level - 1.0) * over)))
        least = max(min(losses), 1e-9)
        trust = np.exp(-SHARPNESS * np.maximum(np.array(losses) / least - 1.0, 0.0))
        return float(trust @ np.array(upper) / trust.sum())

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; level and window are not in it."""
        return {
            "version": _VERSION,
            "last_per_s": self.last_per_s,
            "rows": [[row.at_us, row.arrivals, row.start_s, list(row.said), list(row.upper)] for row in self._rows],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], level: float, window_s: float) -> Self:
        """The reserve of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"reserve snapshot has version {state.get('version')}, this code reads {_VERSION}")
        made = cls(level, window_s)
        made.last_per_s = state["last_per_s"]
        for at_us, arrivals, start_s, said, upper in state["rows"]:
            made._rows.append(_Row(at_us, arrivals, start_s, tuple(said), tuple(upper)))
        return made


@dataclass(frozen=True, slots=True, eq=False)
class _Past:
    """Arrivals by time; rows whose window has ended, the rates that came in it, and their weights."""

    times_us: FloatArray
    arrivals: FloatArray
    ended: tuple[_Row, ...]
    demand: FloatArray
    weights: FloatArray

    @classmethod
    def of(cls, rows: Sequence[_Row], at_us: int, arrivals: int, window_s: float) -> "_Past":
        times = np.array([*(row.at_us for row in rows), at_us], np.float64)
        counts = np.array([*(row.arrivals for row in rows), arrivals], np.float64)
        begins = times[:-1] + np.array([row.start_s for row in rows]) * US_PER_S
        ends = begins + window_s * US_PER_S
        over = ends <= at_us
        demand = (np.interp(ends[over], times, counts) - np.interp(begins[over], times, counts)) / window_s
        weights = 0.5 ** ((at_us - times[:-1][over]) / US_PER_S / HALF_LIFE_S)
        ended = tuple(row for row, done in zip(rows, over.tolist(), strict=True) if done)
        return cls(times, counts, ended, demand, weights)

    def last_per_s(self, window_s: float) -> float:
        """Mean rate of the last window, or of as much of it as was seen."""
        now_us = float(self.times_us[-1])
        since_us = max(now_us - window_s * US_PER_S, float(self.times_us[0]))
        if now_us <= since_us:
            return 0.0
        before = float(np.interp(since_us, self.times_us, self.arrivals))
        return (float(self.arrivals[-1]) - before) / ((now_us - since_us) / US_PER_S)


def _quantile(values: FloatArray, weights: FloatArray, level: float) -> float:
    """The least value whose weight, with that of all below it, reaches the level."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum() >= level - 1e-12
    return float(values[order][int(np.argmax(reached))])
