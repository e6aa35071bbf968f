"""A limit tightened on hardware that nobody has measured: which candidates fall out of it, and what that costs.

Rests on a prior alone, so it is a hypothesis and of grade D. Laws: a candidate that a looser limit refuses already is
not counted as falling out by the tighter one; nothing falls out of a limit that is not tighter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.evidence import Advice, ClassChange, Evidence, Experiment, Hypothesis, SimulatedEffect
from schemas.slos import SloTarget
from twin.cost.effects import Change, changed
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import MeasuredCosts
from twin.cost.taxonomy import SpanClass
from twin.evidence.experiments import ASSUMED_SIGMA
from twin.evidence.grade import LEAST_REPEATS, Basis, grade
from twin.evidence.resample import run_length_s
from twin.graph.operators import OperatorGraph
from twin.graph.timeline import step_s
from twin.known.points import FULL, Point
from twin.known.verdict import limit_text
from twin.settings import TWINCAST_VERSION

_NOTHING = 1e-9
MARGIN_RATIO = 0.1
"""Half width of the interval that a run at the edge of a limit needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCase:
    """Candidates judged by two limits of one metric with a full batch. `class_ms` splits each point's decode step.

    Raises ValueError without two candidates, or if the limits are not the same metric and quantile, the second tighter.
    """

    title: str
    deployment: str
    at_us: int
    points: tuple[Point, ...]
    class_ms: tuple[Mapping[str, float], ...]
    loose: SloTarget
    tight: SloTarget
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.points) < 2:
            raise ValueError("a limit needs at least two candidates; give the grid more values")
        same = (self.loose.metric, self.loose.quantile) == (self.tight.metric, self.tight.quantile)
        if not same or not self.tight.limit_s < self.loose.limit_s:
            raise ValueError(
                f"the second limit must be tighter, got {limit_text(self.loose)} and {limit_text(self.tight)}"
            )


@dataclass(frozen=True, slots=True)
class Fallen:
    """Points by what the limits do to them, in order of the case."""

    refused_already: tuple[Point, ...]
    falls_out: tuple[Point, ...]
    stays: tuple[Point, ...]


def fallen(case: LimitCase) -> Fallen:
    """Who falls out as the limit tightens."""
    values = {point.name: _value(point, case.loose) for point in case.points}
    parts: dict[str, list[Point]] = {"already": [], "out": [], "stays": []}
    for point in case.points:
        value = values[point.name]
        key = "stays" if value is None or value <= case.tight.limit_s else "out"
        if value is not None and value > case.loose.limit_s:
            key = "already"
        parts[key].append(point)
    return Fallen(tuple(parts["already"]), tuple(parts["out"]), tuple(parts["stays"]))


def chain_of_limits(case: LimitCase) -> Evidence:
    """The chain of a tightened limit."""
    found = fallen(case)
    basis = Basis(levels={}, simulated="prior")
    graded = grade(basis)
    classes = _growth(case, found)
    hypothesis = Hypothesis(
        code="limit",
        statement=_statement(case, found),
        span_classes=tuple(
            row.span_class for row in sorted(classes, key=lambda row: -(row.share_of_change_ratio or 0))[:1]
        ),
        parameter=", ".join(case.points[0].settings),
        refuted_by=_refuted_by(case, found),
        verdict="not measured",
        effects=tuple(_effect(case, found, point) for point in case.points),
    )
    return Evidence(
        deployment=case.deployment,
        at_us=case.at_us,
        title=case.title,
        base=f"{found.stays[-1].name} (last that stays)" if found.stays else limit_text(case.loose),
        candidate=f"{found.falls_out[0].name} (first that falls out)" if found.falls_out else limit_text(case.tight),
        grade=graded.grade,
        grade_reasons=graded.reasons,
        missing=graded.missing,
        refuted_by=hypothesis.refuted_by,
        advice=_advice(found),
        finding=hypothesis.statement,
        span_classes=hypothesis.span_classes,
        classes=classes,
        hypotheses=(hypothesis,),
        experiments=tuple(_run_of(case, point) for point in _edge(found, case)),
        not_shown=("measured latency: nothing was run on this hardware", "stability: a prior knows no noise"),
        assumptions=case.assumptions,
        twincast_version=TWINCAST_VERSION,
    )


def _value(point: Point, limit: SloTarget) -> float | None:
    judged = next((each for each in point.judged if each.limit == limit and each.load == FULL), None)
    if judged is None:
        raise ValueError(f"candidate {point.name!r} was not judged by {limit_text(limit)} with a full batch")
    return judged.value_s


def _statement(case: LimitCase, found: Fallen) -> str:
    names = {key: _names(points) for key, points in (("out", found.falls_out), ("stays", found.stays))}
    best = [
        max((p.tokens_per_min_per_chip for p in points), default=0.0)
        for points in ((*found.falls_out, *found.stays), found.stays)
    ]
    lost = f"; the best of them gives {(1 - best[1] / best[0]) * 100:.0f} % fewer tokens per chip" if best[0] else ""
    already = f"; {_names(found.refused_already)} broke the looser one already" if found.refused_already else ""
    return (
        f"with a full batch, {limit_text(case.loose)} tightened to {case.tight.limit_s * 1e3:g} ms drops"
        f" {names['out'] or 'nothing'}; stays: {names['stays'] or 'nothing'}{lost if found.stays else ''}{already}"
    )


def _refuted_by(case: LimitCase, found: Fallen) -> str:
    names = " and of ".join(point.name for point in _edge(found, case))
    return (
        f"a full-batch run of {names} on this hardware: if"
        f" {limit_text(case.tight)} does not part them, the prior is wrong"
    )


def _edge(found: Fallen, case: LimitCase) -> tuple[Point, ...]:
    """The last that stays and the first that falls out: where the prior is put to the test."""
    both = [points[place] for points, place in ((found.stays, -1), (found.falls_out, 0)) if points]
    return tuple(both) or case.points[:1]


def _run_of(case: LimitCase, point: Point) -> Experiment:
    """A full batch of one candidate, measured."""
    return Experiment(
        prefix_cache="as it is",
        hit_ratio="as it is",
        chunk="default",
        prefill="mixed with decode",
        instrumentation=("requests with first and last token", "engine steps", "kernel trace"),
        repeats=LEAST_REPEATS,
        why=f"{point.name} with a full batch: does it hold {limit_text(case.tight)}",
        run_s=run_length_s(ASSUMED_SIGMA, 30.0, MARGIN_RATIO),
        run_basis=f"for an interval of +-{MARGIN_RATIO * 100:.0f} %; a block of 30 s strays by"
        f" {ASSUMED_SIGMA * 100:.0f} % (assumed)",
    )


def _effect(case: LimitCase, found: Fallen, point: Point) -> SimulatedEffect:
    out = []
    if point in found.refused_already:
        out.append(limit_text(case.loose))
    if point not in found.stays:
        out.append(limit_text(case.tight))
    value = _value(point, case.tight)
    return SimulatedEffect(
        setting=point.name,
        metric=f"TPOT P{case.tight.quantile * 100:g} with a full batch",
        value=None if value is None else value * 1e3,
        unit="ms",
        change_ratio=None,
        falls_out=tuple(out),
    )


def _growth(case: LimitCase, found: Fallen) -> tuple[ClassChange, ...]:
    """What a decode step of the first candidate that falls out takes more than one of the last that stays."""
    if not (found.stays and found.falls_out):
        return ()
    sides = [case.class_ms[case.points.index(point)] for point in (found.stays[-1], found.falls_out[0])]
    total = sum(sides[1].values()) - sum(sides[0].values())
    return tuple(
        ClassChange(
            span_class=name,
            level="engine",
            unit="ms per decode step",
            base=sides[0][name],
            candidate=sides[1].get(name, 0.0),
            share_of_change_ratio=(sides[1].get(name, 0.0) - sides[0][name]) / total if total else None,
            origin="prior",
        )
        for name in sides[0]
    )


def decode_class_ms(graph: OperatorGraph, costs: Roofline | MeasuredCosts, shape: StepShape) -> dict[str, float]:
    """Milliseconds of a step that each span class accounts for: what the step would save without the class."""
    whole = step_s(graph, costs, shape)
    names = sorted({operator.span_class for operator in graph.operators.values()} | {SpanClass.LAUNCH})
    return {
        str(name): (whole - step_s(graph, changed(costs, Change("class", name, _NOTHING)), shape)) * 1e3
        for name in names
    }


def _advice(found: Fallen) -> Advice:
    keep = _names(found.stays)
    return Advice(
        title="Hypothesis",
        text=f"plan with {keep} under the tighter limit"
        if keep
        else "no candidate holds the tighter limit: split the model over more devices, or give up the limit",
        risks=("the prior has no data of this hardware behind it: its efficiencies are assumed",),
    )


def _names(points: Sequence[Point]) -> str:
    return ", ".join(point.name for point in points)
