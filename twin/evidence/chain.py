"""Two windows into one chain: facts, classes, hypotheses, sensitivity, grade, next experiment. Reads no files.

Law: the same windows, profiles, costs and seed give the same record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from schemas.evidence import Boundary, ClassChange, Evidence, EvidenceLevel, Fact
from schemas.slos import SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role
from twin.cost.taxonomy import SpanClass
from twin.engine.cluster_types import KvLink
from twin.evidence.advice import advise, carried_by, finding, leading, not_shown
from twin.evidence.experiments import Covered, plan
from twin.evidence.grade import Basis, Standing, grade
from twin.evidence.hypotheses import Differences, Guess, hypotheses
from twin.evidence.kv_transfer import NO_LINK, NOT_VARIED, fitted_link, hands_over, load_ratio
from twin.evidence.measure import OFFERED, Judging, Measured, measure
from twin.evidence.profile import KernelProfile, kernel_classes, kernel_facts
from twin.evidence.sensitivity import TOGETHER, Simulated, not_simulated, simulate
from twin.evidence.traps import Trap, traps_of
from twin.evidence.twin_runs import STEP, FittedCosts, Twin, engine_differences
from twin.evidence.window import Window
from twin.evidence.work import StepWork, class_changes, role_levels, work_of
from twin.known.run import Routing
from twin.settings import TWINCAST_VERSION

KEPT_UP_RATIO = 0.2
"""Under this share of step time with requests waiting, a window kept up with what was offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything a chain of two windows is made of. `costs` None: nothing can be simulated, for `why_not`."""

    base: Window
    candidate: Window
    costs: FittedCosts | None
    step_costs: Mapping[str, FrozenStepCost]
    base_profile: KernelProfile | None = None
    candidate_profile: KernelProfile | None = None
    limits: tuple[SloTarget, ...] = ()
    judging: Judging = field(default_factory=Judging)
    routing: Routing = "recorded"
    link: KvLink | None = None
    title: str = ""
    rules_version: str = ""
    why_not: str = ""
    notes: tuple[str, ...] = ()


def chain(asked: Comparison) -> Evidence:
    """The chain of a comparison."""
    measured = measure(asked.base, asked.candidate, asked.judging)
    works = _works(asked)
    classes, kernel = _classes(asked, works)
    facts = (*measured.facts, *kernel)
    traps = traps_of(facts, classes)
    guesses = hypotheses(_differences(asked, measured, works, classes))
    simulated = _simulated(asked, measured, guesses)
    told = told_fields(asked.base) & told_fields(asked.candidate)
    basis = _basis(asked, measured, simulated, traps, told)
    graded = grade(basis)
    lead = leading(simulated.hypotheses)
    about_prefix = lead is not None and lead.code == "prefix_reuse"
    experiments, _ = plan(basis, graded, _covered(asked, measured, about_prefix))
    return Evidence(
        deployment=asked.candidate.deployment,
        at_us=asked.candidate.requests.t0_us + round(asked.candidate.to_s * 1e6),
        title=asked.title or f"{asked.base.source} against {asked.candidate.source}",
        base=asked.base.source,
        candidate=asked.candidate.source,
        grade=graded.grade,
        grade_reasons=graded.reasons,
        missing=graded.missing,
        refuted_by=lead.refuted_by if lead is not None else "the same comparison with larger windows, or repeated",
        advice=advise(lead, facts, graded.grade, measured.user_changed),
        finding=finding(lead, facts, measured.user_changed, carried=carried_by(classes, basis.voids)),
        span_classes=lead.span_classes if lead is not None and measured.user_changed else (),
        boundaries=_boundaries(asked),
        facts=facts,
        classes=classes,
        hypotheses=simulated.hypotheses,
        experiments=experiments if measured.user_changed else (),
        not_shown=not_shown(facts, told, basis.repeats, _kept_up(asked.base) and _kept_up(asked.candidate)),
        limits=(*asked.notes, *(trap.text for trap in traps), *_simulation_limits(asked, simulated, classes, told)),
        assumptions=(_about(asked, simulated),),
        noise_floor_ratio=measured.floor_ratio,
        rules_version=asked.rules_version,
        twincast_version=TWINCAST_VERSION,
        seed=asked.judging.seed,
    )


def told_fields(window: Window) -> frozenset[str]:
    """Names of `grade.FIELDS` that a window tells; repeats are counted on their own."""
    chunks = [chunk for record in window.finished for chunk in record.chunks]
    rows = any(step.rows for rows in window.steps.values() for step in rows)
    found = {
        "chunk_request": bool(chunks) or rows,
        "chunk_tokens": bool(chunks) or rows,
        "hit_tokens": window.hit_ratio is not None,
        "kv_times": any(chunk.kv_lookup_us is not None or chunk.kv_load_us is not None for chunk in chunks),
        "window_tokens": bool(np.isfinite(window.requests.last_s).any()),
        "repeats": bool(window.repeats),
    }
    return frozenset(name for name, is_told in found.items() if is_told)


def _works(asked: Comparison) -> tuple[StepWork, StepWork] | None:
    if not asked.step_costs or not asked.base.working_steps or not asked.candidate.working_steps:
        return None
    return work_of(asked.base, asked.step_costs), work_of(asked.candidate, asked.step_costs)


def _classes(
    asked: Comparison, works: tuple[StepWork, StepWork] | None
) -> tuple[tuple[ClassChange, ...], tuple[Fact, ...]]:
    engine = () if works is None else class_changes(*works)
    if asked.base_profile is None or asked.candidate_profile is None:
        return engine, ()
    sides = asked.base_profile, asked.candidate_profile
    return (*engine, *kernel_classes(*sides)), kernel_facts(*sides)


def _differences(
    asked: Comparison,
    measured: Measured,
    works: tuple[StepWork, StepWork] | None,
    classes: Sequence[ClassChange],
) -> Differences:
    ratios = [side.hit_ratio for side in (asked.base, asked.candidate)]
    kernel = [row for row in classes if row.level == "kernel" and row.base and row.candidate is not None]
    return Differences(
        settings=engine_differences(asked.base.configs, asked.candidate.configs),
        hit_ratios=_hit_ratios(asked) if all(ratio is not None for ratio in ratios) else None,
        traffic={} if measured.paired else _traffic(asked, measured),
        role_levels={} if works is None else role_levels(*works),
        class_ratios={row.span_class: (row.candidate or 0.0) / row.base for row in kernel if row.base},
        class_shares={row.span_class: row.share_of_change_ratio or 0.0 for row in kernel},
        load_ratio=load_ratio(asked.base.finished, asked.candidate.finished)
        if hands_over(asked.base.configs)
        else None,
        floor_ratio=measured.floor_ratio,
    )


def _hit_ratios(asked: Comparison) -> tuple[float, float]:
    """Cached over all prompt tokens of each side."""
    sides = []
    for window in (asked.base, asked.candidate):
        isl = window.requests.isl_tokens[window.members]
        ratio = window.hit_ratio
        sides.append(float((ratio * isl).sum() / max(isl.sum(), 1)) if ratio is not None else 0.0)
    return sides[0], sides[1]


def _traffic(asked: Comparison, measured: Measured) -> dict[str, float]:
    """Candidate over base: requests per second and mean lengths."""
    offered = measured.changes.get((OFFERED, ""))
    found = {"requests per second": 1.0 + (offered.ratio or 0.0)} if offered is not None else {}
    for name, column in (("mean ISL", "isl_tokens"), ("mean OSL", "osl_tokens")):
        means = [
            float(getattr(window.requests, column)[window.members].mean()) for window in (asked.base, asked.candidate)
        ]
        found[name] = means[1] / means[0]
    return found


def _simulated(asked: Comparison, measured: Measured, guesses: Sequence[Guess]) -> Simulated:
    if asked.costs is None:
        return not_simulated(guesses, asked.why_not or "there are no step costs to simulate with")
    link = _link(asked)
    if link is None and hands_over(asked.base.configs):
        return not_simulated(guesses, NO_LINK)
    twin = Twin(
        base=asked.base,
        other=asked.candidate,
        costs=_with_profile(asked.costs, asked.base_profile),
        groups=measured.groups,
        routing=asked.routing,
        link=link,
        seed=asked.judging.seed,
    )
    return simulate(twin, guesses, measured, asked.limits)


def _link(asked: Comparison) -> KvLink | None:
    """The link that was given, else what the base's own loads tell."""
    if asked.link is not None or not hands_over(asked.base.configs):
        return asked.link
    return fitted_link(asked.base.finished)


def _with_profile(costs: FittedCosts, profile: KernelProfile | None) -> FittedCosts:
    """Costs with shares of span classes: as steps tell them, else as the base's profile does for all roles alike."""
    if costs.classes or profile is None or not profile.total_ms:
        return costs
    shares = {name: dict.fromkeys(Role, each.total_ms / profile.total_ms) for name, each in profile.classes.items()}
    return replace(costs, classes=shares)


def _basis(
    asked: Comparison, measured: Measured, simulated: Simulated, traps: Sequence[Trap], told: frozenset[str]
) -> Basis:
    levels: dict[EvidenceLevel, Standing] = {"request": "measured"}
    if asked.base.working_steps and asked.candidate.working_steps:
        levels["engine"] = "measured"
    if asked.base_profile is not None and asked.candidate_profile is not None:
        levels["kernel"] = "measured"
    for level in simulated.agreeing:
        levels[level] = "agrees"
    if "kernel" in levels and _kernel_agrees(asked, simulated):
        levels["kernel"] = "agrees"
    voids = {trap.voids: trap.text for trap in traps if trap.voids is not None}
    for level in voids:
        levels[level] = "void"
    agrees = measured.user_changed and bool(simulated.agreeing)
    return Basis(
        levels=levels,
        simulated="none" if asked.costs is None or not simulated.reproduces else "fitted",
        simulation_agrees=agrees,
        repeats=1 + min(len(asked.base.repeats), len(asked.candidate.repeats)),
        told=told,
        voids=voids,
        mended_by=tuple(trap.mended_by for trap in traps if trap.voids is not None),
        needed_to_simulate=() if asked.costs is not None else (asked.why_not,),
    )


def _kernel_agrees(asked: Comparison, simulated: Simulated) -> bool:
    """Whether kernel time per step moved as the step's time did in the simulation."""
    sides = asked.base_profile, asked.candidate_profile
    if sides[0] is None or sides[1] is None or not (sides[0].steps and sides[1].steps) or not simulated.agreeing:
        return False
    lead = simulated.hypotheses[-1] if simulated.hypotheses[-1].code == TOGETHER else simulated.hypotheses[0]
    step = next((effect for effect in lead.effects if effect.metric == STEP), None)
    if step is None or step.change_ratio is None:
        return False
    moved = (sides[1].total_ms / sides[1].steps) / (sides[0].total_ms / sides[0].steps)
    return abs(math.log(moved / (1.0 + step.change_ratio))) <= math.log1p(asked.judging.floor_ratio)


def _boundaries(asked: Comparison) -> tuple[Boundary, ...]:
    found = (*asked.base.boundaries("base"), *asked.candidate.boundaries("candidate"))
    profiles = (
        () if asked.base_profile is None else (asked.base_profile.boundary("base"),),
        () if asked.candidate_profile is None else (asked.candidate_profile.boundary("candidate"),),
    )
    return (*found, *profiles[0], *profiles[1])


def _covered(asked: Comparison, measured: Measured, about_prefix: bool) -> Covered:
    change = measured.changes.get(("TTFT P50", ""))
    caches = {
        "on" if config.enable_prefix_caching else "off"
        for window in (asked.base, asked.candidate)
        for config in window.configs[:1]
    }
    return Covered(
        about_prefix=about_prefix,
        caches=frozenset(caches),
        hit_ratios=tuple(stretch.hit_ratio for stretch in measured.groups) or _hit_ratios(asked),
        prefills=frozenset({"mixed with decode"}),
        effect_ratio=None if change is None else change.ratio,
        sigma=None if change is None else change.sigma,
        block_s=asked.judging.block_s if change is None or not change.block_s else change.block_s,
    )


def _kept_up(window: Window) -> bool | None:
    """Whether its engines kept up with what was offered; None where steps do not count who waits."""
    steps = [step for step in window.working_steps if step.waiting is not None]
    total = sum(step.duration_us for step in steps)
    if not total:
        return None
    return sum(step.duration_us for step in steps if step.waiting) / total < KEPT_UP_RATIO


def _simulation_limits(
    asked: Comparison, simulated: Simulated, classes: Sequence[ClassChange], told: frozenset[str]
) -> tuple[str, ...]:
    found = list(simulated.notes)
    copies = "kv_times" in told or any(row.span_class == SpanClass.COPY for row in classes)
    if copies and not hands_over(asked.base.configs):
        found.append(NOT_VARIED)
    if asked.costs is not None and not simulated.reproduces:
        error = simulated.base_error_ratio
        found.append(
            "the twin does not reproduce the base"
            + (f" ({error * 100:+.0f} %)" if error is not None else " (it has no latencies to compare with)")
            + ": what it says of changes confirms nothing"
        )
    return tuple(found)


def _about(asked: Comparison, simulated: Simulated) -> str:
    if asked.costs is None:
        return "nothing was simulated"
    error = simulated.base_error_ratio
    told = (
        "" if error is None else f"; the twin's base is {error * 100:+.1f} % off the measured one (middle of medians)"
    )
    return f"step costs {asked.costs.about}{told}{_about_link(asked)}"


def _about_link(asked: Comparison) -> str:
    """Where the time of KV transfers comes from, where engines hand KV over."""
    link = _link(asked)
    if link is None or not hands_over(asked.base.configs):
        return ""
    origin = "assumed, as given" if asked.link is not None else "fitted to loads of the base"
    return (
        f"; KV transfer {origin}: {link.fixed_ps / 1e6:.4g} us and {link.token_ps / 1e6:.4g} us per token;"
        " requests are routed to the least outstanding, as nobody tells how they were"
    )
