"""A forecast job dealt out to several processes, and the parts put together again. Runs nothing.

Law: the parts together are the whole, byte for byte, because a replication does not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from twin.job import Curves, HorizonResult, ScenarioResult, SimulationJob, SimulationResult


def split(job: SimulationJob, parts: int) -> list[SimulationJob]:
    """The job in at most `parts` (>= 1) shares of its replications; fewer where there are not as many replications.

    Of every scenario each share has some; who has one more than the others changes from scenario to scenario.

    Insight, trials and a closed window are left to the first share: they are not a matter of these replications.
    """
    if parts < 1:
        raise ValueError(f"a job is split into at least one part, got {parts}")
    count = min(parts, job.coarse_replications)
    return [
        replace(
            job,
            share=(part, count),
            with_insight=job.with_insight and not part,
            trials=None if part else job.trials,
            window=None if part else job.window,
        )
        for part in range(count)
    ]


def joined(results: Sequence[SimulationResult]) -> SimulationResult:
    """Results of all shares of one job, in order, as that of the whole. Raises ValueError if they do not match."""
    if not results:
        raise ValueError("there are no results to join")
    first = results[0]
    for other in results[1:]:
        if (other.deployment, other.as_of_us, other.tick, other.phase) != (
            first.deployment,
            first.as_of_us,
            first.tick,
            first.phase,
        ):
            raise ValueError(f"results of ticks {first.tick} and {other.tick} are not shares of one job")
    scenarios = tuple(_scenario(parts) for parts in zip(*(result.scenarios for result in results), strict=True))
    return replace(
        first,
        scenarios=scenarios,
        replications=sum(result.replications for result in results),
        simulated_requests=sum(result.simulated_requests for result in results),
        fallback=next((result.fallback for result in results if result.fallback), ""),
    )


def _scenario(parts: Sequence[ScenarioResult]) -> ScenarioResult:
    return ScenarioResult(
        scenario=parts[0].scenario,
        horizons=tuple(_horizon(each) for each in zip(*(part.horizons for part in parts), strict=True)),
        curves=_curves([part.curves for part in parts]),
        requests_ratio=np.concatenate([part.requests_ratio for part in parts]),
        engine_busy_ratio=np.concatenate([part.engine_busy_ratio for part in parts]),
    )


def _horizon(parts: Sequence[HorizonResult]) -> HorizonResult:
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(HorizonResult)
        if field.name != "horizon_s"
    }
    return HorizonResult(horizon_s=parts[0].horizon_s, **columns)


def _curves(parts: Sequence[Curves]) -> Curves:
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Curves)
        if field.name != "interval_s"
    }
    return Curves(interval_s=parts[0].interval_s, **columns)
