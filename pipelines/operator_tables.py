"""Public profiles of operators as rows of `Measured`: LLMServingSim's and Vidur's CSV files. Interprets no row.

Law: a file ends as rows or as one `ConfigError` that names file, line and column; never as a part of its rows.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import ConfigError
from twin.cost.shape import StepShape
from twin.cost.tables import Measured

VIDUR_KINDS = {
    "emb": "embedding",
    "input_layernorm": "layernorm",
    "attn_pre_proj": "qkv_proj",
    "attn_rope": "rotary_emb",
    "attn_post_proj": "o_proj",
    "post_attention_layernorm": "layernorm",
    "mlp_up_proj": "gate_up_proj",
    "mlp_act": "act_fn",
    "mlp_down_proj": "down_proj",
    "add": "add",
}
"""Vidur's operator names against vLLM's, which are used here."""


def read_llmservingsim(directory: Path) -> list[Measured]:
    """Rows of one profile: `dense.csv`, `per_sequence.csv` and `attention.csv` of a directory, times in us there."""
    rows = [
        Measured(row.text("layer"), _tokens(row.whole("tokens")), row.seconds("time_us", 1e-6))
        for row in _rows(directory / "dense.csv")
    ]
    rows += [
        Measured(row.text("layer"), StepShape(decode_requests=row.whole("sequences")), row.seconds("time_us", 1e-6))
        for row in _rows(directory / "per_sequence.csv")
    ]
    for row in _rows(directory / "attention.csv"):
        chunk, before = row.whole("prefill_chunk"), row.whole("kv_prefill")
        sequences, context = row.whole("n_decode"), row.whole("kv_decode")
        pairs = chunk * before + chunk * (chunk + 1) // 2
        shape = StepShape(int(chunk > 0), chunk, pairs, sequences, sequences * context)
        rows.append(Measured("attention", shape, row.seconds("time_us", 1e-6)))
    return rows


def read_vidur_mlp(path: Path) -> dict[tuple[int, str], list[Measured]]:
    """Rows of `mlp.csv` by (tensor parallel devices, Vidur's operator name); medians, in ms there."""
    clusters: dict[tuple[int, str], list[Measured]] = {}
    for row in _rows(path):
        tensor, shape = row.whole("num_tensor_parallel_workers"), _tokens(row.whole("num_tokens"))
        for name, kind in VIDUR_KINDS.items():
            measured = Measured(kind, shape, row.seconds(f"time_stats.{name}.median", 1e-3))
            clusters.setdefault((tensor, name), []).append(measured)
    return clusters


def read_vidur_send_recv(path: Path) -> dict[int, list[tuple[int, float]]]:
    """(bytes, median seconds) of `send_recv.csv` by devices per node: 1 crosses nodes, 2 stays in one."""
    links: dict[int, list[tuple[int, float]]] = {}
    for row in _rows(path):
        message = row.whole("size"), row.seconds("time_stats.send_recv.median", 1e-3)
        links.setdefault(row.whole("devices_per_node"), []).append(message)
    return links


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a CSV file, checked cell by cell."""

    path: Path
    line: int
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """A cell. Raises ConfigError if the column is missing."""
        value = self.cells.get(column)
        if not value:
            raise ConfigError(f"{self.path}, line {self.line}: column {column} is missing; give a profile that has it")
        return value

    def whole(self, column: str) -> int:
        """A cell as a whole number >= 0."""
        text = self.text(column)
        if not text.isdecimal():
            raise ConfigError(f"{self.path}, line {self.line}: {column} must be a whole number >= 0, got {text!r}")
        return int(text)

    def seconds(self, column: str, unit_s: float) -> float:
        """A cell as seconds > 0."""
        text = self.text(column)
        try:
            value = float(text) * unit_s
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"{self.path}, line {self.line}: {column} must be a finite number > 0, got {text!r}")
        return value


def _rows(path: Path) -> Iterator[_Row]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for cells in (reader := csv.DictReader(file)):
                yield _Row(path, reader.line_num, cells)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give the directory of a profile") from error


def _tokens(count: int) -> StepShape:
    return StepShape(prefill_requests=1, prefill_tokens=count, prefill_attention_pairs=count * (count + 1) // 2)
