"""Files that hold no traffic, told by their beginning: what they are, so that a refusal says more than "unknown".

Law: a file is refused whole, each of its rows counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.ingest.formats.servegen import is_dataset
from pipelines.ingest.lines import read_lines
from pipelines.ingest.rows import Head, Outcome, Refused


@dataclass(frozen=True, slots=True)
class NotTraffic:
    """A kind of file that is refused: a stable reason, the field that shows it, and what to do instead."""

    reason: str
    field: str
    detail: str
    matches: Callable[[Head], bool]
    has_header: bool = False


def _columns(*names: str) -> Callable[[Head], bool]:
    return lambda head: head.has_columns(*names)


def _keys(*names: str) -> Callable[[Head], bool]:
    return lambda head: head.has_keys(*names)


def _gpu_log(head: Head) -> bool:
    first = next(iter(head.json.values()), None) if isinstance(head.json, dict) else None
    return isinstance(first, dict) and {"monitor_id", "GPU_utilization"} <= set(first)


def _client_log(head: Head) -> bool:
    return any("Serving Benchmark Result" in line or line.startswith("Namespace(") for line in head.lines)


def _series_part(head: Head) -> bool:
    return head.path.suffix == ".npy"


KINDS: tuple[NotTraffic, ...] = (
    NotTraffic("side_table", "input_tokens", "token lengths; read with the trace file beside it", is_dataset),
    NotTraffic(
        "side_table",
        "token_length",
        "lengths of prompt parts; the trace beside it has the totals",
        lambda head: head.has_keys("token_length"),
    ),
    NotTraffic("side_table", "", "part of a series; read with the time.npy beside it", _series_part),
    NotTraffic("cost_table", "time_us", "operator times, no requests", _columns("time_us"), has_header=True),
    NotTraffic(
        "cost_table", "tok_s", "operator times, no requests", _columns("kv_prefill", "kv_decode"), has_header=True
    ),
    NotTraffic("cost_table", "time_us", "fitted operator times, no requests", _columns("alpha"), has_header=True),
    NotTraffic(
        "cost_table",
        "prompt_time",
        "phase times per batch, no requests",
        _columns("prompt_time", "token_time"),
        has_header=True,
    ),
    NotTraffic(
        "cost_table",
        "time_stats",
        "operator times, no requests",
        lambda head: "time_stats." in head.first,
        has_header=True,
    ),
    NotTraffic(
        "summary", "completed", "totals of a run, no requests", _keys("total_output_tokens", "total_input_tokens")
    ),
    NotTraffic("summary", "real_completed", "totals of runs, one per row", _columns("real_completed"), has_header=True),
    NotTraffic(
        "metric_series", "value", "a metric over time, no requests", _columns("timestamp", "value"), has_header=True
    ),
    NotTraffic(
        "metric_series", "value", "a host metric over time, no requests", _columns("value", "runtime"), has_header=True
    ),
    NotTraffic("device_log", "GPU_utilization", "device readings, no engine counts", _gpu_log),
    NotTraffic(
        "labels",
        "",
        "windows of known anomalies, no requests",
        lambda head: isinstance(head.json, dict) and all(str(key).endswith(".csv") for key in head.json),
    ),
    NotTraffic("client_log", "", "a benchmark's own log; its results are totals", _client_log),
    NotTraffic(
        "settings",
        "instances",
        "a simulator's cluster settings, no requests",
        _keys("num_nodes", "nodes"),
    ),
)
UNKNOWN = NotTraffic(
    "unknown_format", "", "no known format; name it, or see docs/INPUTS.md for those there are", lambda _: True
)


def refuse_file(path: Path, head: Head) -> Iterator[Outcome]:
    """Every row of a file that is not read, refused with what the file is."""
    kind = next((kind for kind in KINDS if kind.matches(head)), UNKNOWN)
    shown = kind.field or "".join(letter for letter in head.first[:40] if letter.isprintable())
    if path.suffix == ".npy":
        yield Refused(1, path.stem, kind.reason, kind.detail)
        return
    rows = 0
    try:
        for number, _ in read_lines(path):
            if kind.has_header and rows == 0 and number == 1:
                continue
            rows += 1
            yield Refused(number, shown, kind.reason, kind.detail)
    except ConfigError as error:
        rows += 1
        yield Refused(rows, shown, "unreadable", str(error))
    if rows == 0:
        yield Refused(1, shown, "empty" if kind is UNKNOWN else kind.reason, "the file holds no rows")
