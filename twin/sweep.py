"""Load sweep: goodput and latency against the offered rate, the knee, and the throughput ceiling.

Every rate meets the same traffic, only faster or slower, from an empty service. Law: the ceiling is no more than what
the engines complete in overload, and does not depend on the rate that is offered today.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from twin.engine.types import EngineState
from twin.job import ScenarioResult, SimulationJob
from twin.metrics import FloatArray
from twin.simulate import run
from twin.traffic.forecast import RateForecast
from twin.traffic.scenarios import BASELINE
from twin.whatif import mean_interval

KEEPS_UP_RATIO = 0.97
"""A service keeps up with a rate if it completes this share of what is offered."""
LOAD_RATIOS = (0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25)
OVERLOAD_RATIO = 1.5
MOST_DOUBLINGS = 12
FILLING_RATIO = 0.2
"""Share of a run in which an empty service fills: not measured."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """Arrays float64[rates, R]. Throughput is of requests completed, goodput of arrivals that met every target.

    `ceiling_requests_per_s` (R,) is what the engines complete in overload; `knee_requests_per_s` the largest swept
    rate they still keep up with (0 if none).
    """

    rates_per_s: FloatArray
    throughput_requests_per_s: FloatArray
    goodput_requests_per_s: FloatArray
    ttft_p95_s: FloatArray
    tpot_p95_s: FloatArray
    ceiling_requests_per_s: FloatArray
    knee_requests_per_s: float

    def ceiling(self, level: float = 0.9) -> tuple[float, float, float]:
        """Mean and interval of the ceiling."""
        return mean_interval(self.ceiling_requests_per_s, level)


def sweep(job: SimulationJob, rates_per_s: Sequence[float] | None = None, *, span_s: float = 120.0) -> LoadCurve:
    """Sweep the offered rate (None: around the ceiling, which is found first).

    Raises ValueError if the plan has no past arrivals to resample, or a rate is not > 0.
    """
    if not job.traffic.sources.requests:
        raise ValueError("a sweep needs past arrivals to resample; job.traffic.sources is empty")
    if rates_per_s is not None and not all(0.0 < rate < np.inf for rate in rates_per_s):
        raise ValueError(f"sweep rates must be finite numbers > 0 per second, got {list(rates_per_s)}")
    ceiling = ceiling_requests_per_s(job, span_s)
    rates = sorted(rates_per_s or [ratio * float(np.mean(ceiling)) for ratio in LOAD_RATIOS])
    scenarios = [run(_at_rate(job, rate, span_s)).scenario() for rate in rates]
    points = [scenario.horizons[-1] for scenario in scenarios]
    throughput = np.stack([_completed_per_s(scenario) for scenario in scenarios])
    offered = np.stack([point.arrivals / span_s for point in points])
    keeps_up = throughput.mean(axis=1) >= KEEPS_UP_RATIO * offered.mean(axis=1)
    behind = np.flatnonzero(~keeps_up)
    known = int(behind[0]) if behind.size else len(rates)
    return LoadCurve(
        rates_per_s=np.array(rates),
        throughput_requests_per_s=throughput,
        goodput_requests_per_s=np.stack([point.goodput_requests_per_s for point in points]),
        ttft_p95_s=np.stack([point.latency("ttft_s", 0.95) for point in points]),
        tpot_p95_s=np.stack([point.latency("tpot_s", 0.95) for point in points]),
        ceiling_requests_per_s=ceiling,
        knee_requests_per_s=rates[known - 1] if known else 0.0,
    )


def ceiling_requests_per_s(job: SimulationJob, span_s: float = 120.0) -> FloatArray:
    """Completed requests per second when more is offered than can be done: double the rate until they fall behind."""
    rate = max(job.traffic.rate.mean_per_s(min(span_s, 60.0)), 1.0 / span_s)
    throughput = np.zeros(job.replications)
    for _ in range(MOST_DOUBLINGS):
        scenario = run(_at_rate(job, rate, span_s)).scenario()
        throughput = _completed_per_s(scenario)
        if float(throughput.mean()) * OVERLOAD_RATIO < float(scenario.horizons[-1].arrivals.mean()) / span_s:
            break
        rate *= 2.0
    return throughput


def _completed_per_s(scenario: ScenarioResult) -> FloatArray:
    """Completions per second once the service has filled: from the first horizon to the second."""
    first, last = scenario.horizons
    completed = last.throughput_requests_per_s * last.horizon_s - first.throughput_requests_per_s * first.horizon_s
    return completed / (last.horizon_s - first.horizon_s)


def _at_rate(job: SimulationJob, rate_per_s: float, span_s: float) -> SimulationJob:
    """A steady rate from an empty service: filling up to the first horizon, measured up to the second."""
    return replace(
        job,
        traffic=replace(job.traffic, rate=RateForecast.steady(rate_per_s)),
        engines=tuple(
            replace(setup, state=EngineState(), presence=None, available_from_s=0.0) for setup in job.engines
        ),
        scenarios=(BASELINE,),
        horizons_s=(FILLING_RATIO * span_s, span_s),
        arrivals_beyond_s=0.0,
    )
