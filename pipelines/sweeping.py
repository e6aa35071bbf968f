"""Inputs under what-ifs: the work of `twincast sweep`. Prints and writes nothing.

Law: every point is built and checked before the first one runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.errors import ConfigError
from pipelines.simulation_arguments import Inputs
from schemas.slos import SloTarget
from twin.known.plan import job_of
from twin.known.points import Point, run_point
from twin.known.run import Routing
from twin.known.variants import Base, Variant, build
from twin.sweep import LoadCurve, sweep

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Variants of some inputs, ready to run; several engines are routed by `routing`."""

    inputs: Inputs
    variants: tuple[Variant, ...]
    routing: Routing

    def points(self, limits: Sequence[SloTarget], progress: Progress) -> list[Point]:
        """Every variant at both loads, judged by `limits`. Raises ConfigError for one whose engines cannot work."""
        found = []
        for number, variant in enumerate(self.variants):
            notes = dict.fromkeys(note for each in variant.engines for note in self.inputs.costs.notes(each.config))
            overheads = self.inputs.source.overheads
            try:
                found.append(run_point(variant, limits, routing=self.routing, overheads=overheads, notes=tuple(notes)))
            except ValueError as error:
                raise ConfigError(f"grid point {variant.name}: {error}") from error
            progress((number + 1) / len(self.variants))
        return found

    def curve(self, rates_per_s: Sequence[float] | None, span_s: float, replications: int) -> LoadCurve:
        """Load curve, knee and ceiling of the first variant. Raises ConfigError if there is no rate to sweep."""
        variant = self.variants[0]
        try:
            job = job_of(
                variant.engines,
                variant.requests,
                overheads=self.inputs.source.overheads,
                routing=self.routing,
                link=variant.link,
                replications=replications,
            )
            return sweep(job, rates_per_s, span_s=span_s)
        except ValueError as error:
            raise ConfigError(f"{self.inputs.source.name}: {error}; give another source or span") from error


def prepare_sweep(inputs: Inputs, asked: Sequence[Mapping[str, Any]], routing: Routing) -> Sweep:
    """Build every variant. Raises ConfigError naming point and field for one that cannot be."""
    base = Base(
        configs=inputs.engines,
        cost_of=inputs.costs.cost_of,
        requests=inputs.source.requests,
        kv_blocks_of=inputs.kv_blocks_of,
        link_of=inputs.link_of,
    )
    variants = []
    for settings in asked:
        try:
            variants.append(build(base, settings))
        except ValueError as error:
            where = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"grid point {where or 'as recorded'}: {error}") from error
    return Sweep(inputs, tuple(variants), routing)
