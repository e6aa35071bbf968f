"""One forecast: engine states + traffic plan + costs + seed -> replications -> numbers. Also closed windows, replayed.

Pure: no clock, no files, no shared state; a job and its result can cross a process boundary. Laws: same job, same
bytes; coarse is a prefix of fine; every member is drawn before its engine runs, so candidates that differ in engines
meet the same requests.
"""

import math
from collections.abc import Sequence

import numpy as np

from twin.cost.frozen import PS_PER_S
from twin.engine.cluster import ClusterEngine, ClusterJob, ClusterResult, simulate_clusters
from twin.engine.types import Grid, Status
from twin.job import EngineSetup, SimulationJob, SimulationResult
from twin.replicate import Frontend, frontend_of, noise_of, state_of, workload_of
from twin.tally import Run, scenario_result, seconds
from twin.traffic.draw import Arrivals, draw
from twin.traffic.scenarios import Scenario


def run(job: SimulationJob) -> SimulationResult:
    """Simulate every scenario of the job, all replications and engines in one batch.

    Raises ValueError if an engine's configuration, cost or state cannot work, or the routing is unknown.
    """
    drawn = [
        draw(
            job.traffic,
            job.streams,
            replications=len(numbers),
            span_s=job.arrivals_span_s,
            scenario=scenario,
            first_replication=numbers.start,
        )
        for scenario, numbers in _planned(job)
    ]
    fronts = [frontend_of(arrivals, job.overheads, job.streams) for arrivals in drawn]
    asked = _cluster_jobs(job, drawn, fronts)
    results = simulate_clusters(asked)
    pairs = zip(asked, results, strict=True)
    scenarios = []
    for scenario, arrivals, front in zip(job.scenarios, drawn, fronts, strict=True):
        runs = [_run(arrivals, front, at, *next(pairs)) for at in range(arrivals.replications)]
        scenarios.append(scenario_result(scenario.name, job, runs))
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


def _planned(job: SimulationJob) -> list[tuple[Scenario, range]]:
    """The scenarios, and which replications of each this job runs."""
    return [(scenario, job.replication_numbers(at)) for at, scenario in enumerate(job.scenarios)]


def _cluster_jobs(job: SimulationJob, drawn: Sequence[Arrivals], fronts: Sequence[Frontend]) -> list[ClusterJob]:
    """Scenario by scenario, replication by replication."""
    grid = Grid(step_ps=round(job.grid_s * PS_PER_S), points=int(job.span_s / job.grid_s) + 1)
    configs = [setup.config for setup in job.engines]
    wanted = {(scenario.flush_cache, number) for scenario, numbers in _planned(job) for number in numbers}
    engines = {key: tuple(_engine(job, setup, *key) for setup in job.engines) for key in wanted}
    jobs = []
    for (scenario, numbers), arrivals, front in zip(_planned(job), drawn, fronts, strict=True):
        for at, number in enumerate(numbers):
            which = slice(int(arrivals.offsets[at]), int(arrivals.offsets[at + 1]))
            jobs.append(
                ClusterJob(
                    engines=engines[scenario.flush_cache, number],
                    workload=workload_of(arrivals, front.engine_arrival_ps, which, *configs),
                    routing=job.routing,
                    link=job.link,
                    seed=job.streams.key("transfers", number),
                    grid=grid,
                    until_ps=round(job.span_s * PS_PER_S),
                )
            )
    return jobs


def _engine(job: SimulationJob, setup: EngineSetup, flush: bool, number: int) -> ClusterEngine:
    """One engine of one replication: its noise, and its state with drawn lengths."""
    return ClusterEngine(
        config=setup.config,
        cost=setup.cost,
        state=state_of(setup, job.traffic.lengths, job.streams, number, flush),
        noise=noise_of(setup.noise, job.streams, number, setup.name),
        from_ps=round(setup.available_from_s * PS_PER_S),
        drain_ps=_time_ps(setup.available_until_s),
        gone_ps=_time_ps(setup.gone_at_s),
        device=setup.device,
        sharing_ratio=setup.sharing_ratio,
        weight=setup.weight,
    )


def _time_ps(time_s: float) -> int | None:
    return round(time_s * PS_PER_S) if math.isfinite(time_s) else None


def _run(arrivals: Arrivals, front: Frontend, at: int, asked: ClusterJob, result: ClusterResult) -> Run:
    """Outcomes of one replication at the client, in order of arrival."""
    which = slice(int(arrivals.offsets[at]), int(arrivals.offsets[at + 1]))
    to_client_s = front.to_client_s[which]
    done = result.requests
    carried = [each.carried for each in result.engines]
    before = [r.generated_tokens for each in asked.engines for r in (*each.state.running, *each.state.waiting)]
    return Run(
        arrived_s=arrivals.arrived_s[which],
        first_s=seconds(done.first_token_ps) + to_client_s,
        last_s=seconds(done.last_token_ps) + to_client_s,
        osl_tokens=done.generated_tokens,
        traffic_class=arrivals.traffic_class[which],
        preemptions=done.preemptions,
        refused=done.status == Status.REJECTED,
        engine=result.engine_index,
        carried_last_s=np.concatenate([seconds(each.last_token_ps) for each in carried]),
        carried_tokens=np.concatenate([each.generated_tokens for each in carried]) - np.array(before, np.int64),
        results=result.engines,
    )
