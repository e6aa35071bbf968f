"""Client logs of BurstGPT replayed against vLLM: `detail_log*.json`, one object per request, one monotonic clock.

`out_len` counts characters of the returned text, prompt included, not tokens, so the end of a request cannot be told:
only its arrival is taken (finish minus total time). Times are seconds on a clock that counts from boot; the engine's
and the device's logs of the same run share it.
Source: liao4s/BurstGPT_test (MIT).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, each_row, json_rows
from pipelines.ingest.times import duration_us, offset_us, tokens
from schemas.requests import RequestArrived


def _matches(head: Head) -> bool:
    first = next(iter(head.json.values()), None) if isinstance(head.json, dict) else None
    return isinstance(first, dict) and {"event_id", "sampled_in_num", "record_time"} <= set(first)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        ended_us = offset_us(cell(row, "record_time"), "record_time", "s", source.t0_us)
        arrived = RequestArrived(
            deployment=source.named("burstgpt-replay"),
            request_id=f"{path.stem}:{cell(row, 'event_id')}",
            at_us=ended_us - duration_us(cell(row, "total_chunk_time"), "total_chunk_time"),
            engine=source.engine,
            isl_tokens=tokens(cell(row, "sampled_in_num"), "sampled_in_num"),
        )
        return (arrived,)

    return each_row(json_rows(path), convert)


FORMAT = Format(
    "burstgpt_replay",
    "client logs of BurstGPT replays on vLLM",
    _matches,
    _read,
    notes=("out_len counts characters, not tokens: arrivals only, no ends",),
)
