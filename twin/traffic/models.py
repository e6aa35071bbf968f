"""Models of a rate, fed with one count per slot: level filters, a gated trend, river's Holt, persistence, seasons.

A model forecasts the mean count per slot over the next `slots` slots. None of them knows how long a slot is, scores
itself, or clips: that is `rate`'s work. Law: a snapshot restored forecasts the same numbers as the original.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from river import time_series

from twin.metrics import FloatArray

PRIOR_DISPERSION_SLOTS = 4.0
MIN_DISPERSION, MAX_DISPERSION = 0.3, 100.0
LONG_SLOTS = 60.0
"""Half-life, in slots, of the mean and the dispersion that set the scale of counting noise."""


class RateModel(Protocol):
    """Feed every slot once, in order, then ask."""

    def update(self, count: float, slot: int) -> None:
        """Learn the count of one slot; `slot` numbers slots since the epoch and rises by one."""
        ...

    def mean(self, slots: int) -> float:
        """Expected mean count per slot over the next `slots` slots; may be negative; finite after one update."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        ...


class CountNoise:
    """Counting noise: dispersion = variance / mean of counts, from successive differences, so trends do not count."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0
        self._half_square = 0.0
        self._last = 0.0

    def update(self, count: float) -> None:
        """Learn one slot."""
        self.n += 1
        floor = 1.0 - 0.5 ** (1.0 / LONG_SLOTS)
        self.mean += max(1.0 / self.n, floor) * (count - self.mean)
        if self.n > 1:
            square = (count - self._last) ** 2 / 2.0
            self._half_square += max(1.0 / (self.n - 1), floor) * (square - self._half_square)
        self._last = count

    @property
    def dispersion(self) -> float:
        """1 for Poisson counts, shrunk to it while few slots were seen."""
        base = max(self.mean, 0.2)
        seen = float(min(self.n, LONG_SLOTS))
        raw = (self._half_square * seen + base * PRIOR_DISPERSION_SLOTS) / (base * (seen + PRIOR_DISPERSION_SLOTS))
        return min(max(raw, MIN_DISPERSION), MAX_DISPERSION)

    @property
    def variance(self) -> float:
        """Of one slot's count around its level."""
        return self.dispersion * max(self.mean, 0.2)

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"n": self.n, "mean": self.mean, "half_square": self._half_square, "last": self._last}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self.n, self.mean = state["n"], state["mean"]
        self._half_square, self._last = state["half_square"], state["last"]


class LevelBank:
    """Local levels that wander at different speeds, weighted by how well each predicted the slots so far.

    Each is a Kalman filter of a random walk under counting noise; weights are predictive likelihoods (Student, so that
    a burst does not decide) with a half-life. It is the reference of all others: the one with a variance.

    References
    ----------
    Harvey, Forecasting, Structural Time Series Models and the Kalman Filter, 1989, chapter 4.
    Raftery, Karny, Ettler, Online Prediction under Model Uncertainty via Dynamic Model Averaging, Technometrics 2010.
    """

    WANDER = np.array([0.0, 0.003, 0.02, 0.1])
    """Variance of a level's step per slot, over the counting variance."""
    PRIOR = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    """Most services are steady over minutes: a level that wanders fast has to show itself."""

    def __init__(self, half_life_slots: float = 60.0) -> None:
        self._keep = 0.5 ** (1.0 / half_life_slots)
        self._noise = CountNoise()
        self._level: FloatArray = np.zeros(self.WANDER.size)
        self._variance: FloatArray = np.zeros(self.WANDER.size)
        self._log_weight: FloatArray = np.zeros(self.WANDER.size)

    @property
    def noise(self) -> CountNoise:
        """Scale of the counting noise."""
        return self._noise

    def update(self, count: float, slot: int) -> None:
        """Learn one slot."""
        del slot
        self._noise.update(count)
        scale = self._noise.variance
        if self._noise.n == 1:
            self._level[:] = count
            self._variance[:] = 2.0 * scale
            return
        predicted = self._variance + self.WANDER * scale
        total = predicted + scale
        missed = count - self._level
        freedom = 8.0
        fit = -0.5 * np.log(total) - (freedom + 1.0) / 2.0 * np.log1p(missed**2 / total / freedom)
        gain = predicted / total
        self._level = self._level + gain * missed
        self._variance = predicted * (1.0 - gain)
        self._log_weight = self._keep * self._log_weight + fit
        self._log_weight -= self._log_weight.max()

    def weights(self) -> FloatArray:
        """Weight of each level, they sum to 1."""
        raw: FloatArray = np.exp(self._log_weight + self.PRIOR)
        raw /= raw.sum()
        return raw

    def mean(self, slots: int) -> float:
        """The weighted level: a random walk is expected to stay."""
        del slots
        return float(self.weights() @ self._level)

    def level_variance(self, slots: int) -> float:
        """Variance of the mean level over the next `slots` slots, counting noise left out."""
        weights = self.weights()
        wandering = self.WANDER * self._noise.variance * slots / 3.0
        spread = (self._level - weights @ self._level) ** 2
        return float(weights @ (self._variance + wandering + spread))

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "noise": self._noise.snapshot(),
            "level": self._level.tolist(),
            "variance": self._variance.tolist(),
            "log_weight": self._log_weight.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self._noise.restore(state["noise"])
        self._level = np.array(state["level"], np.float64)
        self._variance = np.array(state["variance"], np.float64)
        self._log_weight = np.array(state["log_weight"], np.float64)


class GatedTrend:
    """The level, unless the last slots rise or fall beyond doubt: then a line that bends back to flat.

    The slope counts only where its z, corrected for autocorrelation of the residuals, exceeds `gate`: a trend that is
    always on chases bursts, one that never is misses ramps. Even then it is `damping_slots` until the slope has lost
    63 %, because ramps end.
    """

    def __init__(
        self, level: LevelBank, window_slots: int = 18, gate: float = 3.0, damping_slots: float = 12.0
    ) -> None:
        self._level = level
        self._gate = gate
        self._damping = damping_slots
        self._counts: deque[float] = deque(maxlen=window_slots)
        self._line: tuple[float, float] | None = None

    def update(self, count: float, slot: int) -> None:
        """Learn one slot; the level learns on its own."""
        del slot
        self._counts.append(count)
        self._line = self._fit()

    def mean(self, slots: int) -> float:
        """Level, or mean of the damped line over the next slots."""
        if self._line is None:
            return self._level.mean(slots)
        now, slope = self._line
        # mean of damping x (1 - exp(-x / damping)) over x in (0, slots)
        bent = self._damping * (1.0 + self._damping / slots * math.expm1(-slots / self._damping))
        return now + slope * bent

    @property
    def line(self) -> tuple[float, float] | None:
        """(count per slot at the end, slope per slot), or None while the gate is shut."""
        return self._line

    def _fit(self) -> tuple[float, float] | None:
        n = len(self._counts)
        if n < 8:
            return None
        counts = np.array(self._counts)
        x = np.arange(n) - (n - 1) / 2.0
        spread = float(x @ x)
        slope = float(x @ counts) / spread
        residual = counts - counts.mean() - slope * x
        square = float(residual @ residual)
        if square <= 0.0:
            return (float(counts.mean()) + slope * n / 2.0, slope) if slope else None
        correlation = min(max(float(residual[1:] @ residual[:-1]) / square, 0.0), 0.9)
        error = math.sqrt(square / (n - 2) / spread * (1.0 + correlation) / (1.0 - correlation))
        return (float(counts.mean()) + slope * n / 2.0, slope) if abs(slope) > self._gate * error else None

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"counts": list(self._counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self._counts.clear()
        self._counts.extend(state["counts"])
        self._line = self._fit()


class Holt:
    """River's `HoltWinters` with level and trend.

    River starts the trend from the difference of its first two values, which takes minutes to forget: the first count
    is given twice, and the level speaks until `start_slots`.
    """

    def __init__(self, level: LevelBank, alpha: float = 0.1, beta: float = 0.02, start_slots: int = 24) -> None:
        self._model = time_series.HoltWinters(alpha=alpha, beta=beta)
        self._level = level
        self._start = start_slots
        self._n = 0

    def update(self, count: float, slot: int) -> None:
        """Learn one slot."""
        del slot
        if not self._n:
            self._model.learn_one(count)
        self._model.learn_one(count)
        self._n += 1

    def mean(self, slots: int) -> float:
        """Mean of river's forecasts; the level until it has started."""
        if self._n < self._start:
            return self._level.mean(slots)
        return math.fsum(self._model.forecast(horizon=slots)) / slots

    def snapshot(self) -> dict[str, Any]:
        """River's components are deques of two numbers."""
        model = self._model
        return {
            "first": list(model._first_values),
            "initialized": model._initialized,
            "level": list(model.level),
            "trend": list(model.trend),
            "n": self._n,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        model = self._model
        model._first_values = list(state["first"])
        model._initialized = state["initialized"]
        for component, values in ((model.level, state["level"]), (model.trend, state["trend"])):
            component.clear()
            component.extend(values)
        self._n = state["n"]


class Persistence:
    """The mean of as many past slots as are asked for ahead."""

    def __init__(self, most_slots: int = 120) -> None:
        self._counts: deque[float] = deque(maxlen=most_slots)

    def update(self, count: float, slot: int) -> None:
        """Learn one slot."""
        del slot
        self._counts.append(count)

    def mean(self, slots: int) -> float:
        """Mean over the last `slots` slots, or over those there are."""
        counts = list(self._counts)[-slots:]
        return math.fsum(counts) / len(counts) if counts else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"counts": list(self._counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self._counts.clear()
        self._counts.extend(state["counts"])


class Seasonal:
    """The level, times what the same time of past days says the rate will do from here. Flat for the first day."""

    BINS = 96

    def __init__(self, level: LevelBank, day_slots: int, keep_ratio: float = 0.7) -> None:
        self._level = level
        self._day_slots = day_slots
        self._keep = keep_ratio
        self._profile: FloatArray = np.full(self.BINS, np.nan)
        self._sum, self._n, self._bin, self._slot = 0.0, 0, -1, 0

    def update(self, count: float, slot: int) -> None:
        """Learn one slot: a bin of the day's profile is renewed when its time is over."""
        found = self._bin_of(slot)
        if found != self._bin:
            self._close()
            self._bin = found
        self._sum += count
        self._n += 1
        self._slot = slot

    def _close(self) -> None:
        if self._n:
            mean = self._sum / self._n
            old = self._profile[self._bin]
            self._profile[self._bin] = mean if math.isnan(old) else self._keep * old + (1.0 - self._keep) * mean
        self._sum, self._n = 0.0, 0

    def _bin_of(self, slot: int) -> int:
        return slot % self._day_slots * self.BINS // self._day_slots

    def mean(self, slots: int) -> float:
        """Level times profile ahead over profile now, within 1/5 .. 5; the level while the profile has holes."""
        level = self._level.mean(slots)
        here = self._profile[self._bin_of(self._slot)]
        stride = max(slots // 32, 1)
        ahead = self._profile[[self._bin_of(self._slot + k) for k in range(1, slots + 1, stride)]]
        if not here > 0.0 or np.isnan(ahead).any():
            return level
        return level * min(max(float(ahead.mean()) / float(here), 0.2), 5.0)

    def snapshot(self) -> dict[str, Any]:
        """Plain data; None is a bin never seen."""
        profile = [None if math.isnan(value) else value for value in self._profile.tolist()]
        return {"profile": profile, "sum": self._sum, "n": self._n, "bin": self._bin, "slot": self._slot}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self._profile = np.array([math.nan if value is None else value for value in state["profile"]], np.float64)
        self._sum, self._n, self._bin, self._slot = state["sum"], state["n"], state["bin"], state["slot"]
