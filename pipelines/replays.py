"""Closed windows of a recording, replayed with what really came, and what they say of the twin. Runs no forecast.

Law: the rows depend on the recording and the jobs alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.ingest.recording import Recording
from schemas.forecasts import Forecast
from schemas.requests import RequestFinished
from schemas.steps import Step
from twin.attribution import Attribution
from twin.bias import BiasTrend, StepBias, Trend
from twin.closed_window import ClosedWindow, cause_of, close_window, fidelity_rows, quantiles_of
from twin.job import SimulationJob
from twin.metrics import CLOSES_AFTER_S, QUANTILES
from twin.scoring import horizon_of

WINDOW_S = 60.0
US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """One closed window, and why the forecast of it missed; None where none was made for it."""

    window: ClosedWindow
    cause: Attribution | None


def starts_a_window(jobs: Sequence[SimulationJob], job: SimulationJob) -> bool:
    """Whether this job begins the next disjoint window after those kept."""
    if job.phase != "fine":
        return False
    return not jobs or job.as_of_us >= jobs[-1].as_of_us + round(WINDOW_S * US_PER_S)


def replay_windows(
    recording: Recording, jobs: Iterable[SimulationJob], forecasts: Iterable[Forecast] = ()
) -> list[Replayed]:
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
        window = close_window(job, finished, steps, WINDOW_S)
        if window is not None:
            found.append(Replayed(window, _cause(window, fine.get(job.as_of_us), job)))
    return found


def fidelity(replayed: Iterable[Replayed], t0_us: int) -> list[dict[str, Any]]:
    """Rows of recorded against replayed quantiles; see `twin.closed_window.fidelity_rows`."""
    return [row for each in replayed for row in fidelity_rows(each.window, t0_us)]


def causes(replayed: Iterable[Replayed], t0_us: int) -> list[dict[str, Any]]:
    """One row per window: when, the cause of its error, its parts (log ratios), the evidence."""
    return [
        {
            "window_start_s": (each.window.as_of_us - t0_us) / US_PER_S,
            "cause": each.cause.cause,
            "error_log": each.cause.error_log,
            "traffic_log": each.cause.traffic_log,
            "costs_log": each.cause.costs_log,
            "rest_log": each.cause.rest_log,
            "evidence": each.cause.evidence,
        }
        for each in replayed
        if each.cause is not None
    ]


def calibrate(replayed: Iterable[Replayed]) -> tuple[StepBias, dict[float, Trend | None]]:
    """Factors on step costs per role after all windows, and the trend of bias per quantile (None: too few windows).

    The trend is that of the twin with the costs it had, not with the factors.
    """
    bias, trend = StepBias(), BiasTrend()
    for each in replayed:
        bias.on_window(tuple(row.corrected(bias) for row in each.window.role_steps))
        closed_us = each.window.as_of_us + round((WINDOW_S + CLOSES_AFTER_S) * US_PER_S)
        trend.on_replay(closed_us, quantiles_of(each.window.observed), quantiles_of(each.window.replayed))
    return bias, {level: trend.trend(level) for level in QUANTILES}


def _cause(window: ClosedWindow, forecast: Forecast | None, job: SimulationJob) -> Attribution | None:
    if forecast is None or WINDOW_S not in job.horizons_s:
        return None
    return cause_of(window, horizon_of(forecast, WINDOW_S), job)
