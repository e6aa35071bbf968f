"""Metrics pages of vLLM or SGLang kept in files: pages with a time (one JSON object per line), or one page as text.

A JSON line holds `t` (seconds from the start), `port` and `lines`. A page of text holds no time: it is placed at the
declared start, and a second one needs a second file.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.engine_metrics import engine_stats
from pipelines.ingest.lines import read_lines
from pipelines.ingest.prometheus import parse_scrape
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Accepted, Columns, Format, Outcome, Refused, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import RowError, offset_us


def _read_pages(path: Path, source: Source) -> Iterator[Outcome]:
    ports: dict[object, str] = {}

    def convert(_: int, row: Columns) -> tuple[InputRecord, ...]:
        lines = cell(row, "lines")
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise RowError("lines", "bad_type", "expected a list of text lines")
        at_us = offset_us(cell(row, "t"), "t", "s", source.t0_us)
        engine = source.engine or ports.setdefault(str(row.get("port", "")), str(len(ports)))
        found = engine_stats(parse_scrape(lines).samples, source.named("vllm"), engine, at_us)
        if not found:
            raise RowError("lines", "no_known_metric", "none of vLLM's or SGLang's metrics is in it")
        return found

    return each_row(jsonl_rows(path), convert)


def _read_text(path: Path, source: Source) -> Iterator[Outcome]:
    lines = [(number, line.decode("utf-8", errors="replace")) for number, line in read_lines(path)]
    scrape = parse_scrape(line for _, line in lines)
    found = engine_stats(scrape.samples, source.named("vllm"), source.engine or "0", source.t0_us)
    if found:
        yield Accepted(lines[0][0], found)
    else:
        yield Refused(1, "", "no_known_metric", "none of vLLM's or SGLang's metrics is in it")


PAGES = Format(
    "metrics_pages", "metrics pages with times, one per line", lambda h: h.has_keys("t", "port", "lines"), _read_pages
)
TEXT = Format(
    "metrics_text",
    "one metrics page of vLLM or SGLang as text",
    lambda head: any(line.startswith(("# HELP vllm:", "# HELP sglang:", "vllm:", "sglang:")) for line in head.lines),
    _read_text,
)
