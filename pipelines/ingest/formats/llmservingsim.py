"""vLLM runs recorded for LLMServingSim: request stamps on two clocks, and the engine's resolved settings.

`arrival_time` is wall time, the engine's stamps are monotonic. The offset between the clocks is one number for the
file, placed so that no request is queued before it arrived and at least one is queued at once; it is never taken from
single rows, whose wait between arrival and queue would vanish.
Source: casys-kaist/LLMServingSim (MIT).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.lines import read_all
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Accepted, Columns, Format, Head, Outcome, Refused, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import RowError, instant_us, number, tokens
from schemas.engines import EngineConfig, Fingerprint

STAMPS = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
KEYS = ("request_id", "input_toks", "output_toks", "arrival_time", *STAMPS)


def clock_offset_us(rows: list[tuple[int, Any]]) -> int:
    """Wall minus monotonic clock, microseconds: the least that lets every request arrive before it is queued.

    >>> rows = [(1, {"arrival_time": 1e9, "queued_ts": 5.0}), (2, {"arrival_time": 1e9 + 1, "queued_ts": 6.5})]
    >>> clock_offset_us(rows)
    999999995000000
    """
    gaps: list[int] = []
    for _, row in rows:
        try:
            queued = number(row["queued_ts"], "queued_ts")
            gaps.append(instant_us(row["arrival_time"], "arrival_time", "s") - round(queued * 1e6))
        except (RowError, KeyError, TypeError):
            continue
    return max(gaps, default=0)


def _matches(head: Head) -> bool:
    return head.has_keys(*KEYS)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    rows = list(jsonl_rows(path))
    offset_us = clock_offset_us(rows)

    def convert(_: int, row: Columns) -> tuple[InputRecord, ...]:
        arrived_us = instant_us(cell(row, "arrival_time"), "arrival_time", "s")
        stamps = [offset_us + round(number(cell(row, name), name) * 1e6) for name in STAMPS]
        for place, (earlier, later) in enumerate(zip([arrived_us, *stamps], stamps, strict=False)):
            if later < earlier:
                raise RowError(STAMPS[place], "negative_duration", f"{earlier - later} us before what comes before it")
        queued_us, scheduled_us, first_us, last_us = stamps
        return life_records(
            Life(
                deployment=source.named("vllm"),
                request_id=str(cell(row, "request_id")),
                arrived_us=arrived_us,
                isl_tokens=tokens(cell(row, "input_toks"), "input_toks"),
                osl_tokens=tokens(cell(row, "output_toks"), "output_toks"),
                ttft_us=first_us - arrived_us,
                e2e_us=last_us - arrived_us,
                engine=source.engine or "0",
                queued_us=queued_us,
                scheduled_us=scheduled_us,
                engine_first_us=first_us,
                engine_last_us=last_us,
            )
        )

    return each_row(rows, convert)


def _read_meta(path: Path, source: Source) -> Iterator[Outcome]:
    try:
        yield Accepted(1, (_engine(msgspec.json.decode(read_all(path)), source),))
    except RowError as error:
        yield Refused(1, error.field, error.reason, error.detail)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        yield Refused(1, str(error)[:80], "missing_field", "expected engine_kwargs, kv_cache, started_at")


def _engine(meta: Any, source: Source) -> EngineConfig:
    arguments, cache, hardware = meta["engine_kwargs"], meta["kv_cache"], meta.get("hardware", {})
    scheduler = meta.get("resolved_config", {}).get("scheduler_config", {})
    graphs = meta.get("resolved_config", {}).get("compilation_config", {}).get("cudagraph_capture_sizes") or []
    return msgspec.convert(
        {
            "record": "engine",
            "deployment": source.named("vllm"),
            "engine": source.engine or "0",
            "at_us": instant_us(meta["started_at"], "started_at", "iso"),
            "block_size_tokens": cache["block_size"],
            "kv_blocks": cache["num_gpu_blocks"],
            "max_num_seqs": arguments["max_num_seqs"],
            "max_num_batched_tokens": arguments["max_num_batched_tokens"],
            "max_model_len_tokens": arguments.get("max_model_len"),
            "enable_prefix_caching": bool(cache.get("enable_prefix_caching", True)),
            "async_scheduling": bool(scheduler.get("async_scheduling", False)),
            "tensor_parallel": arguments.get("tensor_parallel_size", 1),
            "cudagraph_capture_sizes": tuple(graphs),
            "hardware": str(hardware.get("device_name", "")),
            "emits_steps": False,
            "fingerprint": Fingerprint(
                device=str(hardware.get("device_name", "")),
                driver=str(hardware.get("cuda_version", "")),
                engine_version=str(meta.get("vllm_version", "")),
                model=str(meta.get("model", "")),
            ),
        },
        EngineConfig,
        from_attributes=True,
    )


REQUESTS = Format("llmservingsim", "vLLM runs recorded for LLMServingSim", _matches, _read)
META = Format(
    "vllm_meta", "resolved settings of a vLLM run", lambda head: head.has_keys("engine_kwargs", "kv_cache"), _read_meta
)
