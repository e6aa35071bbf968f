"""How wide the outlook's intervals must be: as wide as its own errors were, each step ahead. Foretells nothing.

Each step's rate is compared with what came. A side of a step's interval is the root mean square of the log errors that
far ahead (at first what the rate forecast itself doubts, `PRIOR_WIDENING` times), times a factor that grows with each
miss on that side and shrinks by a smaller step with each hit, so that misses settle at (1 - level) / 2 per side.
Laws: an interval never excludes its value; the same counts at the same times give the same widths; memory is bounded by
the outlook's length.

References: Gibbs and Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from schemas.forecasts import Outlook
from twin.metrics import FloatArray

LEVEL = 0.9
TAIL = (1.0 - LEVEL) / 2
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
PRIOR_WIDENING = 1.8
"""From two weeks of three ServeGen clients: doubt of the rate forecast is that much too small hours ahead."""
PRIOR_ROUNDS = 3.0
HALF_LIFE_ROUNDS = 144.0
"""Half a day of steps of five minutes."""
SHARED_GAIN, OWN_GAIN = 0.05, 0.02
MAX_FACTOR = 4.0
MIN_FACTOR = 0.5
MAX_LOG_ERROR = 3.0
MAX_LATE = 1.5
"""A step that took longer than so many times its length tells nothing: time jumped."""
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class FrozenWidths:
    """Widths as of one instant: per step the weight and mean square of log errors, factors of the low and high side."""

    weights: tuple[float, ...] = ()
    squares: tuple[float, ...] = ()
    low_factors: tuple[float, ...] = ()
    high_factors: tuple[float, ...] = ()

    def interval(self, step: int, value: float, sigma: float) -> tuple[float, float]:
        """Interval around a rate > 0 whose own doubt is `sigma`, on the log scale, `step` steps ahead (from 0)."""
        weight, square = (self.weights[step], self.squares[step]) if step < len(self.weights) else (0.0, 0.0)
        factors = (self.low_factors[step], self.high_factors[step]) if step < len(self.weights) else (1.0, 1.0)
        prior = PRIOR_ROUNDS * (PRIOR_WIDENING * sigma) ** 2
        side = Z * math.sqrt((weight * square + prior) / (weight + PRIOR_ROUNDS))
        return value * math.exp(-side * factors[0]), value * math.exp(side * factors[1])


class OutlookWidths:
    """Of one deployment. Told of every tick, and of the outlook of every fine forecast."""

    def __init__(self, steps: int, step_s: float) -> None:
        self._step_us = round(step_s * US_PER_S)
        self._weights = np.zeros(steps)
        self._squares = np.zeros(steps)
        self._shared = np.zeros(2)
        self._own = np.zeros((2, steps))
        self._pending: list[list[list[float]] | None] = []
        """Logs of low, value and high per step, of the outlooks made at the last bounds of steps, newest last."""
        self._bound: tuple[int, int] | None = None

    def on_tick(self, as_of_us: int, arrivals: int) -> None:
        """So many requests have arrived by now: once a step is over, learn how the outlooks had foretold it."""
        if self._bound is None:
            self._bound = (as_of_us, arrivals)
            return
        passed_us = as_of_us - self._bound[0]
        if passed_us < self._step_us:
            return
        count = max(arrivals - self._bound[1], 0)
        self._bound = (as_of_us, arrivals)
        if passed_us > MAX_LATE * self._step_us:
            self._pending.clear()
            return
        self._pending.append(None)  # an outlook may be made at this bound
        self._pending = self._pending[-len(self._weights) - 1 :]
        self._learn(math.log(max(count, 0.5) / (passed_us / US_PER_S)))

    def _learn(self, observed_log: float) -> None:
        missed = np.full((2, self._weights.size), np.nan)
        keep = 0.5 ** (1.0 / HALF_LIFE_ROUNDS)
        for ahead, rows in enumerate(reversed(self._pending[:-1])):
            if rows is None or ahead >= self._weights.size or not math.isfinite(rows[1][ahead]):
                continue
            low, value, high = (row[ahead] for row in rows)
            missed[:, ahead] = observed_log < low, observed_log > high
            error = min(max(observed_log - value, -MAX_LOG_ERROR), MAX_LOG_ERROR)
            self._weights[ahead] = self._weights[ahead] * keep + 1.0
            self._squares[ahead] += (error * error - self._squares[ahead]) / self._weights[ahead]
        judged = ~np.isnan(missed[0])
        if judged.any():
            self._shared += SHARED_GAIN * (missed[:, judged].mean(axis=1) - TAIL)
            self._own[:, judged] += OWN_GAIN * (missed[:, judged] - TAIL)
            self._bind()

    def _bind(self) -> None:
        """Nothing runs away from the bounds while they hold."""
        least, most = math.log(MIN_FACTOR), math.log(MAX_FACTOR)
        self._shared = np.clip(self._shared, least, most)
        self._own = np.clip(self._own, least, most)

    def on_outlook(self, as_of_us: int, told: Outlook) -> None:
        """Keep an outlook that was made at a bound of steps; others are passed over."""
        if self._bound is None or self._bound[0] != as_of_us or len(told.value_per_s) != self._weights.size:
            return
        rows = [_logs(told.low_per_s), _logs(told.value_per_s), _logs(told.high_per_s)]
        if self._pending:
            self._pending[-1] = rows
        else:
            self._pending.append(rows)

    def freeze(self) -> FrozenWidths:
        """What an outlook made now uses."""
        logs = np.clip(self._shared[:, None] + self._own, math.log(MIN_FACTOR), math.log(MAX_FACTOR))
        low, high = np.exp(logs)
        return FrozenWidths(_told(self._weights), _told(self._squares), _told(low), _told(high))

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "weights": self._weights.tolist(),
            "squares": self._squares.tolist(),
            "shared": self._shared.tolist(),
            "own": self._own.tolist(),
            "pending": [None if rows is None else [_plain(row) for row in rows] for rows in self._pending],
            "bound": None if self._bound is None else list(self._bound),
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], steps: int, step_s: float) -> Self:
        """The widths of a snapshot; of an outlook of another length, new ones."""
        made = cls(steps, step_s)
        if len(data["weights"]) != steps:
            return made
        made._weights, made._squares = np.array(data["weights"]), np.array(data["squares"])
        made._shared, made._own = np.array(data["shared"]), np.array(data["own"])
        made._pending = [
            None if rows is None else [[-math.inf if value is None else value for value in row] for row in rows]
            for rows in data["pending"]
        ]
        made._bound = None if data["bound"] is None else (data["bound"][0], data["bound"][1])
        return made


def _logs(rates_per_s: tuple[float, ...]) -> list[float]:
    """Six digits are enough, and short in a snapshot."""
    return [round(math.log(rate), 6) if rate > 0.0 else -math.inf for rate in rates_per_s]


def _plain(row: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in row]


def _told(values: FloatArray) -> tuple[float, ...]:
    return tuple(values.tolist())
