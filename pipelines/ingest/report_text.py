"""An import report as lines of text for a person. Decides nothing, prints nothing.

Law: the lines name every file with rows in = rows out + refused, and say "not told" where a number cannot be had.
"""

from collections.abc import Iterator

from pipelines.ingest.importing import FileReport, ImportReport
from pipelines.ingest.traffic_statistics import Spread, TrafficStatistics

NOT_TOLD = "not told"


def report_lines(report: ImportReport) -> Iterator[str]:
    """Files, then traffic per deployment, then notes and where it was written."""
    for file in report.files:
        yield from _file_lines(file)
    for statistics in report.statistics:
        yield from _traffic_lines(statistics)
    for note in report.notes:
        yield f"note: {note}"
    if report.out is not None:
        yield f"written: {report.out}"


def _file_lines(file: FileReport) -> Iterator[str]:
    became = ", ".join(f"{many:,} {kind}" for kind, many in file.records.items()) or "nothing"
    refused = sum(file.refused.values())
    known = file.format or "no known format"
    yield f"{file.path} [{known}]: {file.rows_in:,} rows in, {file.rows_out:,} out ({became})"
    if refused:
        reasons = ", ".join(f"{many:,} {reason}" for reason, many in file.refused.items())
        yield f"  {refused:,} rows refused: {reasons}"
    for example in file.examples:
        where = f"row {example.row}" + (f" field {example.field}" if example.field else "")
        yield f"  {file.path.name} {where}: {example.reason}: {example.detail}"
    for oddity in file.oddities:
        yield f"  odd: {oddity}"


def _traffic_lines(found: TrafficStatistics) -> Iterator[str]:
    rate = NOT_TOLD if found.rate_per_s is None else f"{found.rate_per_s:.3f}/s"
    cv = NOT_TOLD if found.gap_cv is None else f"{found.gap_cv:.2f}"
    yield (
        f"{found.deployment}: {found.requests:,} requests in {found.span_s:,.1f} s, {rate}, "
        f"peak {found.peak_per_minute:,}/min, CV of gaps {cv}"
    )
    if found.failures or found.rejected:
        yield f"  {found.failures:,} failed, {found.rejected:,} rejected"
    for name, spread, unit in (
        ("ISL", found.isl_tokens, "tokens"),
        ("OSL", found.osl_tokens, "tokens"),
        ("TTFT", found.ttft_s, "s"),
        ("TTFT from engine queue", found.engine_ttft_s, "s"),
        ("TPOT", found.tpot_s, "s"),
        ("E2E", found.e2e_s, "s"),
        ("E2E from engine queue", found.engine_e2e_s, "s"),
    ):
        if spread is not None:
            yield f"  {name} {_spread(spread, unit)}"
    if found.prefix_reuse_ratio is not None:
        yield f"  prompt blocks that an unbounded prefix cache would hold: {found.prefix_reuse_ratio:.1%}"


def _spread(spread: Spread, unit: str) -> str:
    p50, p90, p95, p99 = (f"{value:.5g}" for value in spread.quantiles)
    return f"mean {spread.mean:.5g} {unit}, P50 {p50}, P90 {p90}, P95 {p95}, P99 {p99}, max {spread.highest:.5g}"
