"""Closed 60 s windows of every recording, replayed with their real requests: how far is the twin off?

Costs are those known at the window's start; then again with the window's own cost level given, which isolates the
scheduler. Also: does one round of calibration bring another day's costs to single digits?
Measured on a tiny model on one CPU core, eager mode.

Run: python -m tests.bench.bench_fidelity
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.backtest import backtest
from pipelines.ingest.recording import Recording, read_recording
from pipelines.replays import WINDOW_S, replay_windows
from tests.bench.forecast_runs import RECORDINGS, SETTINGS, names
from twin.bias import StepBias
from twin.closed_window import ClosedWindow, fidelity_rows
from twin.job import SimulationJob
from twin.simulate import run

BARS = {
    False: {("e2e_s", "mean"): 6, ("e2e_s", 0.95): 6, ("e2e_s", 0.99): 7, ("ttft_s", 0.5): 8, ("ttft_s", 0.95): 9,
            ("ttft_s", 0.99): 9, ("tpot_s", "mean"): 6},
    True: {("e2e_s", "mean"): 3, ("e2e_s", 0.95): 5, ("e2e_s", 0.99): 5, ("ttft_s", 0.5): 5, ("ttft_s", 0.95): 6,
           ("ttft_s", 0.99): 6, ("tpot_s", "mean"): 1.5},
}  # fmt: skip


def main() -> None:
    """Print medians of absolute errors over unsaturated windows, and saturated ones beside them."""
    if not names():
        print("no recordings here: set TWINCAST_RECORDINGS to a folder of them")
        return
    rows: list[dict[str, Any]] = []
    for name in names():
        recording = read_recording(RECORDINGS / name)
        windows = windows_of(recording)
        saturated = sum(window.saturated_ratio >= 0.8 for window in windows)
        print(f"{name}: {len(windows)} windows of {WINDOW_S:g} s, {saturated} saturated")
        rows += [row for window in windows for row in fidelity_rows(window, recording.t0_us)]
    report(rows)
    print(another_days_costs(windows_of(read_recording(RECORDINGS / names()[0]), factor=1.25)))


def report(rows: Sequence[dict[str, Any]]) -> None:
    """Medians per metric and quantile."""
    for level_given, bars in BARS.items():
        label = "level given" if level_given else "costs from the past"
        for (metric, level), bar in bars.items():
            mine = [r for r in rows if (r["metric"], r["quantile"], r["level_given"]) == (metric, level, level_given)]
            errors = {
                state: [abs(r["twin"] / r["observed"] - 1.0) for r in mine if r["saturated"] is state]
                for state in (False, True)
            }
            word = level if isinstance(level, str) else f"P{level * 100:g}"
            beside = f"; saturated {np.median(errors[True]):.1%} of {len(errors[True])}" if errors[True] else ""
            print(
                f"fidelity, {label}, {metric} {word}: {np.median(errors[False]):.1%} median of {len(errors[False])} "
                f"windows (bar: <= {bar:g} %{beside})"
            )


def windows_of(recording: Recording, factor: float = 1.0) -> list[ClosedWindow]:
    """Disjoint windows of a recording, each replayed once it closed; `factor` makes the costs wrong on purpose."""
    jobs = [_scaled(job, factor) for job in backtest(recording, SETTINGS, simulate=run).window_jobs]
    return replay_windows(recording, jobs)


def _scaled(job: SimulationJob, factor: float) -> SimulationJob:
    if factor == 1.0:
        return job
    return replace(job, engines=tuple(replace(setup, cost=setup.cost.scaled(factor)) for setup in job.engines))


def another_days_costs(windows: Sequence[ClosedWindow]) -> str:
    """Costs a quarter too high: error of total step time in the first window, and in the next after one round."""
    bias = StepBias()
    errors = []
    for window in windows[:3]:
        rows = tuple(row.corrected(bias) for row in window.role_steps)
        errors.append(abs(sum(row.predicted_s for row in rows) / sum(row.observed_s for row in rows) - 1.0))
        bias.on_window(rows)
    return (
        f"another day's costs (x1.25): step time off by {errors[0]:.1%}, after one round {errors[1]:.1%}, "
        f"after two {errors[2]:.1%} (bar: 20-30 % to single digits)"
    )


if __name__ == "__main__":
    main()
