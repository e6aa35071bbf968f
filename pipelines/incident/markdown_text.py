"""A case as Markdown: the same tables as the page, and the timeline as a table. Decides no content.

Law: no cell can break out of its table.
"""

import math
from collections.abc import Iterator, Sequence

from pipelines.incident.case import Case
from pipelines.incident.findings import arrival_series
from pipelines.incident.observing import US_PER_S
from pipelines.incident.timeline import NAMES, charts_of, level_of
from pipelines.incident.wording import (
    Table,
    authority_words,
    clock,
    facts,
    latency,
    newest,
    repeat_lines,
    subtitle,
    tables,
    title,
)
from schemas.slos import Metric

ROWS = 24
"""Rows of the timeline."""
_METRICS: tuple[Metric, ...] = ("ttft_s", "tpot_s", "e2e_s")


def markdown_of(case: Case) -> bytes:
    """The text, UTF-8."""
    return ("\n".join(_lines(case)) + "\n").encode()


def _lines(case: Case) -> Iterator[str]:
    yield f"# {_plain(title(case))}\n\n{_plain(subtitle(case))}\n"
    for fact in facts(case):
        yield f"- {_plain(fact.label)}: **{_plain(fact.value)}** ({_plain(fact.detail)})"
    listed = tables(case)
    for table in [*listed[:1], _timeline(case), *listed[1:]]:
        yield from _table(table)
    yield "\n## The same again\n\n```\n" + "\n".join((*case.commands, *repeat_lines(case))) + "\n```"


def _table(table: Table) -> Iterator[str]:
    yield f"\n## {_plain(table.title)}\n"
    if table.intro:
        yield f"{_plain(table.intro)}\n"
    if table.rows:
        yield _row(table.columns)
        yield _row(["---"] * len(table.columns))
        yield from (_row(row) for row in table.rows)
    if table.note:
        yield f"\n{_plain(table.note)}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") or " " for cell in cells) + " |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _timeline(case: Case) -> Table:
    span_s = (case.to_us - case.from_us) // US_PER_S
    step_s = max(math.ceil(span_s / ROWS / 5) * 5, 5)
    series = [arrival_series(case.requests, m, level_of(case, m), case.from_us, case.to_us) for m in _METRICS]
    rate = next(chart for chart in charts_of(case) if chart.key == "rate").lines[1]
    rows = []
    for at_s in range(step_s, span_s + 1, step_s):
        forecast = newest(case.forecasts, case.from_us + at_s * US_PER_S)
        risks = (
            []
            if forecast is None
            else [r.breach_probability for h in forecast.scenarios[0].horizons for r in h.slo_risks]
        )
        rows.append(
            (
                f"{clock(case.from_us + at_s * US_PER_S)} (+{at_s} s)",
                *(latency(float(each.value[at_s])) for each in series),
                f"{max(risks):.0%}" if risks else "–",
                _number(rate.values[at_s], ".1f"),
                _number(_at(case.waiting.tolist(), at_s), ".0f"),
                _number(_at(case.kv_ratio.tolist(), at_s), ".0%"),
                "–" if forecast is None else forecast.authority,
            )
        )
    names = tuple(f"{NAMES[m]} P{level_of(case, m) * 100:g}" for m in _METRICS)
    columns = ("time", *names, "risk forecast", "arrivals /s", "waiting", "KV", "authority")
    return Table("Timeline", columns, tuple(rows), note=f"Authority: {authority_words(case)}.")


def _at(values: Sequence[float], at_s: int) -> float:
    return values[min(at_s, len(values) - 1)]


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)
