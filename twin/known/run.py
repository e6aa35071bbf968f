"""Known requests through engines: real arrivals, static costs, from empty, until all is done. Compares nothing.

Law: the same engines, requests and routing give the same result, whichever simulator ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, StepCost
from twin.engine.cluster import simulate_cluster
from twin.engine.cluster_types import ClusterEngine, ClusterJob, KvLink
from twin.engine.run import simulate_many
from twin.engine.types import EngineChoice, EngineName, EngineResult, Grid, Job, Noise, Outcomes
from twin.job import FrontendOverheads
from twin.known.requests import KnownRequests
from twin.metrics import FloatArray, IntArray
from twin.replicate import most_tokens, workload_of
from twin.tally import seconds

Routing = Literal["recorded", "least_outstanding", "round_robin", "prefix_aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
"""`recorded`: every request goes where it went; the others are policies of `twin.engine.routing`."""


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """One engine: how it schedules, what steps cost, and how its speed varies (None: not at all)."""

    config: EngineConfig
    cost: StepCost
    noise: Noise | None = None

    @property
    def devices(self) -> int:
        """Devices that this engine keeps busy."""
        return self.config.tensor_parallel * self.config.pipeline_parallel


@dataclass(frozen=True, slots=True, eq=False)
class KnownRun:
    """The twin's word on n requests in order of arrival; `_s` arrays as in `KnownRequests`, NaN where it never came.

    `engine` is the place of the engine that finished each request, -1 where none took it. `to_client_s` lies between a
    token in the engine and the same token at the client. `simulator` says what ran, `fallback` why not the kernel.
    """

    engines: tuple[KnownEngine, ...]
    engine: IntArray
    queued_s: FloatArray
    scheduled_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    generated_tokens: IntArray
    cached_tokens: IntArray
    preemptions: IntArray
    status: IntArray
    to_client_s: float
    results: tuple[EngineResult, ...]
    simulator: EngineName
    fallback: str

    @property
    def end_s(self) -> float:
        """When the last engine had nothing left to do."""
        return max(result.end_ps for result in self.results) / PS_PER_S

    @property
    def saturated_ratio(self) -> float:
        """Share of step time with requests waiting, of the most saturated engine."""
        return max(result.saturated_ps / max(result.busy_ps, 1) for result in self.results)


def run_known(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    *,
    routing: Routing = "recorded",
    overheads: FrontendOverheads | None = None,
    arrived_s: FloatArray | None = None,
    link: KvLink | None = None,
    grid: Grid | None = None,
    simulator: EngineChoice = "auto",
) -> KnownRun:
    """Serve every request, each as if it had arrived at its recorded time (`arrived_s`: at other times, rising).

    The means of `overheads` are added. Prefill and decode engines need a `link`. Raises ValueError without engines,
    for a recorded engine that is none of them, or if an engine, a cost or a request cannot work; nothing has run then.
    """
    if not engines:
        raise ValueError("run_known needs at least one engine")
    into_s, out_s = mean_overheads_s(overheads or FrontendOverheads())
    at_ps = np.rint(((requests.arrived_s if arrived_s is None else arrived_s) + into_s) * PS_PER_S).astype(np.int64)
    if routing == "recorded" or len(engines) == 1:
        return _apart(engines, requests, at_ps, out_s, grid, simulator)
    tightest = min((engine.config for engine in engines), key=most_tokens)
    job = ClusterJob(
        engines=tuple(ClusterEngine(engine.config, engine.cost, noise=engine.noise) for engine in engines),
        workload=workload_of(requests.arrivals, at_ps, slice(None), tightest),
        routing=routing,
        link=link,
        grid=grid,
    )
    result = simulate_cluster(job, engine=simulator)
    return _known_run(
        engines, result.engine_index, result.requests, result.engines, out_s, (result.engine, result.fallback)
    )


def _apart(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    at_ps: IntArray,
    out_s: float,
    grid: Grid | None,
    simulator: EngineChoice,
) -> KnownRun:
    """Every engine serves the requests that it served, whatever the others do."""
    served_by = route(requests, engines)
    places = [np.flatnonzero(served_by == index) for index in range(len(engines))]
    results = simulate_many(
        [
            Job(e.config, e.cost, workload_of(requests.arrivals, at_ps, place, e.config), noise=e.noise, grid=grid)
            for e, place in zip(engines, places, strict=True)
        ],
        engine=simulator,
    )
    columns = {field.name: np.zeros(served_by.size, np.int64) for field in fields(Outcomes)}
    for place, result in zip(places, results, strict=True):
        for name, values in columns.items():
            values[place] = getattr(result.requests, name)
    slowest = next((result for result in results if result.engine != "kernel"), results[0])
    return _known_run(engines, served_by, Outcomes(**columns), results, out_s, (slowest.engine, slowest.fallback))


def route(requests: KnownRequests, engines: Sequence[KnownEngine]) -> IntArray:
    """Place of the engine that served each request, int64[n]; one engine served them all.

    Raises ValueError for a recorded engine that is none of these, or for engines that do one half of the work.
    """
    if len(engines) == 1:
        return np.zeros(len(requests), np.int64)
    if any(engine.config.role != "both" for engine in engines):
        raise ValueError("prefill and decode engines cannot be routed as recorded; route by another policy")
    place = {engine.config.engine: index for index, engine in enumerate(engines)}
    unknown = sorted(set(requests.engine) - set(place))
    if unknown:
        raise ValueError(
            f"request {requests.ids[requests.engine.index(unknown[0])]!r} was served by engine {unknown[0]!r}, which is"
            f" none of {', '.join(place)}; route by another policy"
        )
    return np.array([place[name] for name in requests.engine], np.int64)


def mean_overheads_s(overheads: FrontendOverheads) -> tuple[float, float]:
    """Mean seconds into the engine and back to the client."""
    into, out = overheads.to_engine_s, overheads.to_client_s
    return (sum(into) / len(into) if into else 0.0), (sum(out) / len(out) if out else 0.0)


def _known_run(
    engines: Sequence[KnownEngine],
    served_by: IntArray,
    outcomes: Outcomes,
    results: Sequence[EngineResult],
    out_s: float,
    ran: tuple[EngineName, str],
) -> KnownRun:
    return KnownRun(
        engines=tuple(engines),
        engine=served_by,
        queued_s=seconds(outcomes.queued_ps),
        scheduled_s=seconds(outcomes.scheduled_ps),
        first_s=seconds(outcomes.first_token_ps),
        last_s=seconds(outcomes.last_token_ps),
        generated_tokens=outcomes.generated_tokens,
        cached_tokens=outcomes.cached_tokens,
        preemptions=outcomes.preemptions,
        status=outcomes.status,
        to_client_s=out_s,
        results=tuple(results),
        simulator=ran[0],
        fallback=ran[1],
    )
