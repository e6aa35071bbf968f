"""Known requests through engines: real arrivals, static costs, from empty, until all is done. Compares nothing.

Law: the same engines, requests and routing give the same result, whichever simulator ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, StepCost
from twin.engine.run import simulate_many
from twin.engine.types import EngineChoice, EngineName, EngineResult, Grid, Job, Noise, Outcomes
from twin.job import FrontendOverheads
from twin.known.requests import KnownRequests
from twin.metrics import FloatArray, IntArray
from twin.replicate import workload_of
from twin.tally import seconds

Routing = Literal["recorded", "round_robin"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


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

    `engine` is the place of the engine that served each request. `to_client_s` lies between a token in the engine and
    the same token at the client. `simulator` says what ran, `fallback` why it was not the kernel.
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
    grid: Grid | None = None,
    simulator: EngineChoice = "auto",
) -> KnownRun:
    """Serve every request, each as if it had arrived at its recorded time (`arrived_s`: at other times, rising).

    The means of `overheads` are added. Raises ValueError without engines, for a recorded engine that is none of them,
    or if an engine, a cost or a request cannot work; nothing has run then.
    """
    if not engines:
        raise ValueError("run_known needs at least one engine")
    into_s, out_s = mean_overheads_s(overheads or FrontendOverheads())
    at_ps = np.rint(((requests.arrived_s if arrived_s is None else arrived_s) + into_s) * PS_PER_S).astype(np.int64)
    served_by = route(requests, engines, routing)
    places = [np.flatnonzero(served_by == index) for index in range(len(engines))]
    jobs = [
        Job(
            engine.config,
            engine.cost,
            workload_of(requests.arrivals, at_ps, place, engine.config),
            noise=engine.noise,
            grid=grid,
        )
        for engine, place in zip(engines, places, strict=True)
    ]
    results = simulate_many(jobs, engine=simulator)
    return _gathered(engines, served_by, places, results, out_s)


def route(requests: KnownRequests, engines: Sequence[KnownEngine], routing: Routing) -> IntArray:
    """Place of the engine of each request, int64[n]. Raises ValueError for a recorded engine that is none of these."""
    if len(engines) == 1:
        return np.zeros(len(requests), np.int64)
    if routing == "round_robin":
        return np.arange(len(requests), dtype=np.int64) % len(engines)
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


def _gathered(
    engines: Sequence[KnownEngine],
    served_by: IntArray,
    places: Sequence[IntArray],
    results: Sequence[EngineResult],
    out_s: float,
) -> KnownRun:
    column = {field.name: np.zeros(served_by.size, np.int64) for field in fields(Outcomes)}
    for place, result in zip(places, results, strict=True):
        for name, values in column.items():
            values[place] = getattr(result.requests, name)
    slowest = next((result for result in results if result.engine != "kernel"), results[0])
    return KnownRun(
        engines=tuple(engines),
        engine=served_by,
        queued_s=seconds(column["queued_ps"]),
        scheduled_s=seconds(column["scheduled_ps"]),
        first_s=seconds(column["first_token_ps"]),
        last_s=seconds(column["last_token_ps"]),
        generated_tokens=column["generated_tokens"],
        cached_tokens=column["cached_tokens"],
        preemptions=column["preemptions"],
        status=column["status"],
        to_client_s=out_s,
        results=tuple(results),
        simulator=slowest.engine,
        fallback=slowest.fallback,
    )
