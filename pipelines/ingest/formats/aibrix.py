"""AIBrix multi-round question answering results: launch (epoch seconds), TTFT and generation time in seconds.

Rows are in order of completion, not of launch. Token counts are written as floats. `finish_time` must equal launch
plus both durations within a millisecond.
Source: vllm-project/aibrix (Apache-2.0).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, csv_rows, each_row
from pipelines.ingest.times import RowError, duration_us, instant_us, tokens

COLUMNS = ("prompt_tokens", "generation_tokens", "ttft", "generation_time", "launch_time", "finish_time")
TOLERANCE_US = 1_000


def _matches(head: Head) -> bool:
    return head.has_columns(*COLUMNS)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        arrived_us = instant_us(cell(row, "launch_time"), "launch_time", source.unit or "s", text=True)
        ended_us = instant_us(cell(row, "finish_time"), "finish_time", source.unit or "s", text=True)
        ttft_us = duration_us(cell(row, "ttft"), "ttft", text=True)
        e2e_us = ttft_us + duration_us(cell(row, "generation_time"), "generation_time", text=True)
        if abs(arrived_us + e2e_us - ended_us) > TOLERANCE_US:
            raise RowError(
                "finish_time", "contradiction", f"{arrived_us + e2e_us - ended_us} us from launch + durations"
            )
        return life_records(
            Life(
                deployment=source.named("aibrix"),
                request_id=f"{path.stem}:{number}",
                arrived_us=arrived_us,
                isl_tokens=tokens(cell(row, "prompt_tokens"), "prompt_tokens", text=True),
                osl_tokens=tokens(cell(row, "generation_tokens"), "generation_tokens", text=True),
                ttft_us=ttft_us,
                e2e_us=e2e_us,
                engine=source.engine,
                session_id=str(row.get("user_id", "")),
            )
        )

    return each_row(csv_rows(path, required=COLUMNS), convert)


FORMAT = Format("aibrix", "AIBrix benchmark results, one row per request", _matches, _read)
