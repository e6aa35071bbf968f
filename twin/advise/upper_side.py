"""The upper side of a trial against its limits: what decides, and by how much. Simulates and remembers nothing.

A trial's interval is that of its replications, which differ in traffic, lengths and cost noise, and not the calibrated
one of a forecast: candidates are compared on equal random numbers. It is widened by the footing's margin.
Law: a higher value in any replication never lowers the upper side.
"""

import math
from dataclasses import dataclass

import numpy as np

from schemas.actions import Predicted, Scale, What
from schemas.forecasts import Estimate, LatencyEstimate
from schemas.slos import SloTarget
from twin.job import HorizonResult, Tried
from twin.metrics import METRICS, QUANTILES, FloatArray

LONGEST_S = 1e6
_LEVELS = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Trial:
    """One action as told to people: predicted without and with it, and in how many futures it is worth it.

    `load_ratio` and `load_without_ratio` are the largest upper side over its limit, with and without; infinite where
    requests never finish, 0 where nothing arrives. `rate_per_s` is the mean rate of the requests judged, and
    `danger_after_s` that of `Tried`.
    """

    what: What
    before: Predicted
    after: Predicted
    load_ratio: float
    load_without_ratio: float
    confidence_ratio: float
    rate_per_s: float = 0.0
    danger_after_s: float | None = None

    @property
    def delta(self) -> int:
        """Engines more or fewer."""
        return self.what.engines_after - self.what.engines_before if isinstance(self.what, Scale) else 0


def interval(values_s: FloatArray, widen: float = 1.0) -> tuple[float, float, float] | None:
    """Low, median and high of one value per replication, both sides stretched on the log scale; None without any.

    >>> interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0, 1.0)
    """
    known = values_s[~np.isnan(values_s)]
    if not known.size:
        return None
    low, value, high = np.quantile(np.log(np.clip(known, 1e-6, LONGEST_S)), _LEVELS, method="linear")
    return math.exp(value - widen * (value - low)), math.exp(value), math.exp(value + widen * (high - value))


def judged(tried: Tried, slos: tuple[SloTarget, ...], widen: float = 1.0) -> Trial:
    """A trial as it is told. `widen` >= 1 stretches intervals for what replications do not know."""
    after, load = _predicted(tried.found, slos, widen, tried.members_from_s)
    before, load_without = _predicted(tried.without, slos, widen, tried.members_from_s)
    rate_per_s = float(tried.found.arrivals.mean()) / (tried.found.horizon_s - tried.members_from_s)
    confidence = _confidence(tried)
    return Trial(tried.what, before, after, load, load_without, confidence, rate_per_s, tried.danger_after_s)


def upper_sides(
    found: HorizonResult, slos: tuple[SloTarget, ...], widen: float = 1.0
) -> tuple[list[LatencyEstimate], float]:
    """Latencies that targets speak of, with intervals, and the largest upper side over its limit.

    A target of one class, or of a quantile that is not simulated, has no interval: it counts as infinitely far over
    where more than one future in twenty misses it.
    """
    latencies, load = [], 0.0
    for at, target in enumerate(slos):
        if target.traffic_class or target.quantile not in QUANTILES:
            load = math.inf if float(np.mean(found.breached[:, at])) > 1.0 - _LEVELS[-1] else load
            continue
        span = interval(found.latency_s[:, METRICS.index(target.metric), QUANTILES.index(target.quantile)], widen)
        if span is not None:
            low, value, high = span
            load = max(load, high / target.limit_s)
            latencies.append(
                LatencyEstimate(metric=target.metric, quantile=target.quantile, value_s=value, low_s=low, high_s=high)
            )
    return latencies, load


def _predicted(
    found: HorizonResult, slos: tuple[SloTarget, ...], widen: float, from_s: float
) -> tuple[Predicted, float]:
    latencies, load = upper_sides(found, slos, widen)
    breached = found.breached.any(axis=1)
    low, value, high = (float(each) for each in np.quantile(found.goodput_requests_per_s, _LEVELS))
    predicted = Predicted(
        horizon_s=found.horizon_s - from_s,
        breach_probability=(float(np.count_nonzero(breached)) + 0.5) / (breached.size + 1.0),
        goodput_requests_per_s=Estimate(value=value, low=low, high=high),
        latencies=tuple(latencies),
    )
    return predicted, load


def _confidence(tried: Tried) -> float:
    """Share of futures in which it keeps every target or, if it saves nothing, serves more well than doing nothing."""
    kept = ~tried.found.breached.any(axis=1)
    saves = isinstance(tried.what, Scale) and tried.what.engines_after < tried.what.engines_before
    better = tried.found.goodput_requests_per_s > tried.without.goodput_requests_per_s
    good = kept if saves else kept | better
    return (float(np.count_nonzero(good)) + 0.5) / (good.size + 1.0)
