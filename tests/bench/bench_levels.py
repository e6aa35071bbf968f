"""What each input level is worth: `python -m tests.bench.bench_levels [RECORDING ...]`.

One recording through the live core at S0 (ends of requests), S1 (and counts), S2 (arrivals and step counts), S3 (rows
of steps), and S0 without any engine configuration. Per level: the closed-window twin against what was recorded, with
costs and configuration as the core had them when the window began, and the forecasts. The state at a window's start
is the live one from S2 on; below, who was in the engine is known afterwards only.
Needs ../shared/recordings; says so and ends where it is absent.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipelines.backtest import Backtest, backtest
from pipelines.ingest.recording import Level, Recording, read_recording
from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from schemas.slos import Metric
from tests.bench.forecast_runs import RECORDINGS, names
from twin.closed_window import SATURATED_RATIO, ClosedWindow, close_window
from twin.job import SimulationJob, SimulationResult
from twin.metrics import FloatArray, quantile
from twin.settings import CoreSettings
from twin.simulate import run
from twin.traffic.scenarios import BASELINE

DEFAULT = ("A_steady_s101", "B_bursty_s201", "C_ramp_s301", "D_longtail_s401")
BARRED = ("A_steady_s101", "B_bursty_s201")
BAR = 0.20
WINDOW_S = 60.0
CASES: tuple[tuple[str, Level], ...] = (("S0-", "S0"), ("S0", "S0"), ("S1", "S1"), ("S2", "S2"), ("S3", "S3"))
"""Name and level; S0- is S0 without engine configurations."""
FIGURES: tuple[tuple[str, Metric, float | None], ...] = (
    ("E2E mean", "e2e_s", None),
    ("E2E P50", "e2e_s", 0.5),
    ("E2E P95", "e2e_s", 0.95),
    ("E2E P99", "e2e_s", 0.99),
    ("TTFT P50", "ttft_s", 0.5),
    ("TTFT P95", "ttft_s", 0.95),
    ("TPOT mean", "tpot_s", None),
)
SCORED = [(metric, level) for metric in ("ttft_s", "e2e_s") for level in (0.5, 0.95)]


@dataclass(slots=True)
class _Keeper:
    """Runs jobs and keeps the fine ones from which a disjoint window begins."""

    first_us: int
    jobs: list[SimulationJob] = field(default_factory=list)

    def __call__(self, job: SimulationJob) -> SimulationResult:
        if job.phase == "fine" and job.as_of_us >= self._next_us():
            self.jobs.append(job)
        return run(job)

    def _next_us(self) -> int:
        return self.jobs[-1].as_of_us + round(WINDOW_S * 1e6) if self.jobs else self.first_us


@dataclass(frozen=True, slots=True)
class Case:
    """One recording at one level."""

    name: str
    result: Backtest
    windows: tuple[ClosedWindow, ...]


def run_case(name: str, case: str, level: Level, truth: Recording) -> Case:
    """`truth` is the recording at S3: what really happened."""
    seen = read_recording(RECORDINGS / name, level)
    if case.endswith("-"):
        seen = replace(seen, events=tuple(e for e in seen.events if not isinstance(e.record, EngineConfig)))
    keeper = _Keeper(truth.t0_us + round(WINDOW_S * 1e6))
    settings = CoreSettings(scenarios=(BASELINE,), steps_expected=level in ("S2", "S3"), insight=False)
    result = backtest(seen, settings, simulate=keeper)
    return Case(case, result, tuple(closed_windows(keeper.jobs, truth)))


def closed_windows(jobs: Sequence[SimulationJob], truth: Recording) -> list[ClosedWindow]:
    """The windows of these jobs that the recording holds whole."""
    finished = [event for event in truth.requests if isinstance(event, RequestFinished)]
    steps: dict[str, list[object]] = {}
    for batch in truth.step_batches:
        steps.setdefault(batch.engine, []).extend(batch.steps)
    last_us = max(event.arrived_us for event in finished)
    whole = [job for job in jobs if job.as_of_us + round(WINDOW_S * 1e6) <= last_us]
    found = (close_window(job, finished, steps, WINDOW_S) for job in whole)  # type: ignore[arg-type]
    return [window for window in found if window is not None]


def figure(values: FloatArray, level: float | None) -> float:
    """A quantile, or the mean of what is finite."""
    return quantile(values, level) if level is not None else float(values[np.isfinite(values)].mean())


def pooled_error(windows: Sequence[ClosedWindow], metric: Metric, level: float | None) -> float:
    """Twin / recorded - 1 of one figure over the requests of all windows."""
    pair = [
        figure(np.concatenate([each.of(metric) for window in windows for each in get(window)]), level)
        for get in (lambda w: w.replayed, lambda w: (w.observed,))
    ]
    return pair[0] / pair[1] - 1.0


def median_error(windows: Sequence[ClosedWindow], metric: Metric, level: float | None) -> float:
    """Median over windows of |twin / recorded - 1|."""
    errors = [
        abs(
            np.mean([figure(each.of(metric), level) for each in window.replayed])
            / figure(window.observed.of(metric), level)
            - 1.0
        )
        for window in windows
    ]
    return float(np.median(errors)) if errors else float("nan")


def fidelity_line(case: Case, windows: Sequence[ClosedWindow], error: Callable[..., float]) -> str:
    """All figures of some windows, in per cent."""
    return "  ".join(f"{label} {error(windows, metric, level):+.1%}" for label, metric, level in FIGURES)


def forecast_line(case: Case) -> str:
    """Coverage, width and skill at half a minute and a minute."""
    rows = {(r["metric"], r["quantile"], r["horizon_s"]): r for r in case.result.core.ledger.rows()}
    parts = []
    for horizon_s in (30.0, 60.0):
        found = [rows[(metric, level, horizon_s)] for metric, level in SCORED if (metric, level, horizon_s) in rows]
        if found:
            coverage = np.mean([row["coverage90"] for row in found])
            skill = np.mean([row["skill_persistence"] for row in found if row["skill_persistence"] is not None])
            width = np.median([row["width_ratio"] for row in found])
            parts.append(f"{horizon_s:.0f} s: covered {coverage:.0%}, width x{width:.1f}, skill {skill:+.1%}")
    return "; ".join(parts)


def main() -> int:
    """Print the table and the bars; 1 if a bar is missed."""
    wanted = sys.argv[1:] or list(DEFAULT)
    missing = [name for name in wanted if name not in names()]
    if missing:
        print(f"levels: no recordings {missing} under {RECORDINGS}; nothing to measure")
        return 0
    missed = False
    for name in wanted:
        truth = read_recording(RECORDINGS / name)
        for case_name, level in CASES:
            case = run_case(name, case_name, level, truth)
            free = [window for window in case.windows if window.saturated_ratio < SATURATED_RATIO]
            full = len(case.windows) - len(free)
            print(f"levels: {name} {case.name}: {len(case.windows)} windows, {full} saturated")
            print(f"  all requests of all windows: {fidelity_line(case, case.windows, pooled_error)}")
            if free:
                print(f"  median |error| per window that is not saturated: {fidelity_line(case, free, median_error)}")
            print(f"  forecasts: {forecast_line(case)}", flush=True)
            if name in BARRED and case.name == "S0":
                error = abs(pooled_error(case.windows, "e2e_s", 0.95))
                missed = missed or error > BAR
                print(f"levels: {name} at S0, E2E P95 of the closed-window twin off by {error:.1%} (bar: {BAR:.0%})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
