"""Windows and bases made for tests of evidence: one service of known cost, seen twice."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from pipelines.evidence.evidence_cases import chain_of_case
from pipelines.evidence.evidence_windows import Asked
from pipelines.samples import EXAMPLES
from schemas.evidence import Evidence
from tests.made_known import engine, recorded, served, traffic
from twin.cost.frozen import FrozenStepCost
from twin.evidence.grade import FIELDS, Basis
from twin.evidence.twin_runs import FittedCosts
from twin.evidence.window import Window
from twin.job import FrontendOverheads
from twin.known.requests import KnownRequests, known_requests

WHOLE = Basis(
    levels={"request": "agrees", "engine": "agrees", "kernel": "agrees"},
    simulated="fitted",
    simulation_agrees=True,
    repeats=2,
    told=frozenset(FIELDS),
)
"""Nothing is missing."""


def window(requests: KnownRequests, cost: FrozenStepCost | None = None, name: str = "made", **fields: Any) -> Window:
    """The window that an engine of this cost and configuration leaves of these requests; it tells no steps."""
    by = engine(**fields) if cost is None else engine(cost, **fields)
    records = recorded(requests, served(requests, by))
    seen = known_requests(records, requests.t0_us)
    told = {name: getattr(requests.arrivals, name) for name in ("hash_offsets", "hash_values", "hash_block_tokens")}
    seen = replace(seen, arrivals=replace(seen.arrivals, **told))
    return Window(
        source=name,
        deployment="d",
        from_s=0.0,
        to_s=float(np.nanmax(seen.last_s)) + 1e-6,
        requests=seen,
        members=np.ones(len(seen), np.bool_),
        steps={},
        finished=(),
        configs=(by.config,),
        overheads=FrontendOverheads(to_client_s=(0.002,)),
    )


@cache
def shipped_case(name: str) -> Evidence:
    """The chain of a worked case that ships, made once per run."""
    path = EXAMPLES / "evidence" / f"{name}.toml"
    return chain_of_case(path, Asked(base=path, candidate=path))


def half_loaded(seed: int = 3, count: int = 300) -> KnownRequests:
    return traffic(count, rate_per_s=4.0, seed=seed)


def costs(cost: FrozenStepCost) -> FittedCosts:
    return FittedCosts(lambda _: cost, None, "made", {})
