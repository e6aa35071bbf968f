"""A simulation's result and its footing become a forecast: intervals, risks, curves, lineage. Decides nothing.

Latencies and breach probabilities come from the calibrated distribution of each window quantile, everything else from
the replications. Laws: every number is finite and within its field's bounds; low <= value <= high; a limit that is
lower is not less likely to be missed; the same result and footing give the same bytes.
"""

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from schemas.forecasts import (
    Authority,
    Credibility,
    Curve,
    EngineShare,
    Estimate,
    Forecast,
    HorizonForecast,
    LatencyEstimate,
    ScenarioForecast,
    SloRisk,
)
from schemas.lineage import Lineage
from schemas.slos import Metric, SloTarget
from twin.calibration import INTERVAL_LEVEL, FrozenCalibration, Predictive
from twin.credibility import Standing, margin_ratio
from twin.job import Curves, HorizonResult, ScenarioResult, SimulationJob, SimulationResult
from twin.metrics import METRICS, QUANTILES, FloatArray
from twin.outlook import outlook
from twin.outlook_widths import FrozenWidths
from twin.scoring import BASELINE_SCENARIO

US_PER_S = 1_000_000
EXPIRES_AFTER_PERIODS = 2.0
MAX_VALUE = 1e12
HIGH_QUANTILE = 0.95
_LEAST_PROBABILITY = 1e-3
_NOTHING = Estimate(value=0.0, low=0.0, high=0.0)


@dataclass(frozen=True, slots=True)
class Footing:
    """Everything a forecast says beside the simulated numbers, as it stood at `as_of`.

    `lineage.replications` and `lineage.engine` are filled in from the result.
    """

    standing: Standing
    authority: Authority
    credibility: Credibility
    calibration: FrozenCalibration
    period_s: float
    lineage: Lineage
    outlook_widths: FrozenWidths = FrozenWidths()  # noqa: RUF009 - frozen


def assemble(job: SimulationJob, result: SimulationResult, footing: Footing) -> Forecast:
    """The forecast of one phase of one tick. Raises ValueError if the result is not that of the job."""
    if (result.as_of_us, result.tick, result.phase) != (job.as_of_us, job.tick, job.phase):
        raise ValueError(
            f"result of tick {result.tick} ({result.phase}) does not belong to job of tick {job.tick} ({job.phase})"
        )
    insight = result.insight
    widen = margin_ratio(footing.standing)
    expires_us = job.as_of_us + round(EXPIRES_AFTER_PERIODS * footing.period_s * US_PER_S)
    scenarios = tuple(_scenario(each, result, footing.calibration, widen) for each in result.scenarios)
    lineage = msgspec.structs.replace(footing.lineage, replications=result.replications, engine=result.engine)
    return Forecast(
        deployment=job.deployment,
        as_of_us=job.as_of_us,
        expires_us=expires_us,
        tick=job.tick,
        phase=job.phase,
        input_level=footing.standing.input_level,
        interval_level=INTERVAL_LEVEL,
        scenarios=scenarios,
        authority=footing.authority,
        credibility=footing.credibility,
        lineage=lineage,
        skill=footing.standing.skill,
        scored_rounds=footing.standing.scored_rounds,
        ceiling_requests_per_s=insight.ceiling_requests_per_s,
        burst_headroom_ratio=burst_headroom_ratio(scenarios, insight.ceiling_requests_per_s),
        bottlenecks=insight.bottlenecks,
        balance=_balance(result),
        responses=insight.responses,
        engines=sum(engine.available_from_s <= 0.0 < engine.available_until_s for engine in job.engines),
        engines_starting=sum(engine.available_from_s > 0.0 for engine in job.engines),
        outlook=outlook(
            job.traffic.rate, job.as_of_us, insight.ceiling_requests_per_s, job.engines, footing.outlook_widths
        ),
    )


def burst_headroom_ratio(scenarios: tuple[ScenarioForecast, ...], ceiling: Estimate | None) -> float | None:
    """How many times the expected rate of the shortest horizon still fits under the ceiling's lower end; None if
    there is no ceiling or nothing is expected."""
    for scenario in scenarios:
        if scenario.scenario == BASELINE_SCENARIO and ceiling is not None:
            rate_per_s = scenario.horizons[0].arrivals_per_s.value
            return min(ceiling.low / rate_per_s, 1e6) if rate_per_s > 0 else None
    return None


def _scenario(
    scenario: ScenarioResult, result: SimulationResult, calibration: FrozenCalibration, widen: float
) -> ScenarioForecast:
    ceiling = result.insight.ceiling_requests_per_s
    horizons = tuple(_horizon(horizon, result.slos, calibration, widen, ceiling) for horizon in scenario.horizons)
    curves = _curves(scenario.curves) if scenario.scenario == BASELINE_SCENARIO else ()
    return ScenarioForecast(scenario=scenario.scenario, horizons=horizons, curves=curves)


def _horizon(
    horizon: HorizonResult,
    slos: tuple[SloTarget, ...],
    calibration: FrozenCalibration,
    widen: float,
    ceiling: Estimate | None,
) -> HorizonForecast:
    horizon_s = horizon.horizon_s
    latencies: list[LatencyEstimate] = []
    known: dict[tuple[Metric, float], Predictive] = {}
    for metric in METRICS:
        ordered = None
        for quantile in QUANTILES:
            found = calibration.predictive(metric, quantile, horizon_s, horizon.latency(metric, quantile), widen)
            if found is None:
                continue
            ordered = known[(metric, quantile)] = _not_below(found, ordered)
            latencies.append(
                LatencyEstimate(
                    metric=metric,
                    quantile=quantile,
                    value_s=ordered.value_s,
                    low_s=ordered.low_s,
                    high_s=ordered.high_s,
                )
            )
    arrivals = estimate(horizon.arrivals / horizon_s)
    return HorizonForecast(
        horizon_s=horizon_s,
        arrivals_per_s=arrivals,
        latencies=tuple(latencies),
        throughput_requests_per_s=estimate(horizon.throughput_requests_per_s),
        output_tokens_per_s=estimate(horizon.output_tokens_per_s),
        success_ratio=estimate(horizon.success_ratio, highest=1.0),
        goodput_requests_per_s=estimate(horizon.goodput_requests_per_s),
        waiting_peak_requests=estimate(horizon.waiting_peak_requests),
        kv_peak_ratio=estimate(horizon.kv_peak_ratio, highest=1.0),
        preemptions=estimate(horizon.preemptions),
        compute_watermark_ratio=_watermark(arrivals, ceiling),
        slo_risks=tuple(_risk(slo, at, horizon, known) for at, slo in enumerate(slos)),
    )


def _risk(slo: SloTarget, at: int, horizon: HorizonResult, known: dict[tuple[Metric, float], Predictive]) -> SloRisk:
    """From the calibrated distribution where the target speaks of a quantile that has one and of all traffic.

    Otherwise the share of replications that breach it, with one of each outcome added: R of R is no certainty.
    """
    found = known.get((slo.metric, slo.quantile))
    if found is not None and not slo.traffic_class:
        probability = found.exceeds(slo.limit_s)
    else:
        breached = horizon.breached[:, at]
        probability = (float(np.count_nonzero(breached)) + 0.5) / (breached.size + 1.0)
    return SloRisk(
        metric=slo.metric,
        quantile=slo.quantile,
        limit_s=slo.limit_s,
        breach_probability=min(max(probability, _LEAST_PROBABILITY), 1.0 - _LEAST_PROBABILITY),
        traffic_class=slo.traffic_class,
    )


def estimate(values: FloatArray, highest: float = MAX_VALUE) -> Estimate:
    """Median and the 90 % interval of one value per replication; NaN ones are left out, none at all is 0."""
    known = values[~np.isnan(values)]
    if known.size == 0:
        return _NOTHING
    low, value, high = np.quantile(np.clip(known, 0.0, highest), (0.05, 0.5, 0.95))
    return Estimate(value=float(value), low=float(low), high=float(high))


def _watermark(arrivals: Estimate, ceiling: Estimate | None) -> Estimate | None:
    """Offered rate over the knee of the load sweep, the doubts of both taken together at their worst."""
    if ceiling is None or min(ceiling.low, ceiling.value) <= 0.0:
        return None
    return Estimate(
        value=min(arrivals.value / ceiling.value, MAX_VALUE),
        low=min(arrivals.low / max(ceiling.high, ceiling.value), MAX_VALUE),
        high=min(arrivals.high / ceiling.low, MAX_VALUE),
    )


def _not_below(found: Predictive, lower: Predictive | None) -> Predictive:
    """A higher quantile of the same members is never below a lower one, and neither are its interval's ends."""
    if lower is None:
        return found
    return Predictive(
        value_s=max(found.value_s, lower.value_s),
        low_s=max(found.low_s, lower.low_s),
        high_s=max(found.high_s, lower.high_s),
    )


def _curves(curves: Curves) -> tuple[Curve, ...]:
    series = {
        "waiting_requests": curves.waiting_requests,
        "running_requests": curves.running_requests,
        "kv_ratio": curves.kv_ratio,
        "busy_ratio": curves.busy_ratio,
        "saturated_ratio": curves.saturated_ratio,
    }
    return tuple(
        Curve(
            name=name,
            interval_s=curves.interval_s,
            mean=_numbers(values.mean(axis=0)),
            high=_numbers(np.quantile(values, HIGH_QUANTILE, axis=0)),
        )
        for name, values in series.items()
    )


def _numbers(values: FloatArray) -> tuple[float, ...]:
    """Finite, six significant digits: curves are for eyes, and short on the wire."""
    known = np.nan_to_num(values, nan=0.0, posinf=MAX_VALUE, neginf=0.0)
    return tuple(_rounded(float(value)) for value in known)


def _rounded(value: float) -> float:
    return 0.0 if value == 0.0 else round(value, 5 - math.floor(math.log10(abs(value))))


def _balance(result: SimulationResult) -> tuple[EngineShare, ...]:
    for scenario in result.scenarios:
        if scenario.scenario == BASELINE_SCENARIO:
            requests = np.nan_to_num(scenario.requests_ratio).mean(axis=0)
            busy = np.nan_to_num(scenario.engine_busy_ratio).mean(axis=0)
            return tuple(
                EngineShare(
                    engine=name,
                    requests_ratio=min(max(float(requests[at]), 0.0), 1.0),
                    busy_ratio=min(max(float(busy[at]), 0.0), 1.0),
                )
                for at, name in enumerate(result.engine_names)
            )
    return ()
