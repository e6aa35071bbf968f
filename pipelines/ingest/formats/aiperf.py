"""AIPerf (and GenAI-Perf's successor format) `profile_export.jsonl`: one line per request, times in ns of the epoch.

Metrics are plain numbers or objects with a unit. Cancelled and failed requests give no latency. Warm-up is refused.
Reference: NVIDIA AIPerf docs, "Working with profile export files".
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import RowError, Unit, duration_us, instant_us, tokens

_UNITS: dict[str, Unit] = {"ms": "ms", "s": "s", "sec": "s", "us": "us", "ns": "ns"}


def _matches(head: Head) -> bool:
    return head.has_keys("metadata", "metrics") and "request_start_ns" in (head.json["metadata"] or {})


def _metric(metrics: Columns, name: str) -> tuple[Any, str]:
    found = metrics.get(name)
    if isinstance(found, dict):
        return found.get("value"), str(found.get("unit") or "ms")
    return found, "ms"


def _latency_us(metrics: Columns, name: str) -> int | None:
    value, unit = _metric(metrics, name)
    if value is None:
        return None
    if unit not in _UNITS:
        raise RowError(name, "unknown_unit", f"{unit}; expected one of {', '.join(_UNITS)}")
    return duration_us(value, name, _UNITS[unit])


def _convert(path: Path, source: Source, number: int, row: Columns) -> tuple[InputRecord, ...]:
    metadata, metrics = cell(row, "metadata"), cell(row, "metrics")
    if not isinstance(metadata, dict) or not isinstance(metrics, dict):
        raise RowError("metadata", "bad_type", "metadata and metrics must be objects")
    if metadata.get("benchmark_phase") == "warmup":
        raise RowError("metadata.benchmark_phase", "warmup", "warm-up requests are no traffic")
    start_us = instant_us(cell(metadata, "request_start_ns"), "request_start_ns", "ns")
    error = row.get("error")
    failed = "cancelled" if metadata.get("was_cancelled") else str(error)[:200] if error else ""
    e2e_us = _latency_us(metrics, "request_latency")
    if e2e_us is None and metadata.get("request_end_ns") is not None:
        e2e_us = max(0, instant_us(metadata["request_end_ns"], "request_end_ns", "ns") - start_us)
    osl, _ = _metric(metrics, "output_sequence_length")
    isl, _ = _metric(metrics, "input_sequence_length")
    if isl is None and not failed:
        raise RowError("metrics.input_sequence_length", "missing_field", "is not in the row")
    return life_records(
        Life(
            deployment=source.named(str(metadata.get("model") or "aiperf")),
            request_id=str(metadata.get("x_request_id") or f"{path.stem}:{number}"),
            arrived_us=start_us,
            isl_tokens=0 if isl is None else tokens(isl, "input_sequence_length"),
            osl_tokens=0 if osl is None else tokens(osl, "output_sequence_length"),
            ttft_us=None if failed else _latency_us(metrics, "time_to_first_token"),
            e2e_us=e2e_us,
            engine=source.engine,
            session_id=str(metadata.get("x_correlation_id") or metadata.get("conversation_id") or ""),
            error=failed,
        )
    )


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    return each_row(jsonl_rows(path), lambda number, row: _convert(path, source, number, row))


FORMAT = Format("aiperf", "AIPerf per-request exports", _matches, _read)
