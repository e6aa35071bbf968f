"""Kernel time of both sides by span class, as profiles tell it. Reads no trace and classifies no name.

A profile covers its own window, which is neither a request nor the window of the other facts. Laws: shares of the
change add up to one; what no rule knows is a row of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.evidence import Boundary, ClassChange, Fact, Side
from twin.evidence.class_guide import UNKNOWN

UNCLASSIFIED_LIMIT_RATIO = 0.05
LEAST_EXPLAINED_RATIO = 0.5
"""Classes that explain less of a change than this leave the level without a class."""


@dataclass(frozen=True, slots=True)
class ClassTime:
    """Total device time and number of kernels of a class."""

    total_ms: float
    count: int


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One side's traces, all together. `notes` say what the trace lacks; `steps` are annotated ones, 0 if none.

    `busy_ms` is time with at least one kernel on the device, `classes` sums kernels, overlapping ones twice.
    """

    source: str
    classes: Mapping[str, ClassTime]
    window_ms: float
    busy_ms: float
    steps: int
    rules_version: str
    traces: int = 1
    notes: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        """Kernel time of all classes."""
        return sum(each.total_ms for each in self.classes.values())

    @property
    def kernels(self) -> int:
        """Device events."""
        return sum(each.count for each in self.classes.values())

    @property
    def unclassified_ratio(self) -> float:
        """Share of kernel time that no rule knows."""
        unknown = self.classes.get(UNKNOWN)
        return unknown.total_ms / self.total_ms if unknown is not None and self.total_ms else 0.0

    def boundary(self, side: Side) -> Boundary:
        """What was sampled; a profile counts no requests."""
        return Boundary(
            side=side,
            level="kernel",
            source=self.source,
            window_s=self.window_ms / 1e3,
            events=self.kernels,
            repeats=self.traces,
        )


def kernel_facts(base: KernelProfile, candidate: KernelProfile) -> tuple[Fact, ...]:
    """Kernel time of the whole, and per annotated step where both have such."""
    found = [_fact("kernel total", base.total_ms, candidate.total_ms, "total")]
    if base.steps and candidate.steps:
        found.append(
            _fact("kernel time per step", base.total_ms / base.steps, candidate.total_ms / candidate.steps, "mean")
        )
    return tuple(found)


def kernel_classes(base: KernelProfile, candidate: KernelProfile) -> tuple[ClassChange, ...]:
    """Every class of either side, per annotated step where both have such, else in total."""
    per_step = bool(base.steps and candidate.steps)
    per = (base.steps, candidate.steps) if per_step else (1, 1)
    total = candidate.total_ms / per[1] - base.total_ms / per[0]
    none = ClassTime(0.0, 0)
    rows = []
    for name in sorted({*base.classes, *candidate.classes}):
        before, after = base.classes.get(name, none), candidate.classes.get(name, none)
        change = after.total_ms / per[1] - before.total_ms / per[0]
        rows.append(
            ClassChange(
                span_class=name,
                level="kernel",
                unit="ms per step" if per_step else "ms",
                base=before.total_ms / per[0],
                candidate=after.total_ms / per[1],
                base_count=before.count,
                candidate_count=after.count,
                share_of_change_ratio=change / total if total else None,
            )
        )
    return tuple(rows)


def _fact(name: str, base: float, candidate: float, statistic: str) -> Fact:
    return Fact(
        level="kernel",
        name=name,
        unit="ms",
        base=base,
        candidate=candidate,
        change_ratio=candidate / base - 1.0 if base else None,
        statistic=statistic,
    )
