"""From simulated outcomes to the numbers of a forecast: per replication, then side by side. Simulates nothing.

Law: counts here are those of `twin.metrics`; a number of a shorter horizon does not change when a longer one is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.slos import SloTarget
from twin.cost.frozen import PS_PER_S
from twin.engine.types import UNDEFINED_PS, EngineResult, Int64Array
from twin.job import Curves, HorizonResult, ScenarioResult, SimulationJob
from twin.metrics import (
    METRICS,
    QUANTILES,
    BoolArray,
    FloatArray,
    IntArray,
    Latencies,
    latencies,
    limits_s,
    met,
    quantile,
    quantiles,
    success_ratio,
)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One replication of one scenario: its requests in order of arrival, arrays of n, and what its engines did.

    Times are seconds at the client, NaN where they never came; `engine` is -1 where no engine had the request.
    `carried_last_s` and `carried_tokens` are of requests that were in flight at `as_of`: their ends, and the tokens
    they got after it.
    """

    arrived_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    osl_tokens: IntArray
    traffic_class: IntArray
    preemptions: IntArray
    refused: BoolArray
    engine: IntArray
    carried_last_s: FloatArray
    carried_tokens: IntArray
    results: tuple[EngineResult, ...]


def seconds(times_ps: Int64Array) -> FloatArray:
    """Picoseconds as seconds, NaN where undefined."""
    found: FloatArray = np.where(times_ps == UNDEFINED_PS, np.nan, times_ps / PS_PER_S)
    return found


def scenario_result(name: str, job: SimulationJob, runs: Sequence[Run]) -> ScenarioResult:
    """All replications of one scenario side by side."""
    curves = _curves(job, runs)
    longest = [_within(run, job.members_from_s, job.horizons_s[-1], job.closes_after_s) for run in runs]
    engines = len(job.engines)
    requests = np.stack([np.bincount(run.engine[run.engine >= 0], minlength=engines) for run in runs]).astype(
        np.float64
    )
    busy = np.array([[result.busy_ps / max(result.end_ps, 1) for result in run.results] for run in runs])
    return ScenarioResult(
        scenario=name,
        horizons=tuple(_horizon(job, horizon_s, runs, longest, curves) for horizon_s in job.horizons_s),
        curves=curves,
        requests_ratio=requests / np.maximum(requests.sum(axis=1, keepdims=True), 1.0),
        engine_busy_ratio=np.minimum(busy, 1.0),
    )


def _horizon(
    job: SimulationJob, horizon_s: float, runs: Sequence[Run], longest: Sequence[Latencies], curves: Curves
) -> HorizonResult:
    members = [_members(job, horizon_s, run, known) for run, known in zip(runs, longest, strict=True)]
    found = [each for each, _ in members]
    latency_s = np.array([[quantiles(each.of(metric)) for metric in METRICS] for each in found])
    ended = np.array([_ended(run, horizon_s) for run in runs])
    begins = [int(np.searchsorted(run.arrived_s, job.members_from_s, side="right")) for run in runs]
    upto = int(horizon_s / curves.interval_s) + 1
    return HorizonResult(
        horizon_s=horizon_s,
        arrivals=np.array([each.e2e_s.size for each in found], np.int64),
        latency_s=latency_s,
        throughput_requests_per_s=ended[:, 0] / horizon_s,
        output_tokens_per_s=ended[:, 1] / horizon_s,
        success_ratio=np.array([success_ratio(each) for each in found]),
        goodput_requests_per_s=np.array([_good(job, *each) for each in members]) / (horizon_s - job.members_from_s),
        waiting_peak_requests=curves.waiting_requests[:, :upto].max(axis=1),
        kv_peak_ratio=curves.kv_ratio[:, :upto].max(axis=1),
        preemptions=np.array(
            [
                run.preemptions[begin : begin + each.e2e_s.size].sum()
                for run, begin, each in zip(runs, begins, found, strict=True)
            ]
        ),
        busy_ratio=curves.busy_ratio[:, 1:upto].mean(axis=1),
        breached=_breached(job, members, latency_s),
    )


def _members_of(run: Run, from_s: float, horizon_s: float) -> slice:
    """Requests that arrived in (`from_s`, `horizon_s`]."""
    return slice(*np.searchsorted(run.arrived_s, (from_s, horizon_s), side="right").tolist())


def _within(run: Run, from_s: float, horizon_s: float, closes_after_s: float) -> Latencies:
    """Latencies of a horizon's members."""
    inside = _members_of(run, from_s, horizon_s)
    return latencies(
        arrived_s=run.arrived_s[inside],
        first_token_s=run.first_s[inside],
        last_token_s=run.last_s[inside],
        osl_tokens=run.osl_tokens[inside],
        closes_s=horizon_s + closes_after_s,
        refused=run.refused[inside],
    )


def _members(job: SimulationJob, horizon_s: float, run: Run, known: Latencies) -> tuple[Latencies, IntArray]:
    """Latencies and classes of a horizon's members; those of the longest horizon, unless one ends after closing."""
    inside = _members_of(run, job.members_from_s, horizon_s)
    if (run.last_s[inside] > horizon_s + job.closes_after_s).any():
        return _within(run, job.members_from_s, horizon_s, job.closes_after_s), run.traffic_class[inside]
    return known[: inside.stop - inside.start], run.traffic_class[inside]


def _ended(run: Run, horizon_s: float) -> tuple[float, float]:
    """Requests, and output tokens of requests, that ended by `horizon_s`."""
    new, carried = run.last_s <= horizon_s, run.carried_last_s <= horizon_s
    count = np.count_nonzero(new) + np.count_nonzero(carried)
    return float(count), float(run.osl_tokens[new].sum() + run.carried_tokens[carried].sum())


def _good(job: SimulationJob, found: Latencies, traffic_class: IntArray) -> float:
    """Members that met every limit of their class."""
    if not any(target.traffic_class for target in job.slos):
        return float(np.count_nonzero(met(found, limits_s(job.slos))))
    return float(
        sum(
            np.count_nonzero(met(found[traffic_class == index], limits_s(job.slos, name)))
            for index, name in enumerate(job.traffic.classes)
        )
    )


def _breached(job: SimulationJob, members: Sequence[tuple[Latencies, IntArray]], latency_s: FloatArray) -> BoolArray:
    """bool[R, slos]: is the target's quantile over its limit?"""
    columns = []
    for target in job.slos:
        if not target.traffic_class and target.quantile in QUANTILES:
            values = latency_s[:, METRICS.index(target.metric), QUANTILES.index(target.quantile)]
        else:
            values = np.array([_quantile_of(target, job, *each) for each in members])
        columns.append(values > target.limit_s)
    return np.array(columns, np.bool_).reshape(len(job.slos), len(members)).T


def _quantile_of(target: SloTarget, job: SimulationJob, found: Latencies, traffic_class: IntArray) -> float:
    values = found.of(target.metric)
    if target.traffic_class:
        named = [index for index, name in enumerate(job.traffic.classes) if name == target.traffic_class]
        values = values[np.isin(traffic_class, named)]
    return quantile(values, target.quantile)


def _curves(job: SimulationJob, runs: Sequence[Run]) -> Curves:
    """Samples of all engines together; an engine without a timeline would be a fault of the caller."""
    lines = [[result.timeline for result in run.results if result.timeline is not None] for run in runs]
    blocks = [setup.config.kv_blocks - setup.config.reserved_blocks for setup in job.engines]
    step_ps = job.grid_s * PS_PER_S
    busy = np.array([[np.diff(line.busy_ps, prepend=0) for line in each] for each in lines]) / step_ps
    saturated = np.array([[np.diff(line.saturated_ps, prepend=0) for line in each] for each in lines]) / step_ps
    kv = np.array([[line.kv_used_blocks / size for line, size in zip(each, blocks, strict=True)] for each in lines])
    return Curves(
        interval_s=job.grid_s,
        waiting_requests=np.array([sum(line.waiting for line in each) for each in lines], np.float64),
        running_requests=np.array([sum(line.running for line in each) for each in lines], np.float64),
        kv_ratio=kv.max(axis=1),
        busy_ratio=np.clip(busy.mean(axis=1), 0.0, 1.0),
        saturated_ratio=np.clip(saturated.max(axis=1), 0.0, 1.0),
    )
