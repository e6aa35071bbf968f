"""Closed windows of a recording, replayed with what really came, and what they say of the twin. Runs no forecast.

Law: the rows depend on the recording and the jobs alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pipelines.ingest.recording import Recording
from schemas.forecasts import Forecast
from schemas.requests import RequestFinished
from schemas.steps import Step
from twin.bias import BiasTrend, StepBias, Trend
from twin.closed_window import ClosedWindow, close_window, fidelity_rows, quantiles_of
from twin.job import SimulationJob
from twin.metrics import CLOSES_AFTER_S, QUANTILES
from twin.scoring import horizon_of

WINDOW_S = 60.0
US_PER_S = 1_000_000


def starts_a_window(jobs: Sequence[SimulationJob], job: SimulationJob) -> bool:
    """Whether this job begins the next disjoint window after those kept."""
    if job.phase != "fine":
        return False
    return not jobs or job.as_of_us >= jobs[-1].as_of_us + round(WINDOW_S * US_PER_S)


def replay_windows(
    recording: Recording, jobs: Iterable[SimulationJob], forecasts: Iterable[Forecast] = ()
) -> list[ClosedWindow]:
    """Every job's window that had closed by the end of the recording, and in which something finished."""
    finished = [record for record in recording.requests if isinstance(record, RequestFinished)]
    steps: dict[str, list[Step]] = defaultdict(list)
    for batch in recording.step_batches:
        steps[batch.engine] += batch.steps
    last_us = max((record.at_us for record in finished), default=0)
    fine = {each.as_of_us: each for each in forecasts if each.phase == "fine"}
    found = []
    for job in jobs:
        if job.as_of_us + round((WINDOW_S + CLOSES_AFTER_S) * US_PER_S) > last_us:
            continue
        forecast = fine.get(job.as_of_us) if WINDOW_S in job.horizons_s else None
        expected = None if forecast is None else horizon_of(forecast, WINDOW_S)
        window = close_window(job, finished, steps, WINDOW_S, expected)
        if window is not None:
            found.append(window)
    return found


def fidelity(windows: Iterable[ClosedWindow], t0_us: int) -> list[dict[str, Any]]:
    """Rows of recorded against replayed quantiles; see `twin.closed_window.fidelity_rows`."""
    return [row for window in windows for row in fidelity_rows(window, t0_us)]


def causes(windows: Iterable[ClosedWindow], t0_us: int) -> list[dict[str, Any]]:
    """One row per window: when, the cause of its error, its parts (log ratios), the evidence."""
    return [
        {
            "window_start_s": (window.as_of_us - t0_us) / US_PER_S,
            "cause": window.cause.cause,
            "error_log": window.cause.error_log,
            "traffic_log": window.cause.traffic_log,
            "costs_log": window.cause.costs_log,
            "rest_log": window.cause.rest_log,
            "evidence": window.cause.evidence,
        }
        for window in windows
        if window.cause is not None
    ]


def calibrate(windows: Iterable[ClosedWindow]) -> tuple[StepBias, dict[float, Trend | None]]:
    """Factors on step costs per role after all windows, and the trend of bias per quantile (None: too few windows).

    The trend is that of the twin with the costs it had, not with the factors.
    """
    bias, trend = StepBias(), BiasTrend()
    for window in windows:
        bias.on_window(tuple(row.corrected(bias) for row in window.role_steps))
        closed_us = window.as_of_us + round((WINDOW_S + CLOSES_AFTER_S) * US_PER_S)
        trend.on_replay(closed_us, quantiles_of(window.observed), quantiles_of(*window.replayed))
    return bias, {level: trend.trend(level) for level in QUANTILES}
