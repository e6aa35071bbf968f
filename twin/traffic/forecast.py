"""A frozen rate forecast: how many requests will arrive by when, and how far that may be off. Learns nothing.

Law: the expected number of arrivals never falls with time, whatever the level drawn.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from twin.metrics import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class RateForecast:
    """Arrivals after `as_of`, piecewise linear in their expected number between anchors (float64[k], first is 0 s).

    `arrivals[i]` are expected by `anchors_s[i]`. `level_sigma[i]` is the standard deviation of the log of the mean
    rate up to there (the level is not known exactly and wanders); `dispersion` is the variance of counts over their
    mean, 1 for Poisson. After the last anchor the last rate goes on. `chosen` names the weightiest model.
    """

    anchors_s: FloatArray
    arrivals: FloatArray
    level_sigma: FloatArray
    dispersion: float
    chosen: str = ""

    def __post_init__(self) -> None:
        if not (self.anchors_s.size == self.arrivals.size == self.level_sigma.size >= 2):
            raise ValueError("rate forecast needs anchors_s, arrivals and level_sigma of one length >= 2")
        if self.anchors_s[0] != 0.0 or self.arrivals[0] != 0.0:
            raise ValueError("rate forecast must start with 0 arrivals at 0 s")
        if (np.diff(self.anchors_s) <= 0).any() or (np.diff(self.arrivals) < 0).any():
            raise ValueError("rate forecast needs rising anchors_s and arrivals that never fall")

    @classmethod
    def steady(cls, rate_per_s: float, level_sigma: float = 0.0, dispersion: float = 1.0) -> "RateForecast":
        """One rate for ever.

        >>> RateForecast.steady(2.0).mean_per_s(30.0)
        2.0
        """
        anchors_s = np.array([0.0, 3600.0])
        return cls(anchors_s, anchors_s * rate_per_s, np.full(2, level_sigma), dispersion)

    def expected_by(self, time_s: float) -> float:
        """Arrivals expected in (0, time_s]."""
        last_s = float(self.anchors_s[-1])
        if time_s <= last_s:
            return float(np.interp(time_s, self.anchors_s, self.arrivals))
        rate = (self.arrivals[-1] - self.arrivals[-2]) / (last_s - self.anchors_s[-2])
        return float(self.arrivals[-1] + rate * (time_s - last_s))

    def mean_per_s(self, horizon_s: float) -> float:
        """Expected mean rate over (0, horizon_s]."""
        return self.expected_by(horizon_s) / horizon_s

    def interval_per_s(self, horizon_s: float, level: float = 0.9) -> tuple[float, float]:
        """Interval of the mean rate that will be seen over the horizon: level and counting noise together.

        >>> low, high = RateForecast.steady(10.0).interval_per_s(30.0)
        >>> round(low, 1), round(high, 1)
        (9.1, 11.0)
        """
        mean = self.mean_per_s(horizon_s)
        if mean <= 0.0:
            return 0.0, -math.log1p(-level) / horizon_s
        counting = self.dispersion / (mean * horizon_s)
        sigma = math.hypot(self.sigma_at(horizon_s), math.sqrt(math.log1p(counting)))
        z = NormalDist().inv_cdf(0.5 + level / 2)
        return mean * math.exp(-z * sigma - sigma**2 / 2), mean * math.exp(z * sigma - sigma**2 / 2)

    def sigma_at(self, time_s: float) -> float:
        """`level_sigma` at a time, the last one goes on."""
        return float(np.interp(time_s, self.anchors_s, self.level_sigma))

    def path(self, level_z: float, span_s: float) -> tuple[FloatArray, FloatArray]:
        """Anchors within (0, span_s] and arrivals by then, for a level `level_z` standard deviations off its median."""
        inside = self.anchors_s < span_s
        times_s = np.append(self.anchors_s[inside], span_s)
        expected = np.append(self.arrivals[inside], self.expected_by(span_s))
        sigma = np.interp(times_s, self.anchors_s, self.level_sigma)
        return times_s, np.maximum.accumulate(expected * np.exp(level_z * sigma - sigma**2 / 2))
