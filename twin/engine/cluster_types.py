"""What a cluster simulation takes and gives. Simulates nothing.

Law: what these constructors accept can be simulated; what they refuse names the field.
"""

from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import StepCost
from twin.engine.routing import Router, make_router
from twin.engine.types import (
    LATEST_PS,
    EngineName,
    EngineResult,
    EngineState,
    Grid,
    Int64Array,
    Noise,
    Outcomes,
    Workload,
)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterEngine:
    """One engine of a cluster. It takes requests from `from_ps` on and until `drain_ps` (None: to the end).

    At `gone_ps` it disappears: what it has not finished starts anew elsewhere. Engines with the same `device` (not
    empty) share it: with k of them in a step at once, each takes 1 + `sharing_ratio` * (k - 1) times as long; 1 where
    steps are bound by the shared bandwidth, 0 where they do not touch each other. `config.role` makes it a prefill or
    a decode engine. `weight` is for weighted routing.
    """

    config: EngineConfig
    cost: StepCost
    state: EngineState = field(default_factory=EngineState)
    noise: Noise | None = None
    from_ps: int = 0
    drain_ps: int | None = None
    gone_ps: int | None = None
    device: str = ""
    sharing_ratio: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        name = f"engine {self.config.engine!r}"
        if not 0 <= self.from_ps < LATEST_PS:
            raise ValueError(f"{name}: from_ps must be >= 0, got {self.from_ps}")
        for what, at in (("drain_ps", self.drain_ps), ("gone_ps", self.gone_ps)):
            if at is not None and not self.from_ps <= at <= LATEST_PS:
                raise ValueError(f"{name}: {what} must not be before from_ps {self.from_ps}, got {at}")
        if not 0.0 <= self.sharing_ratio <= 1.0:
            raise ValueError(f"{name}: sharing_ratio must be in 0 .. 1, got {self.sharing_ratio}")
        if not (isfinite(self.weight) and self.weight >= 0.0):
            raise ValueError(f"{name}: weight must be a finite number >= 0, got {self.weight}")
        if self.from_ps > 0 and (self.state.running or self.state.waiting):
            raise ValueError(f"{name} appears at {self.from_ps} ps and cannot carry requests into the window")

    @property
    def window(self) -> tuple[int, int]:
        """From when until when it takes requests."""
        ends = [at for at in (self.drain_ps, self.gone_ps) if at is not None]
        return self.from_ps, min(ends, default=LATEST_PS)


@dataclass(frozen=True, slots=True)
class KvLink:
    """KV transfer from a prefill to a decode engine: `fixed_ps` + `token_ps` per prompt token on average.

    Single transfers vary by a lognormal factor of mean 1 and coefficient of variation `cv`. `overlapped`: the transfer
    begins with the prefill, layer by layer, and only what lasts longer than that is waited for.
    """

    token_ps: int
    fixed_ps: int = 0
    cv: float = 0.0
    overlapped: bool = False

    def __post_init__(self) -> None:
        if self.token_ps < 0 or self.fixed_ps < 0:
            raise ValueError(f"link.token_ps and link.fixed_ps must be >= 0, got {self.token_ps} and {self.fixed_ps}")
        if not 0.0 <= self.cv < 10.0:
            raise ValueError(f"link.cv must be in 0 .. 10, got {self.cv}")

    def transfers_ps(self, isl_tokens: Int64Array, seed: int) -> Int64Array:
        """Of each request, in whole picoseconds."""
        mean = self.fixed_ps + self.token_ps * isl_tokens
        if self.cv == 0.0:
            return mean
        sigma = np.sqrt(np.log1p(self.cv * self.cv))
        rng = np.random.Generator(np.random.Philox(key=seed))
        factors = np.exp(rng.standard_normal(len(mean)) * sigma - sigma * sigma / 2)
        drawn: Int64Array = np.rint(mean * factors).astype(np.int64)
        return drawn


@dataclass(frozen=True, slots=True, eq=False)
class ClusterJob:
    """Engines behind one router. `routing` is a policy's name or an object that chooses (used up by the run).

    With prefill and decode engines the policy routes within each of both pools, and `link` joins them; `seed` draws
    the transfer times.
    """

    engines: tuple[ClusterEngine, ...]
    workload: Workload
    routing: str | Router = "least_outstanding"
    link: KvLink | None = None
    seed: int = 0
    grid: Grid | None = None
    until_ps: int | None = None

    def __post_init__(self) -> None:
        if not self.engines:
            raise ValueError("cluster.engines must not be empty")
        if isinstance(self.routing, str):
            make_router(self.routing, [engine.weight for engine in self.engines])
        if self.until_ps is not None and not 0 < self.until_ps <= LATEST_PS:
            raise ValueError(f"cluster.until_ps must be in 1 .. {LATEST_PS}, got {self.until_ps}")
        roles = {engine.config.role for engine in self.engines}
        if "both" in roles and len(roles) > 1:
            raise ValueError("cluster.engines must all have role 'both', or be prefill and decode engines")
        if roles != {"both"} and roles != {"prefill", "decode"}:
            raise ValueError(f"cluster.engines need both prefill and decode engines, got only {sorted(roles)}")
        if "prefill" in roles and self.link is None:
            raise ValueError("cluster.link must be given with prefill and decode engines")
        if self.routing == "weighted" and not any(engine.weight > 0 for engine in self.engines):
            raise ValueError("cluster.engines: at least one weight must be > 0 for weighted routing")

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on different engines."""
        return self.engines[0].config.role != "both"


@dataclass(frozen=True, slots=True, eq=False)
class ClusterResult:
    """What a cluster did. `requests` follows the workload, `engine_index` says which engine finished each (-1: none).

    `engines` has each engine's own result, its requests in order of arrival. `prefill_engine_index` is
    `engine_index` unless prefill and decode are apart.
    """

    requests: Outcomes
    engine_index: Int64Array
    prefill_engine_index: Int64Array
    engines: tuple[EngineResult, ...]
    engine: EngineName
    fallback: str = ""
