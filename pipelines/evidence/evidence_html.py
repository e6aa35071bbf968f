"""A chain as one self-contained HTML page, light and dark. Asks nobody for anything and runs no script.

Laws: the grade, what it lacks and the refuting experiment stand before the advice; text from files is escaped.
"""

from collections.abc import Iterable
from html import escape as escaped

from pipelines.evidence import evidence_tables as tables
from pipelines.evidence.evidence_charts import Bar, ChangeRow, bars, changes
from pipelines.evidence.evidence_style import STYLE
from pipelines.evidence.evidence_tables import ReportTable
from pipelines.evidence.evidence_words import LEVELS, class_name, compared, effect_name, fact_name, joined, noise_text
from schemas.evidence import Evidence, EvidenceLevel
from twin.evidence.class_guide import title_of

_SIDES = '<p class=legend><span class="key base"></span>base <span class="key candidate"></span>candidate</p>'
_BESIDE = '<p class=legend><span class="key measured"></span>measured <span class="key simulated"></span>simulated</p>'


def html_page(found: Evidence) -> str:
    """The whole page."""
    body = "".join(
        (
            _head(found),
            _verdict(found),
            _facts(found),
            _classes(found),
            _hypotheses(found),
            _sensitivity(found),
            _experiments(found),
            _lists(found),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{_text(found.title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def _head(found: Evidence) -> str:
    return (
        f"<header><h1>{_text(found.title)}</h1><p class=sides>{_text(found.base)} <b>&rarr;</b>"
        f" {_text(found.candidate)}</p></header>"
    )


def _verdict(found: Evidence) -> str:
    """Grade, missing, refuting experiment; then the advice."""
    missing = _items(found.missing) if found.missing else "<p>Nothing.</p>"
    risks = f"<h3>Risks</h3>{_items(found.advice.risks)}" if found.advice.risks else ""
    names = _text(joined(map(title_of, found.span_classes)))
    classes = f"<p class=quiet>Classes: {names}</p>" if found.span_classes else ""
    kind = "good" if found.advice.title == "Recommendation" else "open"
    letter = f'<div class="letter g{found.grade}" title="grade {found.grade}">{found.grade}</div>'
    finding = f"<p class=finding>{_text(_sentence(found.finding))}</p>"
    return (
        f'<section class="card grade">{letter}<div>{finding}{classes}{_items(found.grade_reasons)}</div></section>'
        f'<section class="pair"><div class=card><h2>Missing for one grade higher</h2>{missing}</div>'
        f"<div class=card><h2>What would refute it</h2><p>{_text(_sentence(found.refuted_by))}</p></div></section>"
        f'<section class="card advice {kind}"><h2>{_text(found.advice.title)}</h2>'
        f"<p>{_text(_sentence(found.advice.text))}</p>{risks}</section>"
    )


def _facts(found: Evidence) -> str:
    if not found.facts:
        return "<section><h2>Facts</h2><p class=quiet>Nothing was measured.</p></section>"
    told = [fact for fact in found.facts if fact.low_ratio is not None] or found.facts
    rows = [
        ChangeRow(fact_name(fact), (fact.change_ratio, fact.low_ratio, fact.high_ratio))
        for fact in told
        if fact.change_ratio is not None
    ]
    chart = _figure(changes(rows, found.noise_floor_ratio, "changes of facts"))
    sampled = tables.boundaries(found)
    events = (
        "<h3>Sampling boundaries</h3><p class=quiet>A window's length is never a request's latency. Events are"
        f" requests, steps or kernels.</p>{_table(sampled)}"
        if sampled.rows
        else ""
    )
    noise = f"<p class=quiet>{_text(noise_text(found))}</p>"
    return f"<section><h2>Facts</h2>{noise}{chart}{_table(tables.facts(found))}{events}</section>"


def _classes(found: Evidence) -> str:
    if not found.classes:
        return ""
    parts = []
    for level in LEVELS:
        table = tables.class_times(found, level)
        if table.rows:
            parts.append(f"<h3>{level} level</h3>{_figure(_class_chart(found, level))}{_table(table)}")
    return f"<section><h2>Span classes</h2>{_SIDES}{''.join(parts)}{_table(tables.guide(found))}</section>"


def _class_chart(found: Evidence, level: EvidenceLevel) -> str:
    known = [
        Bar(class_name(row), row.base, row.candidate, row.unit)
        for row in found.classes
        if row.level == level and row.base is not None and row.candidate is not None
    ]
    return bars(known, f"class times, {level} level")


def _hypotheses(found: Evidence) -> str:
    if not found.hypotheses:
        return "<section><h2>Hypotheses</h2><p class=quiet>No difference between the sides gives one.</p></section>"
    return f"<section><h2>Hypotheses, by simulated effect</h2>{_table(tables.hypotheses(found))}</section>"


def _sensitivity(found: Evidence) -> str:
    parts = []
    if compared(found):
        rows = [
            ChangeRow(
                effect_name(effect),
                (effect.observed_ratio or 0.0, effect.observed_low_ratio, effect.observed_high_ratio),
                None if effect.change_ratio is None else (effect.change_ratio, effect.low_ratio, effect.high_ratio),
            )
            for effect in compared(found)
        ]
        chart = _figure(changes(rows, None, "simulated and measured changes"))
        table = _table(tables.simulated_beside_measured(found))
        parts.append(f"<h2>Simulated against measured</h2>{_BESIDE}{chart}{table}")
    alone = tables.sensitivity(found)
    if alone.rows:
        parts.append(f"<h2>Sensitivity</h2>{_table(alone)}")
    return f"<section>{''.join(parts)}</section>" if parts else ""


def _experiments(found: Evidence) -> str:
    if not found.experiments:
        return ""
    record = f"<p>Record besides: {_text(joined(tables.record_besides(found)))}.</p>"
    basis = f"<p class=quiet>Run length {_text(found.experiments[0].run_basis)}.</p>"
    return f"<section><h2>Next experiment</h2>{record}{_table(tables.experiments(found))}{basis}</section>"


def _lists(found: Evidence) -> str:
    parts = [
        f"<h2>{title}</h2>{_items(texts)}"
        for title, texts in (("Not shown", found.not_shown), ("Limits", found.limits))
        if texts
    ]
    told = _items(tables.versions(found))
    parts.append(f"<details><summary>Assumptions and versions</summary>{told}</details>")
    return f"<section>{''.join(parts)}</section>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in texts)}</ul>"


def _table(table: ReportTable) -> str:
    if not table.rows:
        return ""

    def cell(tag: str, place: int, text: str) -> str:
        kind = ' class="n"' if place in table.numeric else ""
        return f"<{tag}{kind}>{_text(text)}</{tag}>"

    top = "".join(cell("th", place, text) for place, text in enumerate(table.head))
    rows = ("".join(cell("td", place, text) for place, text in enumerate(row)) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>" if svg else ""


def _text(text: str) -> str:
    return escaped(text.replace("->", "\N{RIGHTWARDS ARROW}").replace("<=", "\N{LESS-THAN OR EQUAL TO}"))


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""
