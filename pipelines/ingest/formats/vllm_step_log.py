"""Text logs of a vLLM server: one line per scheduler step, and its statistics every few seconds.

`[scheduler.py:514] Timestamp: <monotonic s>. Scheduler time: <s> seconds.` gives a step's start; its duration is the
gap to the next line of the kind, unless that gap is an idle pause. What was scheduled is not told: such steps have no
shape and must not be learned from. `Engine 000: ... Running: n reqs, Waiting: n reqs, GPU KV cache usage: x%` gives
counts. Lines begin with a wall clock of one second's resolution without a year; both clocks are aligned by all lines.

Law: every line is a step, a statistic or refused as `not_a_record`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pipelines.ingest.engine_metrics import stats_record
from pipelines.ingest.lines import read_lines
from pipelines.ingest.rows import Accepted, Format, Head, Outcome, Refused, Source
from schemas.steps import Step, StepBatch

IDLE_GAP_US = 1_000_000
"""A longer gap between two steps is a pause of the engine, not a step."""

_WALL = re.compile(r"(?:\([^)]*\)\s*)?(?:INFO|WARNING|DEBUG|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_STEP = re.compile(r"Timestamp: (\d+(?:\.\d+)?)\. Scheduler time: (\d+(?:\.\d+)?(?:e-?\d+)?) seconds")
_STATS = re.compile(
    r"(?:Engine (\d+): )?Avg prompt throughput: .*?Running: (\d+) reqs.*?(?:Waiting|Pending): (\d+) reqs"
    r".*?KV cache usage: ([\d.]+)%"
)


@dataclass(frozen=True, slots=True)
class _Line:
    row: int
    wall_s: int
    monotonic_us: int | None = None
    schedule_us: int = 0
    engine: str = "0"
    stats: tuple[float, float, float] | None = None


def _matches(head: Head) -> bool:
    return any(_STEP.search(line) or _STATS.search(line) or "vLLM API server" in line for line in head.lines)


def _parse(row: int, text: str, year: int) -> _Line | None:
    wall = _WALL.match(text)
    if wall is None:
        return None
    month, day, hour, minute, second = map(int, wall.groups())
    try:
        wall_s = round(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())
    except ValueError:
        return None
    if step := _STEP.search(text):
        return _Line(row, wall_s, round(float(step[1]) * 1e6), round(float(step[2]) * 1e6))
    if stats := _STATS.search(text):
        counts = (float(stats[2]), float(stats[3]), float(stats[4]) / 100.0)
        return _Line(row, wall_s, engine=str(int(stats[1] or "0")), stats=counts)
    return None


def wall_offset_us(pairs: list[tuple[int, int]]) -> int:
    """Wall minus monotonic clock from (wall second, monotonic us) pairs; wall seconds are cut, so both sides bound it.

    >>> wall_offset_us([(100, 5_200_000), (101, 5_900_000)])
    95450000
    """
    if not pairs:
        return 0
    least = max(wall_s * 1_000_000 - monotonic_us for wall_s, monotonic_us in pairs)
    most = min((wall_s + 1) * 1_000_000 - monotonic_us for wall_s, monotonic_us in pairs)
    return (least + most) // 2


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    year = datetime.fromtimestamp(source.t0_us / 1e6, UTC).year
    lines: list[_Line] = []
    for row, data in read_lines(path):
        line = _parse(row, data.decode("utf-8", errors="replace"), year)
        if line is None:
            yield Refused(row, "", "not_a_record", "neither a step nor statistics")
        else:
            lines.append(line)
    steps = [line for line in lines if line.monotonic_us is not None]
    offset_us = wall_offset_us([(line.wall_s, line.monotonic_us or 0) for line in steps])
    name = source.named("vllm")
    yield from _steps(steps, offset_us, name, source.engine or "0")
    for line in lines:
        if line.stats is not None:
            running, waiting, usage = line.stats
            values = {"running": running, "waiting": waiting, "kv_used_ratio": usage}
            record = stats_record(values, name, source.engine or line.engine, line.wall_s * 1_000_000)
            yield Accepted(line.row, (record,))


def _steps(steps: list[_Line], offset_us: int, deployment: str, engine: str) -> Iterator[Outcome]:
    for place, line in enumerate(steps):
        start_us = (line.monotonic_us or 0) + offset_us
        following = steps[place + 1].monotonic_us if place + 1 < len(steps) else None
        gap_us = None if following is None else following + offset_us - start_us
        if gap_us is None or gap_us > IDLE_GAP_US:
            gap_us = line.schedule_us
        if gap_us < 0:
            yield Refused(line.row, "Timestamp", "time_backwards", f"the next step starts {-gap_us} us earlier")
            continue
        step = Step(step=place, start_us=start_us, duration_us=gap_us, schedule_us=line.schedule_us)
        yield Accepted(line.row, (StepBatch(deployment=deployment, engine=engine, steps=(step,)),))


FORMAT = Format(
    "vllm_step_log",
    "text logs of a vLLM server with step lines",
    _matches,
    _read,
    notes=("steps have times but no shapes: what was scheduled is not in the log",),
)
