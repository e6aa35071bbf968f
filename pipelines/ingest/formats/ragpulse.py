"""RAGPulse: requests of a retrieval-augmented service, seconds as strings, sessions, parts of the prompt by hash.

The parts (system prompt, passages, history, web, question) are reused but do not form prefix blocks of one size, so no
block hashes are taken from them. The side tables give the length of each part; they hold no requests.
Source: flashserve/RAGPulse (MIT).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import offset_us, tokens


def _matches(head: Head) -> bool:
    return head.has_keys("timestamp", "session_id", "hash_ids") and isinstance(head.json["hash_ids"], dict)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        return life_records(
            Life(
                deployment=source.named("ragpulse"),
                request_id=f"{path.stem}:{number}",
                arrived_us=offset_us(cell(row, "timestamp"), "timestamp", "s", source.t0_us, text=True),
                isl_tokens=tokens(cell(row, "input_length"), "input_length"),
                osl_tokens=tokens(cell(row, "output_length"), "output_length"),
                session_id=str(row.get("session_id", "")),
            )
        )

    return each_row(jsonl_rows(path), convert)


FORMAT = Format("ragpulse", "RAGPulse request trace", _matches, _read)
