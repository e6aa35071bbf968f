"""Many engines behind one router: the entry points. Picks the kernel where it can, SimPy for the rest.

The kernel does round robin, weighted and least outstanding routing over engines that appear and drain. SimPy also does
prefix-aware and own policies, prefill/decode disaggregation, engines that share a device and engines that disappear.
Law: with one engine a cluster is that engine, whatever routes; the kernel and SimPy agree to the picosecond.
"""

from collections.abc import Sequence

import numpy as np

from twin.engine.cluster_simpy import run_cluster
from twin.engine.cluster_types import ClusterEngine, ClusterJob, ClusterResult, KvLink
from twin.engine.disaggregated import run_disaggregated
from twin.engine.kernel_run import kernel_unsupported, run_kernel
from twin.engine.prepare import Prepared, prepare_many
from twin.engine.routing import STATIC, assigned
from twin.engine.run import simulate_many
from twin.engine.types import (
    UNDEFINED_PS,
    EngineChoice,
    EngineResult,
    Int64Array,
    Job,
    Outcomes,
    Status,
    Workload,
)

__all__ = ["ClusterEngine", "ClusterJob", "ClusterResult", "KvLink", "simulate_cluster", "simulate_clusters"]


def simulate_cluster(job: ClusterJob, *, engine: EngineChoice = "auto") -> ClusterResult:
    """Run one cluster; see `simulate_clusters`."""
    return simulate_clusters([job], engine=engine)[0]


def simulate_clusters(jobs: Sequence[ClusterJob], *, engine: EngineChoice = "auto") -> list[ClusterResult]:
    """Run independent clusters; results in order. All are checked before the first one runs (ValueError).

    What the kernel can do is done in one or two compiled calls for all jobs together.
    """
    prepared = [_prepared(job) for job in jobs]
    results: dict[int, ClusterResult] = {}
    compiled = [i for i, job in enumerate(jobs) if engine in ("auto", "kernel") and not _why_not(job, prepared[i])]
    static = [i for i in compiled if jobs[i].routing in STATIC]
    results |= dict(zip(static, _run_static([jobs[i] for i in static]), strict=True))
    dynamic = [i for i in compiled if i not in results]
    windows = [[member.window for member in jobs[i].engines] for i in dynamic]
    for i, group in zip(dynamic, run_kernel([prepared[i] for i in dynamic], windows), strict=True):
        results[i] = ClusterResult(Outcomes(*group.columns), group.engine, group.engine, tuple(group.engines), "kernel")
    for i, job in enumerate(jobs):
        if i not in results:
            why = _why_not(job, prepared[i]) if engine in ("auto", "kernel") else ""
            run = run_disaggregated if job.disaggregated else run_cluster
            results[i] = run(job, prepared[i], why, plainly=engine == "plain")
    return [results[i] for i in range(len(jobs))]


def _prepared(job: ClusterJob) -> list[Prepared]:
    nothing = Workload.build(arrival_ps=[], isl_tokens=[], osl_tokens=[])
    engines = [Job(one.config, one.cost, nothing, one.state, one.noise, job.grid) for one in job.engines]
    return prepare_many(engines, job.workload, job.until_ps, routed=True)


def _why_not(job: ClusterJob, prepared: Sequence[Prepared]) -> str:
    if job.disaggregated:
        return "prefill/decode disaggregation"
    if not (job.routing in STATIC or job.routing == "least_outstanding"):
        return f"routing {job.routing}" if isinstance(job.routing, str) else "an own routing policy"
    devices = [one.device for one in job.engines if one.device]
    if len(set(devices)) < len(devices):
        return "engines that share a device"
    if any(one.gone_ps is not None for one in job.engines):
        return "an engine that disappears"
    return next((why for why in map(kernel_unsupported, prepared) if why), "")


def _run_static(jobs: Sequence[ClusterJob]) -> list[ClusterResult]:
    """Routes known beforehand: every engine is simulated alone, all of them in one call."""
    routes, alone = [], []
    for job in jobs:
        windows, weights = [one.window for one in job.engines], [one.weight for one in job.engines]
        route = assigned(str(job.routing), job.workload.arrival_ps, windows, weights)
        if job.until_ps is not None:
            route[job.workload.arrival_ps >= job.until_ps] = -1
        routes.append(route)
        alone += [
            Job(
                one.config,
                one.cost,
                _part(job.workload, np.flatnonzero(route == i)),
                one.state,
                one.noise,
                job.grid,
                job.until_ps,
            )
            for i, one in enumerate(job.engines)
        ]
    engines = iter(simulate_many(alone))
    return [_merged(job, route, [next(engines) for _ in job.engines]) for job, route in zip(jobs, routes, strict=True)]


def _part(load: Workload, rows: Int64Array) -> Workload:
    counts = np.diff(load.hash_offsets)[rows]
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return Workload(
        arrival_ps=load.arrival_ps[rows],
        isl_tokens=load.isl_tokens[rows],
        osl_tokens=load.osl_tokens[rows],
        priority=load.priority[rows],
        timeout_ps=load.timeout_ps[rows],
        hash_offsets=np.concatenate(([0], ends)).astype(np.int64),
        hash_values=load.hash_values[np.repeat(load.hash_offsets[:-1][rows], counts) + within],
        hash_block_tokens=load.hash_block_tokens,
    )


def _merged(job: ClusterJob, route: Int64Array, engines: list[EngineResult]) -> ClusterResult:
    n = job.workload.requests
    columns = {
        name: np.full(n, UNDEFINED_PS, np.int64)
        for name in ("queued_ps", "scheduled_ps", "first_token_ps", "last_token_ps")
    }
    columns |= {name: np.zeros(n, np.int64) for name in ("generated_tokens", "cached_tokens", "preemptions")}
    # Nobody takes a request where the route is -1, unless it comes after the end.
    columns["status"] = np.full(n, int(Status.REJECTED), np.int64)
    if job.until_ps is not None:
        columns["status"][job.workload.arrival_ps >= job.until_ps] = Status.UNFINISHED
    for i, engine in enumerate(engines):
        rows = np.flatnonzero(route == i)
        for name, column in columns.items():
            column[rows] = getattr(engine.requests, name)
    return ClusterResult(Outcomes(**columns), route, route, tuple(engines), engines[0].engine, engines[0].fallback)
