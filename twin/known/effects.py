"""Bottlenecks by effect: known requests rerun with one thing ten per cent cheaper, largest gain first.

Ranks by what changes for the requests, not by shares: a class that hides behind another gains nothing when it shrinks.
Where noise of step costs is known, every change meets the same draws of it, and the draws give intervals.
Law: a change that does nothing has an effect of exactly zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from schemas.steps import Step
from twin.cost.block import shape_of
from twin.cost.effects import all_changes, changed
from twin.cost.freeze import OperatingRange, freeze
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import StepNoise
from twin.cost.prior import step_seconds
from twin.cost.roofline import Roofline
from twin.cost.shape import Role
from twin.cost.tables import MeasuredCosts
from twin.engine.cluster_types import KvLink
from twin.graph.operators import OperatorGraph
from twin.job import EngineSetup, FrontendOverheads
from twin.known.comparison import twin_latencies
from twin.known.full_load import full_load
from twin.known.requests import KnownRequests
from twin.known.run import KnownEngine, Routing, run_known
from twin.metrics import FloatArray, quantile
from twin.replicate import noise_of
from twin.traffic.streams import Streams
from twin.whatif import class_changes, mean_interval, resource_changes, role_changes

Kind = Literal["role", "class", "operator", "resource"]
CostChange = Callable[[KnownEngine], KnownEngine]
DRAWS = 8
"""Draws of noise behind an interval."""


@dataclass(frozen=True, slots=True)
class RelativeChange:
    """Mean change, and its 90 % interval (None without noise to draw from); -0.1 is ten per cent less."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class KnownEffect:
    """What one thing ten per cent cheaper (or a limit ten per cent wider) changes; None where it is undefined."""

    kind: Kind
    name: str
    ttft_p95: RelativeChange | None
    tpot_p95: RelativeChange | None
    ceiling: RelativeChange | None

    @property
    def weight(self) -> float:
        """How much it helps: the largest relative gain of the three."""
        gains = (
            -change.mean * sign
            for change, sign in ((self.ttft_p95, 1.0), (self.tpot_p95, 1.0), (self.ceiling, -1.0))
            if change is not None
        )
        return max(gains, default=0.0)


def cost_changes(shares: Mapping[str, Mapping[Role, float]] | None = None) -> dict[tuple[Kind, str], CostChange]:
    """Roles and resources of any learned cost, and span classes where their shares of step time are known."""
    found: dict[tuple[Kind, str], CostChange] = {}
    kinds: tuple[tuple[Kind, Mapping[str, Callable[[EngineSetup], EngineSetup]]], ...] = (
        ("role", role_changes()),
        ("class", class_changes(shares or {})),
        ("resource", resource_changes()),
    )
    for kind, changes in kinds:
        found |= {(kind, name): _on_setup(change) for name, change in changes.items()}
    return found


def hardware_changes(
    graph: OperatorGraph, costs: Roofline | MeasuredCosts, work: OperatingRange
) -> dict[tuple[Kind, str], CostChange]:
    """Every class, operator and resource of a model on hardware, whose operators cost this."""
    return {
        (change.what, change.name): _with_cost(freeze(step_seconds(graph, changed(costs, change)), work))
        for change in all_changes(graph)
    }


def class_shares(steps: Sequence[Step]) -> dict[str, dict[Role, float]]:
    """Share of each span class in the step time of each role, from steps that carry class times (none: empty)."""
    total_us: dict[Role, int] = {}
    class_us: dict[str, dict[Role, int]] = {}
    for step in steps:
        if step.class_us:
            role = shape_of(step).role
            total_us[role] = total_us.get(role, 0) + step.duration_us
            for name, value in step.class_us.items():
                by_role = class_us.setdefault(name, {})
                by_role[role] = by_role.get(role, 0) + value
    return {
        name: {role: min(value / total_us[role], 1.0) for role, value in by_role.items() if total_us[role]}
        for name, by_role in sorted(class_us.items())
    }


def rank_effects(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    changes: Mapping[tuple[Kind, str], CostChange],
    *,
    noise: StepNoise | None = None,
    routing: Routing = "recorded",
    overheads: FrontendOverheads | None = None,
    link: KvLink | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> list[KnownEffect]:
    """Every change on the same requests, the most helpful first. `progress` is told a share of 1."""
    draws = [_noised(engines, noise, turn) for turn in range(DRAWS if noise is not None else 1)]

    def measure(change: CostChange) -> FloatArray:
        return np.array([_measures([change(e) for e in drawn], requests, routing, overheads, link) for drawn in draws])

    before = measure(lambda engine: engine)
    found = []
    for number, ((kind, name), change) in enumerate(changes.items()):
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = measure(change) / before - 1.0
        found.append(KnownEffect(kind, name, *(_relative(ratio[:, column]) for column in range(3))))
        progress((number + 1) / len(changes))
    return sorted(found, key=lambda effect: -effect.weight)


def _noised(engines: Sequence[KnownEngine], noise: StepNoise | None, turn: int) -> list[KnownEngine]:
    if noise is None:
        return list(engines)
    streams = Streams(0, "effects", 0)
    return [replace(engine, noise=noise_of(noise, streams, turn, engine.config.engine)) for engine in engines]


def _measures(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    routing: Routing,
    overheads: FrontendOverheads | None,
    link: KvLink | None,
) -> tuple[float, float, float]:
    """P95 of TTFT and TPOT from the engine's queue on, and the ceiling."""
    run = run_known(engines, requests, routing=routing, overheads=overheads, link=link)
    found = twin_latencies(requests, run, "engine")
    ceiling = full_load(engines, requests, link=link).requests_per_s
    return quantile(found.ttft_s, 0.95), quantile(found.tpot_s, 0.95), ceiling


def _relative(ratios: FloatArray) -> RelativeChange | None:
    mean, low, high = mean_interval(ratios)
    if math.isnan(mean):
        return None
    return RelativeChange(mean, None if math.isnan(low) else low, None if math.isnan(high) else high)


def _on_setup(change: Callable[[EngineSetup], EngineSetup]) -> CostChange:
    """A change of a forecast's engine as one of a known engine. Raises ValueError if costs have no coefficients."""

    def apply(engine: KnownEngine) -> KnownEngine:
        if not isinstance(engine.cost, FrozenStepCost):
            raise ValueError("effects need step costs with coefficients")
        after = change(EngineSetup(engine.config.engine, engine.config, engine.cost))
        return replace(engine, config=after.config, cost=after.cost)

    return apply


def _with_cost(cost: FrozenStepCost) -> CostChange:
    return lambda engine: replace(engine, cost=cost)
