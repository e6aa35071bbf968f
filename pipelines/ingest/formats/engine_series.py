"""Series of engine counts: CSV logs of vLLM's own statistics, and folders of NumPy arrays.

CSV: `timestamp` on a clock that counts from boot, or `t` from the run's start (a `meta.json` beside it tells when).
NumPy: `[prefix]time.npy` beside `[prefix]num_running.npy` and others; time in seconds from the run's start.
Arrays are loaded without pickle. Values no engine can have (a usage over 1) are left out, the row stays.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pipelines.errors import ConfigError
from pipelines.ingest.engine_metrics import stats_record
from pipelines.ingest.lines import read_all
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Accepted, Columns, Format, Head, Outcome, Refused, Source, cell, csv_rows, each_row
from pipelines.ingest.times import RowError, instant_us, number, offset_us

_SERIES = {
    "num_running": "running",
    "num_waiting": "waiting",
    "gpu_cache_usage_perc": "kv_used_ratio",
    "num_preempted": "preemptions_total",
    "finished": "finished_requests_total",
    "processed_tokens_prompt": "prompt_tokens_total",
    "processed_tokens_token": "generation_tokens_total",
}
_TIME = "time.npy"


def _replay_log(path: Path, source: Source) -> Iterator[Outcome]:
    def convert(_: int, row: Columns) -> tuple[InputRecord, ...]:
        at_us = offset_us(cell(row, "timestamp"), "timestamp", "s", source.t0_us, text=True)
        values = {
            "running": number(cell(row, "num_running"), "num_running", text=True),
            "waiting": number(cell(row, "num_pending"), "num_pending", text=True),
            "kv_used_ratio": number(cell(row, "gpu_kvcache_usage"), "gpu_kvcache_usage", text=True),
        }
        return (stats_record(values, source.named("burstgpt-replay"), source.engine or "0", at_us),)

    return each_row(csv_rows(path, required=("timestamp", "num_running", "num_pending")), convert)


def _time_series(path: Path, source: Source) -> Iterator[Outcome]:
    started_us = _started_us(path.parent / "meta.json", source)

    def convert(_: int, row: Columns) -> tuple[InputRecord, ...]:
        at_us = offset_us(cell(row, "t"), "t", "s", started_us, text=True)
        values = {
            "running": number(cell(row, "running"), "running", text=True),
            "waiting": number(cell(row, "waiting"), "waiting", text=True),
            "kv_used_ratio": number(cell(row, "kv_cache_pct"), "kv_cache_pct", text=True) / 100.0,
        }
        return (stats_record(values, source.named("vllm"), source.engine or "0", at_us),)

    return each_row(csv_rows(path, required=("t", "running", "waiting", "kv_cache_pct")), convert)


def _started_us(meta: Path, source: Source) -> int:
    """When the run began: from the `meta.json` beside the series, else the declared start."""
    if not meta.exists():
        return source.t0_us
    import msgspec

    try:
        return instant_us(msgspec.json.decode(read_all(meta))["started_at"], "started_at", "iso")
    except (msgspec.DecodeError, KeyError, TypeError, RowError):
        return source.t0_us


def _arrays(path: Path, source: Source) -> Iterator[Outcome]:
    prefix = path.name.removesuffix(_TIME)
    times = _load(path)
    series = {
        field: _load(file)
        for name, field in _SERIES.items()
        if (file := path.with_name(f"{prefix}{name}.npy")).exists()
    }
    for row, seconds in enumerate(times.tolist(), start=1):
        try:
            at_us = offset_us(number(seconds, "time"), "time", "s", source.t0_us)
            short = [field for field, values in series.items() if values.size < row]
            if short:
                raise RowError(short[0], "missing_field", f"has only {series[short[0]].size} values")
            values = {field: float(found[row - 1]) for field, found in series.items()}
        except RowError as error:
            yield Refused(row, error.field, error.reason, error.detail)
            continue
        known = {field: value for field, value in values.items() if math.isfinite(value)}
        name = source.named(path.parent.name)
        yield Accepted(row, (stats_record(known, name, source.engine or "0", at_us),))


def _load(path: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    try:
        values = np.load(path, allow_pickle=False)
        return np.asarray(values, dtype=np.float64).reshape(-1)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path} is no array of numbers ({error}); check the file") from error


def _columns(*names: str) -> Callable[[Head], bool]:
    return lambda head: head.has_columns(*names)


VLLM_LOG = Format(
    "vllm_log",
    "vLLM statistics logged as CSV",
    _columns("timestamp", "num_running", "num_pending", "gpu_kvcache_usage"),
    _replay_log,
)
TIMESERIES = Format(
    "vllm_timeseries", "vLLM statistics per second", _columns("t", "running", "waiting", "kv_cache_pct"), _time_series
)
ARRAYS = Format("npy_series", "NumPy series of engine counts", lambda head: head.path.name.endswith(_TIME), _arrays)
