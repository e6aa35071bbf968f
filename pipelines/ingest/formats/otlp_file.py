"""Spans in files: the Collector's file exporter (one export request per line), and spans recorded one per line.

Both are joined by trace over the whole file; a span that is no request and belongs to none is refused as such.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.ingest.join import SpanJoiner
from pipelines.ingest.lines import read_lines
from pipelines.ingest.otlp import Attributes, Span, flatten
from pipelines.ingest.rows import Accepted, Format, Head, Outcome, Refused, Source
from pipelines.ingest.span_mapping import SpanMapping, read_mapping
from pipelines.ingest.spans import WANTED, is_request, is_stage
from schemas.codec import SchemaError, schema_error
from schemas.topics import OTLP_SPANS

MAPPING_FILE = "spans.toml"


class _Recorded(msgspec.Struct, frozen=True):
    name: str
    trace_id: str
    span_id: str
    start_ns: int
    end_ns: int
    parent_span_id: str | None = None
    scope: str = ""
    status: str = ""
    attrs: dict[str, Any] = {}
    resource: dict[str, Any] = {}


def _mapping(path: Path) -> SpanMapping:
    beside = path.with_name(MAPPING_FILE)
    return read_mapping(beside) if beside.exists() else SpanMapping()


def _scalars(values: dict[str, Any]) -> Attributes:
    return {key: value for key, value in values.items() if isinstance(value, str | int | float | bool)}


def _recorded(line: bytes) -> list[Span]:
    try:
        row = msgspec.json.decode(line, type=_Recorded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise schema_error(OTLP_SPANS.name, line, error) from None
    parent = row.parent_span_id or ""
    failed = row.status == "ERROR"
    return [
        Span(
            row.name,
            row.trace_id,
            row.span_id,
            parent,
            row.start_ns,
            row.end_ns,
            failed,
            _scalars(row.attrs),
            _scalars(row.resource),
            row.scope,
        )
    ]


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    mapping = _mapping(path)
    wanted = WANTED | mapping.keys
    rows: dict[int, tuple[int, Span]] = {}
    for number, line in read_lines(path):
        try:
            if b'"resourceSpans"' in line:
                found = flatten(line, wanted)
                for index, error in found.refused:
                    yield Refused(number, f"span {index} {error.where}", error.reason, error.detail)
                spans = list(found.spans)
            else:
                spans = _recorded(line)
        except SchemaError as error:
            yield Refused(number, error.where, error.reason, error.detail)
            continue
        for span in spans:
            if is_request(span) or is_stage(span) or span.name == mapping.frontend_span:
                rows[id(span)] = (number, span)
            else:
                yield Refused(number, "name", "no_request", f"span {span.name[:60]!r} tells nothing of a request")
    yield from _joined(rows, mapping, source)


def _joined(rows: dict[int, tuple[int, Span]], mapping: SpanMapping, source: Source) -> Iterator[Outcome]:
    joiner = SpanJoiner(mapping, max_traces=max(1, len(rows)))
    spans = [span for _, span in rows.values()]
    by_span = {(span.trace_id, span.span_id): number for number, span in rows.values()}
    records = []
    refused = []
    for joined in (joiner.add(spans), joiner.flush()):
        records += joined.records
        refused += joined.refused
    for span, error in refused:
        yield Refused(by_span[span.trace_id, span.span_id], error.where, error.reason, error.detail)
    used = joiner.counts["used"]
    numbers = sorted(number for number, _ in rows.values())
    named = [
        msgspec.structs.replace(
            record, deployment=source.deployment or record.deployment, engine=source.engine or record.engine
        )
        for record in records
    ]
    for place in range(used):
        yield Accepted(numbers[place], (named[place],) if place < len(named) else ())
    for place in range(joiner.counts["orphan"]):
        yield Refused(numbers[used + place], "trace_id", "orphan", "its request is not in the file")


def _matches(head: Head) -> bool:
    return head.has_keys("resourceSpans") or head.has_keys("trace_id", "span_id", "start_ns", "end_ns", "attrs")


FORMAT = Format("otlp_spans", "OTLP spans, one export request or one span per line", _matches, _read)
