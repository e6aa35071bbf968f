"""Steps of the recordings as blocks, one engine at a time. Reads files; measures nothing."""

import gzip
import os
from pathlib import Path

import numpy as np
import orjson

from twin.cost.block import StepBlock

ROOT = Path(__file__).parents[2].parent / "shared"
RECORDINGS = Path(os.environ.get("TWINCAST_RECORDINGS", ROOT / "recordings"))
START_US = 1_750_000_000_000_000
"""Where the seconds of a recording are placed on the clock."""


def names() -> list[str]:
    """Recordings at hand, in order; none where the folder is absent."""
    return sorted(path.parent.name for path in RECORDINGS.glob("*/steps.jsonl.gz"))


def engines(name: str) -> dict[int, StepBlock]:
    """Steps per engine of one recording. Event time is the end of the step, rounded to a microsecond."""
    with gzip.open(RECORDINGS / name / "steps.jsonl.gz") as lines:
        rows = [orjson.loads(line) for line in lines]
    found = sorted({row.get("inst", 0) for row in rows})
    return {engine: _block([row for row in rows if row.get("inst", 0) == engine]) for engine in found}


def _block(rows: list[dict[str, float]]) -> StepBlock:
    gap_s = np.full(len(rows), np.nan)
    anchor: float | None = None
    for i, row in enumerate(rows):
        tokens = row["pre_tok"] + row["dec_tok"] > 0
        if anchor is not None and tokens:
            gap_s[i] = row["t0"] - anchor
        left = row["run"] - row["done"] + row["wait"] > 0
        anchor = None if not left else (row["t1"] if tokens else anchor)
    shapes = [[row["pre_reqs"], row["pre_tok"], row["pre_attn"], row["dec_reqs"], row["dec_ctx"]] for row in rows]
    return StepBlock(
        at_us=np.array([START_US + round(row["t1"] * 1e6) for row in rows], dtype=np.int64),
        shapes=np.array(shapes, dtype=np.float64),
        duration_s=np.array([row["dur_ms"] * 1e-3 for row in rows]),
        gap_s=gap_s,
    )
