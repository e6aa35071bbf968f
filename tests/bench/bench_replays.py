"""Calibration by replay in the live core: does it make forecasts better or worse, and what does it cost?

Recordings of one real engine, one after the other as one service of half an hour, with and without replays; then an
engine whose rules and noise are known. Also the time that a replay takes beside the forecast it comes with.

Run: python -m tests.bench.bench_replays [HOURS]      hours of the known engine (1)
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from pipelines.ingest.recording import Event, Recording, read_recording
from schemas.base import EARLIEST_US
from schemas.scores import Score
from tests.bench import forecast_runs
from tests.bench.bench_calibration import ORACLE_LOAD_PER_S, SLOWER, recorded_noise
from tests.bench.forecast_runs import RECORDINGS, SETTINGS, Run, names, run_events
from tests.bench.oracle import COST, recording_of, serve, wandering
from twin.closed_window import replay
from twin.engine.types import Noise
from twin.job import SimulationJob, SimulationResult
from twin.simulate import run

GAP_US = 5_000_000
CHAINED = "ABEDE"
"""Letters of recordings of one engine without a hog, a queue limit or a second engine, chained in order of name."""
BAR_S = 2.0
"""A fifth of the default period."""


def main(hours: float) -> None:
    """Print both."""
    chain = chained([name for name in names() if name[0] in CHAINED])
    if chain is not None:
        compared("recordings chained", chain)
    compared(f"oracle, {hours:g} h", oracle(hours), period_s=30.0)


def compared(label: str, recording: Recording, period_s: float = SETTINGS.period_s) -> None:
    """Skill, coverage and loss without and with replays."""
    settings = replace(SETTINGS, period_s=period_s)
    timed = _Timed()
    without = run_by(run, recording, settings)
    having = run_by(timed, recording, settings)
    for name, found in (("without replays", without), ("with replays", having)):
        cells = [cell for scored in found.scores for cell in scored.cells]
        print(
            f"{label}, {name}: skill {skill(found.scores):+.1%}, "
            f"coverage {np.mean([cell.covered for cell in cells]):.1%}, "
            f"mean |log(observed / forecast)| {error(found.scores):.3f}, step MAPE {_mape(found):.2%}"
        )
    told = having.result.replays
    causes = [each.cause for each in told]
    counts = ", ".join(f"{cause} {causes.count(cause)}" for cause in sorted({str(each) for each in causes}))
    factors = ", ".join(f"{row.role} x{row.factor:.3f}" for row in told[-1].roles) if told else "none"
    print(f"{label}: {len(told)} windows replayed; causes {counts}; factors at the end {factors}")
    for row in told[-1].trend if told else ():
        print(
            f"{label}: bias at P{row.quantile * 100:g} {row.bias_log:+.3f} lately, grows: {row.grows} (z {row.z:+.1f})"
        )
    if timed.replay_s:
        print(
            f"{label}: a replay takes {np.median(timed.replay_s) * 1e3:.0f} ms, the slowest "
            f"{max(timed.replay_s) * 1e3:.0f} ms, beside a fine forecast of {np.median(timed.fine_s) * 1e3:.0f} ms "
            f"(bar: together under {BAR_S:g} s)"
        )


def run_by(simulate: Callable[[SimulationJob], SimulationResult], recording: Recording, settings: Any) -> Run:
    """A recording through the core, its jobs run by `simulate`."""
    forecast_runs.run = simulate  # type: ignore[assignment]
    try:
        return run_events(recording.name, recording, settings)
    finally:
        forecast_runs.run = run


@dataclass(slots=True)
class _Timed:
    """Runs jobs, and keeps how long forecasts and replays took."""

    fine_s: list[float] = field(default_factory=list)
    replay_s: list[float] = field(default_factory=list)

    def __call__(self, job: SimulationJob) -> SimulationResult:
        begin_s = time.perf_counter()
        result = run(replace(job, window=None))
        between_s = time.perf_counter()
        if job.window is not None:
            result = replace(result, window=replay(job.window))
            self.replay_s.append(time.perf_counter() - between_s)
        if job.phase == "fine":
            self.fine_s.append(between_s - begin_s)
        return result


def skill(scores: Sequence[Score]) -> float:
    """1 - loss / loss of persistence over TTFT and E2E at P50 and P95, the mean over cells and horizons."""
    sums: dict[tuple[str, float, float], list[float]] = {}
    for scored in scores:
        for cell in scored.cells:
            if cell.persistence_loss_s is not None and cell.metric != "tpot_s" and cell.quantile in (0.5, 0.95):
                pair = sums.setdefault((cell.metric, cell.quantile, scored.horizon_s), [0.0, 0.0])
                pair[0] += cell.loss_s
                pair[1] += cell.persistence_loss_s
    return float(np.mean([1.0 - loss / naive for loss, naive in sums.values() if naive > 0]))


def error(scores: Sequence[Score]) -> float:
    """Mean size of the log error over all cells."""
    cells = [cell for scored in scores for cell in scored.cells if cell.observed_s]
    return float(np.mean([abs(np.log((cell.observed_s or 0.0) / cell.forecast_s)) for cell in cells]))


def _mape(found: Run) -> float:
    rows = [room.errors.as_dict()["mape"]["all"] for room in found.result.core.state.rooms.values()]
    return float(np.mean([row for row in rows if row is not None]))


def chained(found: Sequence[str]) -> Recording | None:
    """Recordings one after the other as one; None without any."""
    events: list[Event] = []
    t0_us = end_us = 0
    for number, name in enumerate(found):
        recording = read_recording(RECORDINGS / name)
        first_us = min(event.at_us for event in recording)
        shift_us = 0 if not events else end_us + GAP_US - first_us
        t0_us = t0_us or recording.t0_us
        events += [_moved(event, shift_us, number) for event in recording]
        end_us = max(event.at_us for event in events)
    return replace(recording, name="chained", t0_us=t0_us, events=tuple(events)) if events else None


def _moved(event: Event, shift_us: int, number: int) -> Event:
    """An event at another time, of requests and steps of other names."""
    plain = _shifted(msgspec.to_builtins(event.record), shift_us, number)
    return event._replace(at_us=event.at_us + shift_us, record=msgspec.convert(plain, type(event.record)))


def _shifted(value: Any, shift_us: int, number: int) -> Any:
    if isinstance(value, list | tuple):
        return [_shifted(each, shift_us, number) for each in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _shifted(each, shift_us, number) for name, each in value.items()}
    for name, each in value.items():
        if name.endswith("_us") and isinstance(each, int) and each >= EARLIEST_US:
            moved[name] = each + shift_us
    moved["deployment"] = "chained"
    moved.pop("fingerprint", None)  # one engine on one machine: flags that changed between recordings are passed over
    if "steps" in value:
        moved["epoch"] = number
    if "request_id" in value:
        moved["request_id"] = f"{number}/{value['request_id']}"
    if "rows" in value:
        moved["rows"] = [(f"{number}/{name}", *row) for name, *row in value["rows"]]
        moved["preempted"] = [f"{number}/{name}" for name in value.get("preempted", ())]
    return moved


def oracle(hours: float) -> Recording:
    """An engine whose rules are known, with noise as recorded, its rate wandering by a fifth."""
    random = np.random.default_rng(2026)
    requests = wandering(random, ORACLE_LOAD_PER_S / SLOWER, hours * 3600.0)
    noise = Noise.from_ratios(np.tile(recorded_noise(random), (3, 1)))
    return recording_of(serve(requests, COST.scaled(SLOWER), noise), "oracle")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
