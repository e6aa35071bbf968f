"""BurstGPT 1 to 3: seconds from the trace's start, model, token counts; version 3 adds session and elapsed time.

Responses of zero tokens are failures. Elapsed time has a resolution of one second: a zero there is no latency.
Source: HPMLL/BurstGPT (CC-BY-4.0).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, csv_rows, each_row
from pipelines.ingest.times import duration_us, offset_us, tokens

COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens")


def _matches(head: Head) -> bool:
    return head.has_columns(*COLUMNS)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        unit = "s" if source.unit in (None, "iso", "auto") else source.unit
        elapsed = row.get("Elapsed time")
        return life_records(
            Life(
                deployment=source.named(str(cell(row, "Model"))),
                request_id=f"{path.stem}:{number}",
                arrived_us=offset_us(cell(row, "Timestamp"), "Timestamp", unit, source.t0_us, text=True),
                isl_tokens=tokens(cell(row, "Request tokens"), "Request tokens", text=True),
                osl_tokens=tokens(cell(row, "Response tokens"), "Response tokens", text=True),
                e2e_us=None if elapsed is None else duration_us(elapsed, "Elapsed time", text=True),
                session_id=str(row.get("Session ID", "")),
                traffic_class=str(row.get("Log Type", "")),
            )
        )

    return each_row(csv_rows(path, required=COLUMNS), convert)


FORMAT = Format("burstgpt", "BurstGPT, old and new headers", _matches, _read)
