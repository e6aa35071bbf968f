"""A chain as Markdown. Law: the grade, what it lacks and the refuting experiment stand before the advice."""

from collections.abc import Iterable

from pipelines.evidence import evidence_tables as tables
from pipelines.evidence.evidence_tables import ReportTable
from pipelines.evidence.evidence_words import LEVELS, joined, noise_text
from schemas.evidence import Evidence
from twin.evidence.class_guide import title_of


def markdown(found: Evidence) -> str:
    """The whole report."""
    parts = [
        f"# {found.title}",
        f"Base: {found.base}. Candidate: {found.candidate}. Deployment: {found.deployment}.",
        f"## Grade {found.grade}",
        _items(found.grade_reasons),
        f"**Missing for one grade higher:**\n\n{_items(found.missing)}" if found.missing else "Nothing is missing.",
        f"**What would refute it:** {found.refuted_by}.",
        f"## {found.advice.title}",
        f"{found.advice.text}.",
        f"Risks:\n\n{_items(found.advice.risks)}" if found.advice.risks else "",
        "## Finding",
        f"{found.finding}.",
        f"Classes: {joined(title_of(name) for name in found.span_classes)}." if found.span_classes else "",
        *_sections(found),
        "## Assumptions and versions",
        _items(tables.versions(found)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(found: Evidence) -> list[str]:
    classes = [part for level in LEVELS for part in _section("", tables.class_times(found, level))]
    return [
        "## Facts",
        noise_text(found) if found.facts else "Nothing was measured.",
        _table(tables.facts(found)),
        *_section("Sampling boundaries", tables.boundaries(found)),
        "## Span classes" if found.classes else "",
        *classes,
        _table(tables.guide(found)),
        *_section("Hypotheses, by simulated effect", tables.hypotheses(found)),
        *_section("Simulated against measured", tables.simulated_beside_measured(found)),
        *_section("Sensitivity", tables.sensitivity(found)),
        *_section("Next experiment", tables.experiments(found)),
        f"Record besides: {joined(tables.record_besides(found))}." if found.experiments else "",
        f"Run length {found.experiments[0].run_basis}." if found.experiments else "",
        "## Not shown" if found.not_shown else "",
        _items(found.not_shown),
        "## Limits" if found.limits else "",
        _items(found.limits),
    ]


def _section(title: str, table: ReportTable) -> list[str]:
    if not table.rows:
        return []
    return [*([f"## {title}"] if title else []), _table(table)]


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _table(table: ReportTable) -> str:
    if not table.rows:
        return ""
    rules = "|".join("---:" if place in table.numeric else "---" for place in range(len(table.head)))
    body = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in table.rows]
    return "\n".join([f"| {' | '.join(table.head)} |", f"|{rules}|", *body])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
