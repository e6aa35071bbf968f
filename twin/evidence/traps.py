"""Traps in facts: figures that look as if they belonged together and do not. Finds them; mends nothing.

Law: a trap names the figures it is about and the level that it voids.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.evidence import ClassChange, EvidenceLevel, Fact
from twin.evidence.class_guide import UNKNOWN, title_of
from twin.evidence.profile import LEAST_EXPLAINED_RATIO, UNCLASSIFIED_LIMIT_RATIO

MOST_EXPLAINED_RATIO = 1.5
"""Classes that change by more than this share of their total were not summed over the same kernels."""
APART_RATIO = 0.5
"""Levels of one run that move further apart than this were not sampled over the same work."""


@dataclass(frozen=True, slots=True)
class Trap:
    """What is wrong, which level it voids (None: it only limits what may be said), and what would mend it."""

    text: str
    voids: EvidenceLevel | None
    mended_by: str


def traps_of(facts: Sequence[Fact], classes: Sequence[ClassChange]) -> tuple[Trap, ...]:
    """All traps of some facts and classes."""
    return (*_populations(facts), *_unattributed(facts, classes), *_unclassified(classes), *_other_work(facts))


def explained_ratio(facts: Sequence[Fact], classes: Sequence[ClassChange]) -> float | None:
    """Share of the change of kernel time that named classes explain; None without a kernel total that changed."""
    total = next((fact for fact in facts if fact.name == "kernel total"), None)
    if total is None or total.base is None or total.candidate is None or total.base == total.candidate:
        return None
    scale = {"s": 1e3, "ms": 1.0, "us": 1e-3}[total.unit]
    named = [
        row.candidate - row.base
        for row in classes
        if row.level == "kernel" and row.span_class != UNKNOWN
        if row.base is not None and row.candidate is not None
    ]
    if not named or any(row.unit != "ms" for row in classes if row.level == "kernel"):
        return None
    return sum(named) / ((total.candidate - total.base) * scale)


def _populations(facts: Sequence[Fact]) -> list[Trap]:
    """A span cannot last longer than the one that holds it: then their means are of different calls."""
    found = []
    by_name = {fact.name: fact for fact in facts}
    for child in facts:
        parent = by_name.get(child.parent)
        if parent is None or child.statistic != "mean" or parent.statistic != "mean" or child.unit != parent.unit:
            continue
        sides = [
            (side, inner, outer)
            for side, inner, outer in (
                ("base", child.base, parent.base),
                ("candidate", child.candidate, parent.candidate),
            )
            if inner is not None and outer is not None and inner > outer
        ]
        if sides:
            told = " and ".join(
                f"{inner:,.0f} {child.unit} against {outer:,.0f} {child.unit} ({side})" for side, inner, outer in sides
            )
            found.append(
                Trap(
                    f"the mean of {child.name} exceeds that of {parent.name}, which holds it: {told}; they are means of"
                    " different populations of calls and must not be set against each other",
                    "engine",
                    f"{child.name} and {parent.name} of the same steps, with their number of calls",
                )
            )
    return found


def _unattributed(facts: Sequence[Fact], classes: Sequence[ClassChange]) -> list[Trap]:
    ratio = explained_ratio(facts, classes)
    if ratio is None or LEAST_EXPLAINED_RATIO <= ratio <= MOST_EXPLAINED_RATIO:
        return []
    if ratio > MOST_EXPLAINED_RATIO:
        return [
            Trap(
                f"the classes change by {ratio * 100:.0f} % of the change of all kernel time: they and their total are"
                " of different kernels",
                "kernel",
                "class times and total of the same traces",
            )
        ]
    names = " and ".join(title_of(row.span_class) for row in classes if row.level == "kernel")
    return [
        Trap(
            f"{names} explain only {ratio * 100:.0f} % of the change of kernel time; {(1 - ratio) * 100:.0f} % is"
            " unattributed, so the profile does not say what changed most",
            "kernel",
            f"totals of the classes behind the other {(1 - ratio) * 100:.0f} % of the kernel time (elementwise, copy,"
            " communication), or the traces themselves",
        )
    ]


def _other_work(facts: Sequence[Fact]) -> list[Trap]:
    """Kernel time per step that moves apart from the step itself was sampled over other work."""
    by_name = {fact.name: fact.change_ratio for fact in facts if not fact.group}
    kernel, step = by_name.get("kernel time per step"), by_name.get("step")
    if kernel is None or step is None or abs(math.log((1.0 + kernel) / (1.0 + step))) < math.log(1.0 + APART_RATIO):
        return []
    return [
        Trap(
            f"kernel time per step changed by {kernel * 100:+.0f} %, the steps themselves by {step * 100:+.0f} %: the"
            " profiles were not taken of these runs",
            "kernel",
            "kernel traces taken during these very runs",
        )
    ]


def _unclassified(classes: Sequence[ClassChange]) -> list[Trap]:
    kernel = [row for row in classes if row.level == "kernel"]
    found = []
    for side in ("base", "candidate"):
        values = {row.span_class: getattr(row, side) or 0.0 for row in kernel}
        total = sum(values.values())
        ratio = values.get(UNKNOWN, 0.0) / total if total else 0.0
        if ratio > UNCLASSIFIED_LIMIT_RATIO:
            found.append(
                Trap(
                    f"{ratio * 100:.0f} % of the kernel time of the {side} is of names that no rule knows",
                    "kernel",
                    "rules for these names (--rules)",
                )
            )
    return found
