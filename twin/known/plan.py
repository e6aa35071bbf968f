"""Known requests as a forecast job, so that what is made for forecasts (load sweeps) serves them too.

Law: the plan resamples these requests alone, at their own mean rate.
"""

from collections.abc import Sequence

import numpy as np

from twin.cost.frozen import FrozenStepCost
from twin.engine.cluster_types import KvLink
from twin.job import EngineSetup, FrontendOverheads, SimulationJob
from twin.known.requests import KnownRequests
from twin.known.run import KnownEngine
from twin.metrics import BoolArray, IntArray
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan
from twin.traffic.sources import LEAST_BLOCK_ARRIVALS, Shape, operational_time

ROOT_SEED = 20_260_101


def plan_of(requests: KnownRequests, shape: Shape | None = None) -> TrafficPlan:
    """Traffic like these requests. Raises ValueError if all of them arrived at once."""
    shape = shape or Shape()
    n = len(requests)
    arrived_s = requests.arrived_s
    span_s = float(arrived_s[-1] - arrived_s[0]) * n / max(n - 1, 1)
    if span_s <= 0.0:
        raise ValueError("all requests arrived at once, so there is no rate to sweep")
    arrivals = requests.arrivals
    zeros = np.zeros(n, np.int64)
    every: BoolArray = np.ones(n, np.bool_)
    return TrafficPlan(
        sources=Sources(
            at=operational_time(arrived_s - arrived_s[-1], -span_s, shape.bandwidth_s),
            extent=float(n),
            isl_tokens=arrivals.isl_tokens,
            osl_tokens=arrivals.osl_tokens,
            generated_tokens=zeros,
            priority=arrivals.priority,
            traffic_class=zeros,
            hash_offsets=arrivals.hash_offsets,
            hash_values=arrivals.hash_values,
            hash_first=_first_seen(arrivals.hash_offsets, arrivals.hash_values),
        ),
        block=min(max(shape.block_s * n / span_s, LEAST_BLOCK_ARRIVALS), float(n)),
        rate=RateForecast.steady(n / span_s),
        lengths=OutputLengths.fit(arrivals.osl_tokens, every),
        hash_block_tokens=arrivals.hash_block_tokens,
    )


def job_of(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    *,
    overheads: FrontendOverheads | None = None,
    routing: str = "least_outstanding",
    link: KvLink | None = None,
    replications: int = 4,
) -> SimulationJob:
    """A job on empty engines. Raises ValueError as `plan_of`, or if a cost has no coefficients."""
    setups = []
    for engine in engines:
        if not isinstance(engine.cost, FrozenStepCost):
            raise ValueError(f"engine {engine.config.engine!r} needs step costs with coefficients")
        setups.append(EngineSetup(engine.config.engine, engine.config, engine.cost))
    return SimulationJob(
        deployment=engines[0].config.deployment,
        as_of_us=requests.t0_us,
        tick=0,
        phase="fine",
        engines=tuple(setups),
        traffic=plan_of(requests),
        root_seed=ROOT_SEED,
        routing=routing,
        link=link,
        overheads=overheads or FrontendOverheads(),
        coarse_replications=replications,
        fine_replications=replications,
    )


def _first_seen(offsets: IntArray, values: IntArray) -> IntArray:
    """For each hash, the request that had it first."""
    if not values.size:
        return np.zeros(0, np.int64)
    request = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    found: IntArray = request[first][inverse]
    return found
