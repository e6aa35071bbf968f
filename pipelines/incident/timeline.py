"""The charts of a case: what was observed beside what had been forecast for that moment. Draws nothing itself.

A forecast of horizon h made at t is of the requests that arrive in (t, t + h], so it stands at t + h beside what was
observed of the requests that arrived in the h before. Law: nothing is smoothed or filled in.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import numpy as np

from pipelines.incident.case import Case
from pipelines.incident.charts import Band, Chart, Line, Mark
from pipelines.incident.findings import SPAN_S, arrival_series, risk_of
from pipelines.incident.observing import US_PER_S
from schemas.forecasts import Estimate, Forecast, HorizonForecast, LatencyEstimate
from schemas.slos import Metric
from twin.scoring import BASELINE_SCENARIO

LEVEL = 0.95
NAMES: dict[Metric, str] = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
AUTHORITIES = ("advisory", "guarded", "full")


def charts_of(case: Case) -> list[Chart]:
    """All charts, in the order of the page."""
    marks = marks_of(case)
    latency = [_latency(case, metric, marks) for metric in get_args(Metric)]
    return [*latency, _risk(case, marks), _rate(case, marks), _queue(case, marks), _kv(case, marks)]


def marks_of(case: Case) -> tuple[Mark, ...]:
    """Moments that every chart shows."""
    found: list[tuple[str, str, int | None]] = []
    if case.foresight is not None:
        found.append(("risk alert fired", "known", case.foresight.fired_us))
        found.append(("trailing alarm", "trailing", case.foresight.trailing_us))
    if case.breach is not None:
        found.append(("target missed", "broke", case.breach.broke_us))
        found.append(("target met again", "recovered", case.breach.recovered_us))
    onsets = sorted({alert.onset_us for alert in case.alerts if alert.kind == "cost_drift"})
    found += [("drift onset", "drift", at_us) for at_us in onsets]
    return tuple(Mark(name, css, seconds(case, at_us)) for name, css, at_us in found if at_us is not None)


def seconds(case: Case, at_us: int) -> float:
    """Seconds from the start of the window."""
    return (at_us - case.from_us) / US_PER_S


def level_of(case: Case, metric: Metric) -> float:
    """The quantile that is shown: that of the first target on the metric."""
    return next((target.quantile for target in case.targets if target.metric == metric), LEVEL)


def horizon_near(forecast: Forecast) -> HorizonForecast | None:
    """The baseline's horizon that is nearest to the observed span."""
    horizons = [h for s in forecast.scenarios if s.scenario == BASELINE_SCENARIO for h in s.horizons]
    return min(horizons, key=lambda h: abs(h.horizon_s - SPAN_S), default=None)


def latency_at(horizon: HorizonForecast, metric: Metric, level: float) -> LatencyEstimate | None:
    """One estimate."""
    return next((e for e in horizon.latencies if (e.metric, e.quantile) == (metric, level)), None)


def _latency(case: Case, metric: Metric, marks: tuple[Mark, ...]) -> Chart:
    level = level_of(case, metric)
    series = arrival_series(case.requests, metric, level, case.from_us, case.to_us)
    rows = []
    for forecast in case.forecasts:
        horizon = horizon_near(forecast)
        estimate = None if horizon is None else latency_at(horizon, metric, level)
        if horizon is not None and estimate is not None:
            at_s = seconds(case, forecast.as_of_us) + horizon.horizon_s
            rows.append((at_s, estimate.value_s, estimate.low_s, estimate.high_s))
    limit = next((t.limit_s for t in case.targets if (t.metric, t.quantile) == (metric, level)), None)
    name = f"{NAMES[metric]} P{level * 100:g}"
    in_ms = metric == "tpot_s"
    return Chart(
        key=metric,
        title=f"{name}, of requests that arrived in the last {SPAN_S:g} s",
        unit="ms" if in_ms else "s",
        lines=(
            _forecast_line(rows),
            Line("observed", "observed", [seconds(case, int(at)) for at in series.at_us], series.value.tolist()),
        ),
        bands=(_forecast_band(rows),),
        limit=None if limit is None else (f"target {limit:g} s", limit),
        scale=1000.0 if in_ms else 1.0,
        marks=marks,
    )


def _risk(case: Case, marks: tuple[Mark, ...]) -> Chart:
    lines = []
    for number, target in enumerate(case.targets[:3]):
        name = f"{NAMES[target.metric]} P{target.quantile * 100:g} over {target.limit_s:g} s"
        values = [risk_of(forecast, target)[0] for forecast in case.forecasts]
        lines.append(Line(name, f"risk{number}", [seconds(case, f.as_of_us) for f in case.forecasts], values))
    return Chart(
        key="risk",
        title="Forecast probability that a target is missed within two minutes, when it was made",
        unit="%",
        lines=tuple(lines),
        limit=("fires above", 0.5),
        at_most=100.0,
        scale=100.0,
        marks=marks,
        note="" if lines else "No target is known: give one with --slo.",
    )


def _rate(case: Case, marks: tuple[Mark, ...]) -> Chart:
    arrived_us = case.requests.arrived_us
    moments = np.arange(case.from_us, case.to_us + 1, US_PER_S, dtype=np.int64)
    span_us = round(SPAN_S * US_PER_S)
    counts = np.searchsorted(arrived_us, moments, "right") - np.searchsorted(arrived_us, moments - span_us, "right")
    rate = np.where(moments - case.from_us >= span_us, counts / SPAN_S, np.nan)
    rows = _estimates(case, lambda horizon: horizon.arrivals_per_s)
    return Chart(
        key="rate",
        title=f"Arrivals per second over the last {SPAN_S:g} s",
        unit="1/s",
        lines=(
            _forecast_line(rows),
            Line("observed", "observed", [seconds(case, int(at)) for at in moments], rate.tolist()),
            _ceiling(case),
        ),
        bands=(_forecast_band(rows),),
        marks=marks,
    )


def _ceiling(case: Case) -> Line:
    told = [
        (seconds(case, f.as_of_us), f.ceiling_requests_per_s.value) for f in case.forecasts if f.ceiling_requests_per_s
    ]
    return Line("ceiling (forecast)", "ceiling", [at_s for at_s, _ in told], [value for _, value in told])


def _queue(case: Case, marks: tuple[Mark, ...]) -> Chart:
    rows = _estimates(case, lambda horizon: horizon.waiting_peak_requests)
    moments = [float(i) for i in range(case.waiting.size)]
    return Chart(
        key="queue",
        title=f"Requests waiting and running in the engines; forecast of the most that wait in {SPAN_S:g} s",
        unit="",
        lines=(
            _forecast_line(rows, "forecast peak"),
            Line("running", "second", moments, case.running.tolist()),
            Line("waiting", "observed", moments, case.waiting.tolist()),
        ),
        bands=(_forecast_band(rows),),
        marks=marks,
        note=_untold(case.waiting.tolist(), "No source tells queues."),
    )


def _kv(case: Case, marks: tuple[Mark, ...]) -> Chart:
    rows = _estimates(case, lambda horizon: horizon.kv_peak_ratio)
    return Chart(
        key="kv",
        title=f"KV blocks in use, fullest engine; forecast of the most in {SPAN_S:g} s",
        unit="%",
        lines=(
            _forecast_line(rows, "forecast peak"),
            Line("observed", "observed", [float(i) for i in range(case.kv_ratio.size)], case.kv_ratio.tolist()),
        ),
        bands=(_forecast_band(rows),),
        at_most=105.0,
        scale=100.0,
        marks=marks,
        note=_untold(case.kv_ratio.tolist(), "No source tells KV use."),
    )


Row = tuple[float, float, float, float]


def _estimates(case: Case, pick: Callable[[HorizonForecast], Estimate]) -> list[Row]:
    """When, value, low, high, at the end of the horizon that the forecast is of."""
    rows = []
    for forecast in case.forecasts:
        horizon = horizon_near(forecast)
        if horizon is not None:
            found = pick(horizon)
            rows.append((seconds(case, forecast.as_of_us) + horizon.horizon_s, found.value, found.low, found.high))
    return rows


def _forecast_line(rows: Iterable[Row], name: str = "forecast") -> Line:
    listed = list(rows)
    return Line(name, "forecast", [row[0] for row in listed], [row[1] for row in listed])


def _forecast_band(rows: Iterable[Row]) -> Band:
    listed = list(rows)
    at_s, _, low, high = zip(*listed, strict=True) if listed else ((), (), (), ())
    return Band("90 % interval", "interval", at_s, low, high)


def _untold(values: Sequence[float], words: str) -> str:
    return words if all(math.isnan(value) for value in values) else ""


def authority_spans(case: Case) -> list[tuple[float, float, str]]:
    """Begin, end (seconds) and level of authority over the window."""
    changes = [(seconds(case, at_us), level) for at_us, level in case.authority if at_us < case.to_us]
    end_s = seconds(case, case.to_us)
    levels = [(0.0, next((level for at_s, level in reversed(changes) if at_s <= 0.0), AUTHORITIES[0]))]
    levels += [(at_s, level) for at_s, level in changes if at_s > 0.0]
    ends = [at_s for at_s, _ in levels[1:]] + [end_s]
    return [(begin_s, end, level) for (begin_s, level), end in zip(levels, ends, strict=True)]
