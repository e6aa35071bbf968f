"""A case as one HTML file that needs nothing else: charts are SVG, style and script are inside. Decides no content.

Laws: the page asks for nothing from anywhere; whatever a record holds is text in it, never markup; the same case gives
the same bytes.
"""

import math
from collections.abc import Iterator
from html import escape

import msgspec

from pipelines.incident.case import Case
from pipelines.incident.charts import LEFT, RIGHT, TOP, WIDTH, Chart, svg, x_of
from pipelines.incident.observing import US_PER_S
from pipelines.incident.page_parts import SCRIPT, STYLE
from pipelines.incident.timeline import authority_spans, charts_of
from pipelines.incident.wording import Table, facts, repeat_lines, subtitle, tables, title

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
STRIP_HEIGHT = 26.0
REACH_S = 6.0
"""How far from the cursor a value may lie that is read off."""


def page_of(case: Case) -> bytes:
    """The page, UTF-8."""
    charts = charts_of(case)
    span_s = (case.to_us - case.from_us) / US_PER_S
    day_s = case.from_us / US_PER_S % 86_400
    body = "\n".join(_body(case, charts, span_s, day_s))
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">'
        f"<title>{escape(title(case))}</title><style>{STYLE}</style>"
    )
    series = _series(charts, span_s, day_s)
    script = f'<script type="application/json" id="series">{series}</script><script>{SCRIPT}</script>'
    page = f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>{body}</main>{script}</body></html>\n'
    return page.encode()


def _body(case: Case, charts: list[Chart], span_s: float, day_s: float) -> Iterator[str]:
    yield f'<h1>{escape(title(case))}</h1><p class="sub">{escape(subtitle(case))}</p>'
    yield '<div class="facts">'
    for fact in facts(case):
        yield (
            f'<div class="fact {fact.css}"><span>{escape(fact.label)}</span><b>{escape(fact.value)}</b>'
            f"<span>{escape(fact.detail)}</span></div>"
        )
    yield "</div>"
    listed = tables(case)
    for table in listed[:1]:
        yield _table(table)
    yield "<h2>Timeline</h2>"
    yield _marks(charts[0])
    for chart in charts:
        yield _figure(chart, span_s, day_s)
    yield _strip(case, span_s)
    for table in listed[1:]:
        yield _table(table)
    yield "<h2>The same again</h2><pre>" + escape("\n".join(case.commands)) + "</pre>"
    yield "<pre>" + escape("\n".join(repeat_lines(case))) + "</pre>"


def _marks(chart: Chart) -> str:
    names = {mark.css: mark.name for mark in chart.marks}
    shown = "".join(f'<span><i class="c-{css}"></i>{escape(name)}</span>' for css, name in names.items())
    return f'<div class="legend">{shown}</div>'


def _figure(chart: Chart, span_s: float, day_s: float) -> str:
    lines = [line for line in chart.lines if any(not math.isnan(value) for value in line.values)]
    legend = "".join(f'<span><i class="c-{line.css}"></i>{escape(line.name)}</span>' for line in lines)
    legend += "".join(
        f'<span><i class="box c-{band.css}"></i>{escape(band.name)}</span>' for band in chart.bands if band.at_s
    )
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    named = f"{chart.title} ({chart.unit})" if chart.unit else chart.title
    caption = f'{escape(named)}<span class="legend">{legend}</span><span class="read"></span>'
    return f"<figure><figcaption>{caption}</figcaption>{svg(chart, span_s, day_s)}{note}</figure>"


def _strip(case: Case, span_s: float) -> str:
    """Authority as a strip of coloured spans."""
    parts = []
    for begin_s, end_s, level in authority_spans(case):
        x, width = x_of(begin_s, span_s), x_of(end_s, span_s) - x_of(begin_s, span_s)
        parts.append(f'<rect class="{level}" x="{x:.1f}" y="2" width="{width:.1f}" height="{STRIP_HEIGHT - 4:g}"/>')
        if width > 60:
            parts.append(f'<text class="on" x="{x + 8:.1f}" y="18">{escape(level)}</text>')
    view = f"0 0 {WIDTH:g} {STRIP_HEIGHT:g}"
    return (
        "<figure><figcaption>Authority: what forecasts may be used for</figcaption>"
        f'<svg viewBox="{view}" role="img" aria-label="authority">{"".join(parts)}</svg></figure>'
    )


def _table(table: Table) -> str:
    intro = f'<p class="intro">{escape(table.intro)}</p>' if table.intro else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    if not table.rows:
        return f"<h2>{escape(table.title)}</h2>{intro}{note}"
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        f"<tr{' class=strong' if number in table.strong else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for number, row in enumerate(table.rows)
    )
    return (
        f"<h2>{escape(table.title)}</h2>{intro}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}'
    )


def _series(charts: list[Chart], span_s: float, day_s: float) -> str:
    """Values for the cursor; `<` is escaped, so that no text ends the script."""
    lines = {
        chart.key: [
            {
                "n": line.name,
                "x": [round(at_s, 2) for at_s in line.at_s],
                "y": [_number(value * chart.scale, chart.unit) for value in line.values],
            }
            for line in chart.lines
        ]
        for chart in charts
    }
    data = {
        "lines": lines,
        "span": span_s,
        "start": day_s,
        "width": WIDTH,
        "left": LEFT,
        "right": RIGHT,
        "top": TOP,
        "reach": REACH_S,
    }
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


def _number(value: float, unit: str) -> str | None:
    if math.isnan(value):
        return None
    return "never" if math.isinf(value) else f"{value:.3g} {unit}".strip()
