"""Inputs simulated once and compared with what was recorded: the work of `twincast simulate`. Prints nothing.

Law: a simulation run again, with a grid or without, gives the same times.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.errors import ConfigError
from pipelines.simulation_arguments import Inputs
from twin.cost.frozen import PS_PER_S
from twin.engine.cluster_types import KvLink
from twin.engine.types import EngineChoice, Grid
from twin.known.comparison import Comparison, compare
from twin.known.effects import KnownEffect, rank_effects
from twin.known.requests import require_fit
from twin.known.run import ROUTINGS, KnownEngine, KnownRun, Routing, run_known

CURVE_POINTS = 2000
LEAST_GRID_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """What ran, what came of it beside the recording, and the seconds it took to simulate."""

    inputs: Inputs
    engines: tuple[KnownEngine, ...]
    routing: Routing
    link: KvLink | None
    run: KnownRun
    comparison: Comparison
    wall_s: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about the inputs, each once."""
        costs = (note for config in self.inputs.engines for note in self.inputs.costs.notes(config))
        return tuple(dict.fromkeys((*self.inputs.source.notes, *costs)))

    def with_curves(self) -> KnownRun:
        """The same run with samples of queues and blocks over its whole time."""
        step_s = max(self.run.end_s / CURVE_POINTS, LEAST_GRID_S)
        grid = Grid(round(step_s * PS_PER_S), int(self.run.end_s / step_s) + 2)
        source = self.inputs.source
        return run_known(
            self.engines, source.requests, routing=self.routing, overheads=source.overheads, link=self.link, grid=grid
        )

    def effects(self, progress: Callable[[float], None] = lambda _: None) -> list[KnownEffect]:
        """Bottlenecks by effect, the most helpful first; costs in their affine form, the speed constant."""
        source, costs = self.inputs.source, self.inputs.costs
        return rank_effects(
            [KnownEngine(config, costs.cost_of(config)) for config in self.inputs.engines],
            source.requests,
            costs.changes(self.inputs.engines[0]),
            noise=costs.noise,
            routing=self.routing,
            overheads=source.overheads,
            link=self.link,
            progress=progress,
        )

    def account(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.inputs.source.name,
            "deployment": self.inputs.source.deployment,
            **self.comparison.plain(),
            "costs": self.inputs.costs.about,
            "routing": self.routing,
            "engine": self.run.simulator,
            "fallback": self.run.fallback,
            "wall_s": self.wall_s,
            "notes": list(self.notes),
        }


def simulate_inputs(
    inputs: Inputs,
    *,
    routing: Routing,
    speed_as_recorded: bool = False,
    exact: bool = False,
    simulator: EngineChoice = "auto",
) -> Simulation:
    """Run and compare; `exact` looks costs up step by step instead of in their affine form.

    Raises ConfigError, before anything runs, if something cannot work.
    """
    source, costs = inputs.source, inputs.costs
    if speed_as_recorded and not inputs.follows_speed:
        raise ConfigError(
            "--speed recorded follows the source's own steps; leave --costs, --costs-from, --hardware out"
        )
    try:
        require_fit(source.requests, inputs.engines)
        link = inputs.link
        cost_of = costs.exact_of if exact else costs.cost_of
        engines = tuple(
            KnownEngine(config, cost_of(config), costs.speed_of(config) if speed_as_recorded else None)
            for config in inputs.engines
        )
        started = time.perf_counter()
        run = run_known(
            engines, source.requests, routing=routing, overheads=source.overheads, link=link, simulator=simulator
        )
        wall_s = time.perf_counter() - started
    except ValueError as error:
        raise ConfigError(f"{source.name}: {error}") from error
    return Simulation(inputs, engines, routing, link, run, compare(source.requests, run, source.steps), wall_s)


def routing_of(asked: str | None, inputs: Inputs, setting: str) -> Routing:
    """As asked, else the deployment's setting; with one engine it is as recorded. Raises ConfigError for another."""
    if asked is None and len(inputs.engines) == 1:
        return "recorded"
    name = asked or setting
    found = next((known for known in ROUTINGS if known == name), None)
    if found is None:
        raise ConfigError(f"routing {name!r} cannot be simulated here; give --routing {' or '.join(ROUTINGS)}")
    return found
