"""llmperf results of single requests: latencies and counts, but no times of arrival.

The benchmark keeps `CONCURRENCY` requests in flight, each starting when one ends, so arrivals are reconstructed: they
carry no information about traffic, and the recording says so. Failed requests have latencies that mean nothing.
Source: ray-project/llmperf-leaderboard (Apache-2.0).
"""

import heapq
from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, each_row, json_rows
from pipelines.ingest.times import duration_us, tokens

CONCURRENCY = 5
KEYS = ("ttft_s", "end_to_end_latency_s", "number_input_tokens", "number_output_tokens", "error_code")


def _matches(head: Head) -> bool:
    return head.has_keys(*KEYS)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    free_us = [source.t0_us] * CONCURRENCY

    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        failed = row.get("error_code") is not None
        e2e_us = duration_us(cell(row, "end_to_end_latency_s"), "end_to_end_latency_s")
        ttft_us = None if failed else duration_us(cell(row, "ttft_s"), "ttft_s")
        isl_tokens = tokens(cell(row, "number_input_tokens"), "number_input_tokens")
        osl_tokens = tokens(cell(row, "number_output_tokens"), "number_output_tokens")
        arrived_us = free_us[0]
        records = life_records(
            Life(
                deployment=source.named(path.name.split(".")[0]),
                request_id=f"{path.stem}:{number}",
                arrived_us=arrived_us,
                isl_tokens=isl_tokens,
                osl_tokens=osl_tokens,
                ttft_us=ttft_us,
                e2e_us=e2e_us,
                error=f"{row['error_code']}: {row.get('error_msg', '')}" if failed else "",
            )
        )
        heapq.heapreplace(free_us, arrived_us + e2e_us)
        return records

    return each_row(json_rows(path), convert)


FORMAT = Format(
    "llmperf",
    "llmperf results of single requests",
    _matches,
    _read,
    notes=(f"arrivals are reconstructed from {CONCURRENCY} requests in flight: rates and gaps mean nothing",),
)
