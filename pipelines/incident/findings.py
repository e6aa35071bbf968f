"""When a target was missed, when that was forecast, and when an alarm on the past would have told. Forecasts nothing.

A target is missed from the first moment at which the requests that arrived in the `SPAN_S` before it have their
quantile over the limit, to the first at which it is back under it and stays so for that long. A trailing
alarm sees, at every moment, the requests whose value became known in the last `SPAN_S`: of TTFT at the first token,
else at the last one.
Laws: a breach needs `LEAST_MEMBERS` requests; lead is the later minus the earlier time, negative where the forecast
came after; a forecast that had been withdrawn before the breach counts as none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.incident.observing import US_PER_S, Requests
from schemas.alerts import Alert
from schemas.forecasts import Forecast
from schemas.slos import Metric, SloTarget
from twin.metrics import FloatArray, IntArray, quantile
from twin.scoring import BASELINE_SCENARIO

SPAN_S = 30.0
STEP_US = US_PER_S
LEAST_MEMBERS = 10
LIKELY_RATIO = 0.5
"""A forecast with this breach probability says that the target will rather be missed."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A value at moments, seconds; NaN where too few requests tell."""

    at_us: IntArray
    value: FloatArray


@dataclass(frozen=True, slots=True)
class Breach:
    """A target was missed from `broke_us` to `recovered_us` (None: to the end of what is known)."""

    target: SloTarget
    broke_us: int
    recovered_us: int | None
    worst_s: float
    worst_us: int


@dataclass(frozen=True, slots=True)
class Foresight:
    """What could have been known of a breach, event times; None: never within what is recorded.

    `likely_us`: the first forecast, of those in a row up to the breach, that found it more likely than not.
    `fired_us`: the risk alert that stood at the breach, or the next one. `trailing_us`: the alarm on the past.
    """

    likely_us: int | None
    fired_us: int | None
    trailing_us: int | None
    horizon_s: float | None


def arrival_series(requests: Requests, metric: Metric, level: float, from_us: int, to_us: int) -> Series:
    """The quantile of requests that arrived within the last `SPAN_S`, at every step."""
    return _series(requests.arrived_us, requests.latencies.of(metric), level, from_us, to_us)


def trailing_series(requests: Requests, metric: Metric, level: float, from_us: int, to_us: int) -> Series:
    """The quantile of requests whose value became known within the last `SPAN_S`, at every step."""
    values = requests.latencies.of(metric)
    wait_s = requests.latencies.ttft_s if metric == "ttft_s" else requests.latencies.e2e_s
    known = np.isfinite(values) & np.isfinite(wait_s)
    known_us = requests.arrived_us[known] + np.rint(wait_s[known] * US_PER_S).astype(np.int64)
    order = np.argsort(known_us, kind="stable")
    return _series(known_us[order], values[known][order], level, from_us, to_us)


def _series(at_us: IntArray, values: FloatArray, level: float, from_us: int, to_us: int) -> Series:
    moments = np.arange(from_us, to_us + 1, STEP_US, dtype=np.int64)
    begins = np.searchsorted(at_us, moments - round(SPAN_S * US_PER_S), side="right")
    ends = np.searchsorted(at_us, moments, side="right")
    found = np.full(moments.size, np.nan)
    for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        inside = values[begin:end]
        if np.count_nonzero(~np.isnan(inside)) >= LEAST_MEMBERS:
            found[i] = quantile(inside, level)
    return Series(moments, found)


def find_breaches(requests: Requests, target: SloTarget, from_us: int, to_us: int) -> tuple[Breach, ...]:
    """Every breach of a target in a window, in order of time; nothing where it was met."""
    series = arrival_series(requests, target.metric, target.quantile, from_us, to_us)
    over = series.value > target.limit_s
    found = []
    end = 0
    while over[end:].any():
        begin = end + int(np.argmax(over[end:]))
        end = _recovery(over, begin)
        worst = begin + int(np.nanargmax(np.where(over[begin:end], series.value[begin:end], -1.0)))
        found.append(
            Breach(
                target=target,
                broke_us=int(series.at_us[begin]),
                recovered_us=int(series.at_us[end]) if end < over.size else None,
                worst_s=float(series.value[worst]),
                worst_us=int(series.at_us[worst]),
            )
        )
    return tuple(found)


def longest(breaches: Iterable[Breach], to_us: int) -> Breach | None:
    """The breach that lasted longest, the first of those; None where there is none."""
    return max(breaches, key=lambda each: ((each.recovered_us or to_us) - each.broke_us, -each.broke_us), default=None)


def _recovery(over: np.typing.NDArray[np.bool_], begin: int) -> int:
    """First step after `begin` at which the target is met and stays met for the span; the size where there is none."""
    hold = round(SPAN_S * US_PER_S) // STEP_US
    for at in range(begin, over.size):
        if not over[at : at + hold].any():
            return at
    return int(over.size)


def foresight_of(
    breach: Breach, requests: Requests, forecasts: Sequence[Forecast], alerts: Iterable[Alert], from_us: int, to_us: int
) -> Foresight:
    """What could have been known of a breach, and when."""
    trailing = trailing_series(requests, breach.target.metric, breach.target.quantile, from_us, to_us)
    since_us = breach.broke_us - round(SPAN_S * US_PER_S)
    alarms = trailing.at_us[(trailing.value > breach.target.limit_s) & (trailing.at_us >= since_us)]
    likely = _likely(breach, forecasts)
    return Foresight(
        likely_us=None if likely is None else likely[0],
        fired_us=_fired(breach, alerts),
        trailing_us=int(alarms[0]) if alarms.size else None,
        horizon_s=None if likely is None else likely[1],
    )


def risk_of(forecast: Forecast, target: SloTarget) -> tuple[float, float]:
    """Highest breach probability of a target over the horizons of the baseline, and the first horizon that has it."""
    best = (0.0, 0.0)
    for scenario in forecast.scenarios:
        if scenario.scenario != BASELINE_SCENARIO:
            continue
        for horizon in scenario.horizons:
            for risk in horizon.slo_risks:
                same = (risk.metric, risk.quantile, risk.limit_s) == (target.metric, target.quantile, target.limit_s)
                if same and risk.breach_probability > best[0]:
                    best = (risk.breach_probability, horizon.horizon_s)
    return best


def _likely(breach: Breach, forecasts: Sequence[Forecast]) -> tuple[int, float] | None:
    """When the forecasts began to find the breach likely, without a break up to it; else the first that did after."""
    found: tuple[int, float] | None = None
    for forecast in forecasts:
        probability, horizon_s = risk_of(forecast, breach.target)
        if forecast.as_of_us > breach.broke_us and found is not None:
            break
        if probability < LIKELY_RATIO:
            found = None
        elif found is None:
            found = (forecast.as_of_us, horizon_s)
    return found


def _fired(breach: Breach, alerts: Iterable[Alert]) -> int | None:
    """When the risk alert fired that stood when the target was first missed, else the first that fired after."""
    fired: dict[str, int] = {}
    ended: dict[str, int] = {}
    for alert in alerts:
        if alert.kind == "slo_risk" and alert.state == "firing":
            fired.setdefault(alert.alert_id, alert.at_us)
        elif alert.kind == "slo_risk" and alert.state == "resolved":
            ended.setdefault(alert.alert_id, alert.at_us)
    standing = [at_us for name, at_us in fired.items() if ended.get(name, breach.broke_us + 1) > breach.broke_us]
    return min(standing, default=None)


def lead_s(earlier_us: int | None, later_us: int | None) -> float | None:
    """Seconds between two moments; None where one is not known."""
    return None if earlier_us is None or later_us is None else (later_us - earlier_us) / US_PER_S
