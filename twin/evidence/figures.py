"""Figures without the requests behind them into a chain: what they show, what not, and which do not belong together.

Others published them, or only kernel traces were given. Figures of single requests with the prefix cache on and off
teach a cost per token and are simulated (`figure_fit`); others cannot be. Law: the grade of figures alone is at most C.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from schemas.base import LATEST_US
from schemas.evidence import Boundary, ClassChange, Evidence, EvidenceLevel, Fact
from twin.evidence.advice import advise, finding, leading, not_shown
from twin.evidence.class_guide import title_of
from twin.evidence.experiments import Covered, plan
from twin.evidence.figure_fit import NEEDED, FigureFit, effects_of, fit_of
from twin.evidence.grade import FIELDS, Basis, Standing, grade
from twin.evidence.hypotheses import PREFIX_SETTING, Differences, hypotheses
from twin.evidence.measure import NOISE_FLOOR_RATIO
from twin.evidence.sensitivity import Simulated, not_simulated
from twin.evidence.traps import Trap, traps_of
from twin.settings import TWINCAST_VERSION

WHY_NOT = "published figures hold no requests and no step shapes to simulate with"
ONLY_TTFT = "TPOT and throughput were not simulated: no figure tells a decode step or an arrival"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureCase:
    """Figures of two sides. `tried` is the load they were taken under, in words; `told` are names of `grade.FIELDS`.

    Raises ValueError without a figure, for a name of `told` that is none, or a time that is out of range.
    """

    title: str
    deployment: str
    at_us: int
    base: str
    candidate: str
    facts: tuple[Fact, ...]
    classes: tuple[ClassChange, ...] = ()
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    tried: str = ""
    repeats: int = 1
    told: frozenset[str] = frozenset()
    boundaries: tuple[Boundary, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = WHY_NOT

    def __post_init__(self) -> None:
        if not self.facts:
            raise ValueError("published figures need at least one figure")
        if not 0 < self.at_us <= LATEST_US:
            raise ValueError(f"at_us must be microseconds since the epoch, got {self.at_us}")
        unknown = sorted(self.told - set(FIELDS))
        if unknown:
            raise ValueError(f"told names {unknown[0]!r}; expected some of {', '.join(FIELDS)}")


def chain_of_figures(found: FigureCase, rules_version: str = "") -> Evidence:
    """The chain of published figures."""
    facts, classes = found.facts, _with_shares(found.facts, found.classes)
    user_changed = _reached_user(facts)
    traps = (*traps_of(facts, classes), *_unlike(facts))
    fit = fit_of(facts, classes, found.settings, found.tried)
    simulated = _simulated(found, classes, fit)
    basis = _basis(found, facts, classes, traps, fitted=not isinstance(fit, str))
    graded = grade(basis)
    lead = leading(simulated.hypotheses)
    about_prefix = PREFIX_SETTING in found.settings
    experiments, _ = plan(basis, graded, _covered(found, facts, about_prefix))
    refuted = lead.refuted_by if lead is not None else "the same figures from a second run"
    return Evidence(
        deployment=found.deployment,
        at_us=found.at_us,
        title=found.title,
        base=found.base,
        candidate=found.candidate,
        grade=graded.grade,
        grade_reasons=graded.reasons,
        missing=graded.missing,
        refuted_by=refuted + (_least_hits(facts) if about_prefix else ""),
        advice=advise(lead, facts, graded.grade, user_changed),
        finding=finding(lead, facts, user_changed, tried=found.tried, carried=_carried(facts, classes)),
        span_classes=lead.span_classes if lead is not None else (),
        boundaries=found.boundaries,
        facts=facts,
        classes=classes,
        hypotheses=simulated.hypotheses,
        experiments=experiments,
        not_shown=not_shown(facts, found.told, found.repeats, None),
        limits=(*found.notes, *(trap.text for trap in traps), *(() if isinstance(fit, str) else (ONLY_TTFT,))),
        assumptions=_assumptions(found, fit),
        noise_floor_ratio=NOISE_FLOOR_RATIO,
        rules_version=rules_version,
        twincast_version=TWINCAST_VERSION,
    )


def _simulated(found: FigureCase, classes: Sequence[ClassChange], fit: FigureFit | str) -> Simulated:
    """The prefix cache at other hit ratios, where figures teach costs; the rest as it is."""
    plain = not_simulated(hypotheses(_differences(found, classes)), found.why_not)
    if isinstance(fit, str):
        return plain
    rows = tuple(
        structs.replace(
            each,
            weight_ratio=1.0 - fit.on_ratio,
            verdict="not measured",
            effects=effects_of(fit),
        )
        if each.code == "prefix_reuse"
        else each
        for each in plain.hypotheses
    )
    return replace(plain, hypotheses=rows, notes=())


def _assumptions(found: FigureCase, fit: FigureFit | str) -> tuple[str, ...]:
    if not isinstance(fit, str):
        return fit.about, fit.assumed
    return (found.why_not, fit) if PREFIX_SETTING in found.settings else (found.why_not,)


def _differences(found: FigureCase, classes: Sequence[ClassChange]) -> Differences:
    return Differences(
        settings=found.settings,
        class_ratios={row.span_class: row.candidate / row.base for row in classes if row.base and row.candidate},
        class_shares={row.span_class: row.share_of_change_ratio or 0.0 for row in classes},
    )


def _with_shares(facts: Sequence[Fact], classes: Sequence[ClassChange]) -> tuple[ClassChange, ...]:
    """Shares of the change of kernel time, where its total is told."""
    total = next((fact for fact in facts if fact.name == "kernel total"), None)
    if total is None or total.base is None or total.candidate is None or total.base == total.candidate:
        return tuple(classes)
    scale = {"s": 1e3, "ms": 1.0, "us": 1e-3}[total.unit]
    change = (total.candidate - total.base) * scale
    return tuple(
        ClassChange(
            span_class=row.span_class,
            level=row.level,
            unit=row.unit,
            base=row.base,
            candidate=row.candidate,
            base_count=row.base_count,
            candidate_count=row.candidate_count,
            share_of_change_ratio=(row.candidate - row.base) / change,
            origin=row.origin,
        )
        for row in classes
        if row.base is not None and row.candidate is not None
    )


def _reached_user(facts: Iterable[Fact]) -> bool:
    """Whether a published latency moved by more than runs of one service stray."""
    return any(
        fact.level == "request" and fact.change_ratio is not None and abs(fact.change_ratio) >= NOISE_FLOOR_RATIO
        for fact in facts
    )


def _unlike(facts: Sequence[Fact]) -> list[Trap]:
    """Levels that moved by very different shares were not sampled over the same work."""
    moved = [
        (fact.name, fact.change_ratio)
        for name in ("kernel total", "execute_model", "TTFT")
        for fact in facts
        if fact.name.split(" P")[0] == name and fact.change_ratio is not None
    ]
    if len(moved) < 2 or max(ratio for _, ratio in moved) - min(ratio for _, ratio in moved) < NOISE_FLOOR_RATIO:
        return []
    told = ", ".join(f"{name} by {ratio * 100:+.0f} %" for name, ratio in moved)
    return [
        Trap(
            f"levels moved apart ({told}): nothing says that their windows held the same requests and tokens",
            None,
            "requests and tokens finished in each window",
        )
    ]


def _basis(
    found: FigureCase, facts: Sequence[Fact], classes: Sequence[ClassChange], traps: Sequence[Trap], *, fitted: bool
) -> Basis:
    levels: dict[EvidenceLevel, Standing] = {fact.level: "measured" for fact in facts}
    levels |= {row.level: "measured" for row in classes}
    voids = {trap.voids: trap.text for trap in traps if trap.voids is not None}
    for level in voids:
        levels[level] = "void"
    return Basis(
        levels=levels,
        repeats=found.repeats,
        told=found.told | ({"repeats"} if found.repeats > 1 else set()),
        voids=voids,
        mended_by=tuple(trap.mended_by for trap in traps if trap.voids is not None),
        simulated="fitted" if fitted else "none",
        needed_to_simulate=(f"to {'confirm a simulation' if fitted else 'simulate'}: {NEEDED}",),
    )


def _covered(found: FigureCase, facts: Sequence[Fact], about_prefix: bool) -> Covered:
    effect = next((fact.change_ratio for fact in facts if fact.level == "request"), None)
    return Covered(
        about_prefix=about_prefix,
        caches=frozenset({"off", "on"}) if about_prefix else frozenset(),
        prefills=frozenset({"single prefill"} if "single" in found.tried else {"mixed with decode"}),
        effect_ratio=effect,
    )


def _carried(facts: Sequence[Fact], classes: Sequence[ClassChange]) -> str:
    """Means of steps and totals of classes that moved, in words."""
    steps = [
        f"{fact.name} {fact.change_ratio * 100:+.0f} %"
        for fact in facts
        if fact.level == "engine" and fact.change_ratio is not None
    ]
    kernels = [
        f"{title_of(row.span_class)} {(row.candidate / row.base - 1.0) * 100:+.0f} %"
        for row in classes
        if row.base and row.candidate is not None
    ]
    return "; ".join(", ".join(part) for part in (steps, kernels) if part)


def _least_hits(facts: Sequence[Fact]) -> str:
    """How many tokens must have hit, if TTFT is at most proportional to the tokens computed."""
    fact = next((each for each in facts if each.name.startswith("TTFT") and each.change_ratio is not None), None)
    if fact is None or fact.change_ratio is None or fact.change_ratio >= 0.0:
        return ""
    return (
        f"; and hit tokens of these requests: if fewer than {-fact.change_ratio * 100:.0f} % of their prompt tokens"
        " hit, prefill alone cannot have saved as much"
    )
