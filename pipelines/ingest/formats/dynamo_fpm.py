"""Dynamo forward-pass metrics, version 1: one JSON object per step of one rank of one worker.

`wall_time` (s) is the step's duration; 0 is an idle heartbeat. `counter_id` numbers the steps. The message itself has
no time: `observed_at_unix_ms` or `_recv_ts` (s) of the recorder tells when the step ended; without either the row is
refused. Variances are not used: attention pairs cannot be had from them.
Reference: ai-dynamo/dynamo, forward_pass_metrics (schema version 1).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Outcome, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import RowError, duration_us, instant_us, tokens
from schemas.steps import Step, StepBatch

VERSION = 1


def _part(row: Columns, name: str) -> Columns:
    found = cell(row, name)
    if not isinstance(found, dict):
        raise RowError(name, "bad_type", "expected an object of counts")
    return found


def fpm_step(row: Columns, ended_us: int) -> Step:
    """One message as a step that ended at `ended_us`. Raises RowError for a wrong field."""
    if row.get("version", VERSION) != VERSION:
        raise RowError("version", "schema_version", f"{row['version']!r}; this program reads version {VERSION}")
    wall_us = duration_us(cell(row, "wall_time"), "wall_time")
    scheduled = _part(row, "scheduled_requests")
    queued = row.get("queued_requests")
    waiting = queued if isinstance(queued, dict) else {}
    decodes = tokens(scheduled.get("num_decode_requests", 0), "num_decode_requests")
    prefills = tokens(scheduled.get("num_prefill_requests", 0), "num_prefill_requests")
    return Step(
        step=tokens(row.get("counter_id", 0), "counter_id"),
        start_us=ended_us - wall_us,
        duration_us=wall_us,
        prefill_requests=prefills,
        prefill_tokens=tokens(scheduled.get("sum_prefill_tokens", 0), "sum_prefill_tokens"),
        prefill_context_tokens=tokens(scheduled.get("sum_prefill_kv_tokens", 0), "sum_prefill_kv_tokens"),
        decode_requests=decodes,
        decode_context_tokens=tokens(scheduled.get("sum_decode_kv_tokens", 0), "sum_decode_kv_tokens"),
        waiting=sum(
            tokens(waiting.get(f"num_{kind}_requests", 0), f"num_{kind}_requests") for kind in ("prefill", "decode")
        ),
        running=prefills + decodes,
    )


def _ended_us(row: Columns) -> int:
    if "observed_at_unix_ms" in row:
        return instant_us(row["observed_at_unix_ms"], "observed_at_unix_ms", "ms")
    if "_recv_ts" in row:
        return instant_us(row["_recv_ts"], "_recv_ts", "s", text=True)
    raise RowError("observed_at_unix_ms", "missing_field", "no time in the row: neither this nor _recv_ts")


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(_: int, row: Columns) -> tuple[InputRecord, ...]:
        if row.get("wall_time") == 0:
            raise RowError("wall_time", "heartbeat", "an idle heartbeat, no step")
        worker = str(row.get("worker_id") or "0")
        rank = row.get("dp_rank", 0)
        step = fpm_step(row, _ended_us(row))
        engine = source.engine or (f"{worker}.{rank}" if rank else worker)
        return (StepBatch(deployment=source.named("dynamo"), engine=engine, steps=(step,)),)

    return each_row(jsonl_rows(path), convert)


FORMAT = Format(
    "dynamo_fpm",
    "Dynamo forward-pass metrics, version 1",
    lambda head: head.has_keys("wall_time", "scheduled_requests"),
    _read,
)
