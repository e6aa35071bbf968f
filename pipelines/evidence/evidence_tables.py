"""The tables of a chain, the same for every kind of report. Renders nothing.

Law: every row has as many cells as the head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from pipelines.evidence.evidence_words import (
    LEVELS,
    changed,
    class_name,
    compared,
    effect_name,
    fact_name,
    interval,
    joined,
    number,
    percent,
    share,
    varied,
)
from schemas.evidence import ClassChange, Evidence
from twin.evidence.class_guide import GUIDE


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Head and rows of texts; `numeric` are the places of columns that hold numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...] = ()


def facts(found: Evidence) -> ReportTable:
    """Every figure with its change."""
    rows = (
        (
            fact.level,
            fact_name(fact),
            number(fact.base, fact.unit),
            number(fact.candidate, fact.unit),
            percent(fact.change_ratio),
            interval(fact.low_ratio, fact.high_ratio),
            changed(fact),
            fact.origin,
        )
        for level in LEVELS
        for fact in found.facts
        if fact.level == level
    )
    head = ("level", "figure", "base", "candidate", "change", "95 %", "changed", "origin")
    return ReportTable(head, tuple(rows), (2, 3, 4, 5))


def boundaries(found: Evidence) -> ReportTable:
    """What was sampled."""
    rows = (
        (
            row.side,
            row.level,
            row.source,
            number(row.window_s, "s"),
            number(row.events),
            number(row.requests_finished),
            number(row.tokens_finished),
            str(row.open_requests),
            str(row.repeats),
        )
        for row in found.boundaries
    )
    head = ("side", "level", "source", "window", "events", "requests finished", "tokens finished", "open", "runs")
    return ReportTable(head, tuple(rows), (3, 4, 5, 6, 7, 8))


def class_times(found: Evidence, level: str) -> ReportTable:
    """Span classes of one level."""
    rows = tuple(_class_row(row) for row in found.classes if row.level == level)
    head = ("class", "base", "candidate", "count base", "count candidate", "share of change", "origin")
    return ReportTable(head, rows, (1, 2, 3, 4, 5))


def guide(found: Evidence) -> ReportTable:
    """For each class in the chain, what profiling looks at and what a simulation varies."""
    present = {row.span_class for row in found.classes}
    rows = ((entry.title, entry.profiling, entry.simulation) for name, entry in GUIDE.items() if name in present)
    return ReportTable(("class", "profiling looks at", "simulation varies"), tuple(rows))


def hypotheses(found: Evidence) -> ReportTable:
    """By simulated effect."""
    rows = (
        (each.statement, each.parameter, share(each.weight_ratio), each.verdict, each.refuted_by)
        for each in found.hypotheses
    )
    head = ("statement", "parameter", "largest simulated effect", "verdict", "refuted by")
    return ReportTable(head, tuple(rows), (2,))


def simulated_beside_measured(found: Evidence) -> ReportTable:
    """Of the hypothesis that stands for everything."""
    rows = (
        (
            effect_name(effect),
            percent(effect.change_ratio),
            interval(effect.low_ratio, effect.high_ratio),
            percent(effect.observed_ratio),
            interval(effect.observed_low_ratio, effect.observed_high_ratio),
            effect.verdict,
        )
        for effect in compared(found)
    )
    return ReportTable(
        ("figure", "simulated", "95 % of runs", "measured", "95 %", "verdict"), tuple(rows), (1, 2, 3, 4)
    )


def sensitivity(found: Evidence) -> ReportTable:
    """Settings that were not measured. Values, changes and intervals only where there are any."""
    effects = tuple(varied(found))
    told = ((effect.value, effect.change_ratio, effect.low_ratio) for effect in effects)
    shown = (True, True, *(any(each is not None for each in column) for column in zip(*told, strict=True)), True)
    rows = (
        (
            effect.setting,
            effect_name(effect),
            number(effect.value, effect.unit),
            percent(effect.change_ratio),
            interval(effect.low_ratio, effect.high_ratio),
            joined(effect.falls_out),
        )
        for effect in effects
    )
    head = ("setting", "figure", "value", "change", "between", "falls out of")
    kept = tuple(compress(head, shown))
    numbers = tuple(place for place, name in enumerate(kept) if name in ("value", "change", "between"))
    return ReportTable(kept, tuple(tuple(compress(row, shown)) for row in rows), numbers)


def experiments(found: Evidence) -> ReportTable:
    """Cells that would move the grade."""
    rows = (
        (
            cell.prefix_cache,
            cell.hit_ratio,
            cell.chunk,
            cell.prefill,
            str(cell.repeats),
            number(cell.run_s, "s"),
            cell.why,
        )
        for cell in found.experiments
    )
    head = ("prefix cache", "hit ratio", "chunk", "prefill", "runs of each", "run length", "why")
    return ReportTable(head, tuple(rows), (4, 5))


def versions(found: Evidence) -> tuple[str, ...]:
    """Assumptions, and what made the chain."""
    rules = found.rules_version or "none used"
    made = f"span rules version {rules}, seed {found.seed}, twincast {found.twincast_version}"
    return (*found.assumptions, made)


def record_besides(found: Evidence) -> Sequence[str]:
    """What the runs of the next experiment have to record."""
    return found.experiments[0].instrumentation if found.experiments else ()


def _class_row(row: ClassChange) -> tuple[str, ...]:
    return (
        class_name(row),
        number(row.base, row.unit),
        number(row.candidate, row.unit),
        number(row.base_count),
        number(row.candidate_count),
        share(row.share_of_change_ratio),
        row.origin,
    )
