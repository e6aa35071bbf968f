"""Traces whose prompts are named block by block: Mooncake (512 tokens, ms) and Qwen-Bailian (16 tokens, seconds).

Both count from their own start. Equal hashes at the same place mean a shared prefix. Mooncake's clock ticks every 3 s.
Sources: kvcache-ai/Mooncake, alibaba-edu/qwen-bailian-usagetraces-anon (both Apache-2.0).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, each_row, jsonl_rows
from pipelines.ingest.times import RowError, Unit, offset_us, tokens

MOONCAKE_BLOCK_TOKENS = 512
QWEN_BLOCK_TOKENS = 16
KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def _hashes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
        raise RowError("hash_ids", "bad_type", "expected a list of whole numbers")
    return tuple(value)


def _rows(path: Path, source: Source, name: str, unit: Unit, block_tokens: int) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        chat = row.get("chat_id", "")
        return life_records(
            Life(
                deployment=source.named(name),
                request_id=f"{path.stem}:{chat if chat != '' else number}",
                arrived_us=offset_us(cell(row, "timestamp"), "timestamp", unit, source.t0_us),
                isl_tokens=tokens(cell(row, "input_length"), "input_length"),
                osl_tokens=tokens(cell(row, "output_length"), "output_length"),
                traffic_class=str(row.get("type", "")),
                block_hashes=_hashes(cell(row, "hash_ids")),
                hash_block_tokens=block_tokens,
            )
        )

    return each_row(jsonl_rows(path), convert)


def _read_mooncake(path: Path, source: Source) -> Iterator[Outcome]:
    return _rows(path, source, "mooncake", "ms", MOONCAKE_BLOCK_TOKENS)


def _read_qwen(path: Path, source: Source) -> Iterator[Outcome]:
    return _rows(path, source, "qwen-bailian", "s", QWEN_BLOCK_TOKENS)


def _is_list(head: Head) -> bool:
    return head.has_keys(*KEYS) and isinstance(head.json["hash_ids"], list)


MOONCAKE = Format(
    "mooncake", "Mooncake traces", lambda head: _is_list(head) and not head.has_keys("chat_id"), _read_mooncake
)
QWEN_BAILIAN = Format(
    "qwen_bailian", "Qwen-Bailian usage traces", lambda head: _is_list(head) and head.has_keys("chat_id"), _read_qwen
)
