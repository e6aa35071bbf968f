"""One forecast: engine states + traffic plan + costs + seed -> replications -> numbers. Also closed windows, replayed.

Pure: no clock, no files, no shared state; a job and its result can cross a process boundary. Laws: same job, same
bytes; coarse is a prefix of fine; every member is drawn before its engine runs, so candidates that differ in engines
meet the same requests.
"""

from collections.abc import Sequence

import numpy as np

from twin.cost.frozen import PS_PER_S
from twin.engine.run import simulate_many
from twin.engine.types import EngineResult, Grid, Job, Status
from twin.job import SimulationJob, SimulationResult
from twin.metrics import IntArray
from twin.replicate import Frontend, frontend_of, noise_of, state_of, workload_of
from twin.tally import Run, scenario_result, seconds
from twin.traffic.draw import Arrivals, draw


def run(job: SimulationJob) -> SimulationResult:
    """Simulate every scenario of the job, all replications and engines in one batch.

    Raises ValueError if an engine's configuration, cost or state cannot work.
    """
    drawn = [
        draw(
            job.traffic,
            job.streams,
            replications=job.replications,
            span_s=job.arrivals_span_s,
            scenario=scenario,
            first_replication=job.replication_numbers.start,
        )
        for scenario in job.scenarios
    ]
    fronts = [frontend_of(arrivals, job.overheads, job.streams) for arrivals in drawn]
    routed = [_routed(job, arrivals) for arrivals in drawn]
    engine_jobs = _engine_jobs(job, drawn, fronts, routed)
    results = simulate_many(engine_jobs)
    scenarios, at = [], 0
    for scenario, arrivals, front, engine in zip(job.scenarios, drawn, fronts, routed, strict=True):
        count = job.replications * len(job.engines)
        part = slice(at, at + count)
        runs = _runs(job, arrivals, front, engine, engine_jobs[part], results[part])
        scenarios.append(scenario_result(scenario.name, job, runs))
        at += count
    return SimulationResult(
        deployment=job.deployment,
        as_of_us=job.as_of_us,
        tick=job.tick,
        phase=job.phase,
        replications=job.replications,
        engine_names=tuple(setup.name for setup in job.engines),
        slos=job.slos,
        scenarios=tuple(scenarios),
        simulated_requests=sum(arrivals.arrived_s.size for arrivals in drawn),
        engine=results[0].engine,
        fallback=next((result.fallback for result in results if result.fallback), ""),
    )


def _routed(job: SimulationJob, arrivals: Arrivals) -> IntArray:
    """Engine of each request, int64[n]: round robin over the engines that take requests at its arrival."""
    count = arrivals.arrived_s.size
    if len(job.engines) == 1:
        return np.zeros(count, np.int64)
    edges = {edge for setup in job.engines for edge in (setup.available_from_s, setup.available_until_s)}
    bounds = sorted({0.0, *edges})
    place = np.searchsorted(np.array(bounds), arrivals.arrived_s, side="right") - 1
    turn = np.arange(count) - np.repeat(arrivals.offsets[:-1], np.diff(arrivals.offsets))
    engine = np.zeros(count, np.int64)
    for index, start_s in enumerate(bounds):
        open_now = [
            i for i, setup in enumerate(job.engines) if setup.available_from_s <= start_s < setup.available_until_s
        ]
        inside = place == index
        engine[inside] = np.array(open_now or [0], np.int64)[turn[inside] % max(len(open_now), 1)]
    return engine


def _engine_jobs(
    job: SimulationJob, drawn: Sequence[Arrivals], fronts: Sequence[Frontend], routed: Sequence[IntArray]
) -> list[Job]:
    """Scenario by scenario, replication by replication, engine by engine."""
    until_ps = round(job.span_s * PS_PER_S)
    grid = Grid(step_ps=round(job.grid_s * PS_PER_S), points=int(job.span_s / job.grid_s) + 1)
    noises = [[noise_of(e.noise, job.streams, r, e.name) for e in job.engines] for r in job.replication_numbers]
    states = {
        flush: [
            [state_of(e, job.traffic.lengths, job.streams, r, flush) for e in job.engines]
            for r in job.replication_numbers
        ]
        for flush in {scenario.flush_cache for scenario in job.scenarios}
    }
    jobs = []
    for scenario, arrivals, front, engine in zip(job.scenarios, drawn, fronts, routed, strict=True):
        for replication in range(job.replications):
            for index, setup in enumerate(job.engines):
                which = _which(arrivals, engine, replication, index, len(job.engines))
                jobs.append(
                    Job(
                        config=setup.config,
                        cost=setup.cost,
                        workload=workload_of(arrivals, front.engine_arrival_ps, which, setup.config),
                        state=states[scenario.flush_cache][replication][index],
                        noise=noises[replication][index],
                        grid=grid,
                        until_ps=until_ps,
                    )
                )
    return jobs


def _which(arrivals: Arrivals, engine: IntArray, replication: int, index: int, engines: int) -> slice | IntArray:
    """Requests of one replication that one engine serves."""
    low, high = int(arrivals.offsets[replication]), int(arrivals.offsets[replication + 1])
    return slice(low, high) if engines == 1 else low + np.flatnonzero(engine[low:high] == index)


def _runs(
    job: SimulationJob,
    arrivals: Arrivals,
    front: Frontend,
    engine: IntArray,
    asked: Sequence[Job],
    results: Sequence[EngineResult],
) -> list[Run]:
    engines = len(job.engines)
    parts = (slice(replication * engines, (replication + 1) * engines) for replication in range(job.replications))
    return [
        _run(arrivals, front, engine, replication, asked[part], tuple(results[part]))
        for replication, part in enumerate(parts)
    ]


def _run(
    arrivals: Arrivals,
    front: Frontend,
    engine: IntArray,
    replication: int,
    asked: Sequence[Job],
    results: tuple[EngineResult, ...],
) -> Run:
    """Outcomes of one replication at the client, in order of arrival."""
    low, high = int(arrivals.offsets[replication]), int(arrivals.offsets[replication + 1])
    count = high - low
    columns = np.empty((5, count), np.int64)
    for index, result in enumerate(results):
        which = _which(arrivals, engine, replication, index, len(results))
        place = slice(0, count) if isinstance(which, slice) else which - low
        done = result.requests
        columns[:, place] = (
            done.first_token_ps,
            done.last_token_ps,
            done.generated_tokens,
            done.preemptions,
            done.status,
        )
    to_client_s = front.to_client_s[low:high]
    carried = [result.carried for result in results]
    before = [[r.generated_tokens for r in (*e.state.running, *e.state.waiting)] for e in asked]
    return Run(
        arrived_s=arrivals.arrived_s[low:high],
        first_s=seconds(columns[0]) + to_client_s,
        last_s=seconds(columns[1]) + to_client_s,
        osl_tokens=columns[2],
        traffic_class=arrivals.traffic_class[low:high],
        preemptions=columns[3],
        refused=columns[4] == Status.REJECTED,
        engine=engine[low:high],
        carried_last_s=np.concatenate([seconds(each.last_token_ps) for each in carried]),
        carried_tokens=np.concatenate([each.generated_tokens for each in carried])
        - np.array([tokens for each in before for tokens in each], np.int64),
        results=results,
    )
