"""A forecast job with the questions that need further simulations: ceiling, bottlenecks, other engine counts, actions.

Runs what others define (`twin.sweep`, `twin.whatif`) with fewer replications, on the seeds of the forecast itself.
Law: the forecast part of the result is that of `twin.simulate.run` alone.
"""

import math
from dataclasses import replace

import numpy as np

from schemas.forecasts import Bottleneck, EnginesResponse, Estimate
from twin.advise.trials import surface, tried
from twin.closed_window import replay
from twin.job import Insight, SimulationJob, SimulationResult, Tried
from twin.simulate import run
from twin.sweep import ceiling_requests_per_s
from twin.whatif import Effect, EnginesPoint, effects, mean_interval, resource_changes, responses, role_changes

REPLICATIONS = 6
CEILING_SPAN_S = 90.0


def run_with_insight(job: SimulationJob) -> SimulationResult:
    """`run`, the actions that the job asks to try, the closed window that it gives, and the insight if it asks for that
    and is fine."""
    result = replace(run_with_window(job), tried=tried(job))
    if not job.with_insight or job.phase != "fine" or not job.traffic.sources.requests:
        return result
    return replace(result, insight=insight(job, result.tried))


def run_with_window(job: SimulationJob) -> SimulationResult:
    """`run`, and the closed window that the job gives to replay; one that no engine could have had has no result."""
    result = run(job)
    if job.window is None:
        return result
    try:
        return replace(result, window=replay(job.window))
    except ValueError:  # absurd records must not cost the forecast they come with
        return result


def insight(job: SimulationJob, found_trials: tuple[Tried, ...] = ()) -> Insight:
    """Ceiling, bottlenecks ranked by effect, and the response surface N-1 .. N+3, which trials have simulated."""
    few = replace(job.at_phase("coarse"), coarse_replications=min(REPLICATIONS, job.fine_replications), share=(0, 1))
    found = effects(few, role_changes(), "class") + effects(few, resource_changes(), "resource")
    ranked = sorted((one for effect in found if (one := _bottleneck(effect))), key=lambda b: b.ttft_p95_change_ratio)
    return Insight(
        ceiling_requests_per_s=_estimate(*mean_interval(ceiling_requests_per_s(few, CEILING_SPAN_S))),
        bottlenecks=tuple(ranked),
        responses=tuple(_response(point) for point in surface(job, found_trials) or responses(few)),
    )


def _bottleneck(effect: Effect) -> Bottleneck | None:
    """None where the effect is undefined: nobody finished."""
    numbers = (
        effect.ttft_p95_change_ratio,
        effect.tpot_p95_change_ratio,
        effect.ttft_low_ratio,
        effect.ttft_high_ratio,
    )
    if not all(math.isfinite(number) for number in numbers):
        return None
    ttft, tpot, low, high = numbers
    return Bottleneck(
        name=effect.name,
        kind=effect.kind,
        ttft_p95_change_ratio=ttft,
        tpot_p95_change_ratio=tpot,
        low_ratio=low,
        high_ratio=high,
    )


def _response(point: EnginesPoint) -> EnginesResponse:
    breached = np.asarray(point.breached)
    share = (float(np.count_nonzero(breached)) + 0.5) / (breached.size + 1.0)
    return EnginesResponse(
        engines=point.engines,
        goodput_requests_per_s=_estimate(*mean_interval(point.goodput_requests_per_s)) or _NOTHING,
        breach_probability=share,
        from_s=point.from_s,
        to_s=point.to_s,
    )


_NOTHING = Estimate(value=0.0, low=0.0, high=0.0)


def _estimate(mean: float, low: float, high: float) -> Estimate | None:
    if not math.isfinite(mean):
        return None
    low = mean if math.isnan(low) else max(low, 0.0)
    return Estimate(value=max(mean, 0.0), low=low, high=mean if math.isnan(high) else max(high, 0.0))
