"""Closed 60 s windows of every recording, replayed with their real requests: how far is the twin off?

Costs are those known at the window's start; then again with the window's own cost level given, which isolates the
scheduler. Also: does one round of calibration bring another day's costs to single digits?
Measured on a tiny model on one CPU core, eager mode.

Run: python -m tests.bench.bench_fidelity
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.backtest import backtest
from pipelines.ingest.recording import Recording, read_recording
from schemas.requests import RequestFinished
from schemas.steps import Step
from tests.bench.forecast_runs import RECORDINGS, SETTINGS, names
from twin.bias import StepBias
from twin.closed_window import ClosedWindow, close_window, fidelity_rows
from twin.job import SimulationJob, SimulationResult
from twin.metrics import CLOSES_AFTER_S
from twin.simulate import run

WINDOW_S = 60.0
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
    jobs: list[SimulationJob] = []

    def simulate(job: SimulationJob) -> SimulationResult:
        if job.phase == "fine" and (not jobs or job.as_of_us >= jobs[-1].as_of_us + round(WINDOW_S * 1e6)):
            jobs.append(_scaled(job, factor))
        return run(job)

    backtest(recording, SETTINGS, simulate=simulate)
    finished = [record for record in recording.requests if isinstance(record, RequestFinished)]
    steps: dict[str, list[Step]] = defaultdict(list)
    for batch in recording.step_batches:
        steps[batch.engine] += batch.steps
    last_us = max(record.at_us for record in finished)
    closed = [job for job in jobs if job.as_of_us + round((WINDOW_S + CLOSES_AFTER_S) * 1e6) <= last_us]
    windows = [close_window(job, finished, steps, WINDOW_S) for job in closed]
    return [window for window in windows if window is not None]


def _scaled(job: SimulationJob, factor: float) -> SimulationJob:
    if factor == 1.0:
        return job
    return replace(job, engines=tuple(replace(setup, cost=setup.cost.scaled(factor)) for setup in job.engines))


def another_days_costs(windows: Sequence[ClosedWindow]) -> str:
    """Costs a quarter too high: error of total step time in the first window, and in the next after one round."""
    bias = StepBias()
    errors = []
    for window in windows[:3]:
        corrected = [(row.observed_s, row.predicted_s * bias.factor(row.role), row) for row in window.role_steps]
        errors.append(abs(sum(p for _, p, _ in corrected) / sum(o for o, _, _ in corrected) - 1.0))
        bias.on_window(tuple(replace(row, predicted_s=predicted) for _, predicted, row in corrected))
    return (
        f"another day's costs (x1.25): step time off by {errors[0]:.1%}, after one round {errors[1]:.1%}, "
        f"after two {errors[2]:.1%} (bar: 20-30 % to single digits)"
    )


if __name__ == "__main__":
    main()
