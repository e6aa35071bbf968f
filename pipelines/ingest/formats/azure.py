"""Azure LLM inference traces 2023, 2024 and the multimodal one of 2025: arrivals and token counts, no latencies.

Timestamps: 2023 naive with seven digits, 2024 with an offset, 2025 ISO with Z and milliseconds. The naive ones take
the declared zone (UTC unless told otherwise).
Source: Azure/AzurePublicDataset (CC-BY-4.0).
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, csv_rows, each_row
from pipelines.ingest.times import instant_us, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _matches(head: Head) -> bool:
    return head.has_columns(*COLUMNS)


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(number: int, row: Columns) -> tuple[InputRecord, ...]:
        images = tokens(row["NumImages"], "NumImages", text=True) if "NumImages" in row else 0
        return life_records(
            Life(
                deployment=source.named("azure"),
                request_id=f"{path.stem}:{number}",
                arrived_us=instant_us(
                    cell(row, "TIMESTAMP"), "TIMESTAMP", source.unit or "iso", source.zone, text=True
                ),
                isl_tokens=tokens(cell(row, "ContextTokens"), "ContextTokens", text=True),
                osl_tokens=tokens(cell(row, "GeneratedTokens"), "GeneratedTokens", text=True),
                traffic_class="images" if images else "",
            )
        )

    return each_row(csv_rows(path, required=COLUMNS), convert)


FORMAT = Format("azure", "Azure LLM inference traces 2023, 2024, multimodal 2025", _matches, _read)
