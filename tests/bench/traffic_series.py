"""Real and made arrival series for traffic benchmarks: times and lengths, nothing else. Reads ../shared."""

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from twin.metrics import FloatArray, IntArray

SHARED = Path(__file__).resolve().parents[3] / "shared"


@dataclass(frozen=True, slots=True)
class Series:
    """n requests in order of arrival: seconds from the first one, tokens, seconds at which they ended."""

    name: str
    arrived_s: FloatArray
    isl_tokens: IntArray
    osl_tokens: IntArray
    ended_s: FloatArray


def all_series() -> Iterator[Series]:
    """Recordings and public traces that are here, then one made series so that there is always one."""
    recordings = SHARED / "recordings"
    for folder in sorted(recordings.glob("*/requests.jsonl.gz")) if recordings.is_dir() else ():
        yield _recording(folder)
    for kind in ("conv", "code"):
        path = SHARED / "data" / "azure_llm_2023" / f"AzureLLMInferenceTrace_{kind}.first30min.csv"
        if path.is_file():
            yield _azure(path, f"azure_{kind}")
    path = SHARED / "data" / "mooncake" / "conversation_trace.first30min.jsonl"
    if path.is_file():
        yield _mooncake(path)
    yield made()


def made(seed: int = 1) -> Series:
    """Twenty minutes: bursts of Gamma gaps with CV 3 whose rate rises from 4 to 10 per second and falls again."""
    rng = np.random.default_rng(seed)
    unit = np.cumsum(rng.gamma(1 / 9, 9.0, 40_000))
    grid = np.linspace(0.0, 1_200.0, 1_201)
    load = np.concatenate(([0.0], np.cumsum(4.0 + 6.0 * np.sin(np.pi * grid[1:] / 1_200.0))))
    times = np.interp(unit[unit < load[-1]], load, grid)
    isl = np.clip(rng.lognormal(5.2, 0.8, times.size), 1, 5_000).astype(np.int64)
    return _series("made_bursty_ramp", times, isl, rng.geometric(1 / 48, times.size).astype(np.int64))


def _series(name: str, times_s: FloatArray, isl: IntArray, osl: IntArray) -> Series:
    """Where the source has no ends: half a second and 20 ms per token."""
    order = np.argsort(times_s, kind="stable")
    times_s, isl, osl = times_s[order] - times_s.min(), np.maximum(isl[order], 1), np.maximum(osl[order], 1)
    return Series(name, times_s, isl, osl, times_s + 0.5 + 0.02 * osl)


def _recording(path: Path) -> Series:
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    times = np.array([row["t_arr"] for row in rows])
    ends = np.array([row["t_last"] or row["t_arr"] for row in rows])
    isl, osl = (np.array([row[name] for row in rows], np.int64) for name in ("n_prompt", "n_out"))
    return Series(path.parent.name, times - times[0], isl, osl, ends - times[0])


def _azure(path: Path, name: str) -> Series:
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    columns = [np.array([int(row[key]) for row in rows], np.int64) for key in ("ContextTokens", "GeneratedTokens")]
    return _series(name, np.array(times), *columns)


def _mooncake(path: Path) -> Series:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line]
    columns = [np.array([row[key] for row in rows], np.int64) for key in ("input_length", "output_length")]
    return _series("mooncake", np.array([row["timestamp"] / 1_000 for row in rows]), *columns)
