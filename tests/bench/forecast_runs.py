"""Recordings through the live core, keeping what each forecast was made of. Reads recordings; judges nothing."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.backtest import Backtest, backtest
from pipelines.ingest.recording import Recording, read_recording
from schemas.scores import Score
from schemas.slos import Metric
from twin.job import SimulationJob, SimulationResult
from twin.metrics import CLOSES_AFTER_S, METRICS, QUANTILES, FloatArray
from twin.settings import CoreSettings
from twin.simulate import run
from twin.traffic.scenarios import BASELINE

RECORDINGS = Path(os.environ.get("TWINCAST_RECORDINGS", Path(__file__).parents[3] / "shared" / "recordings"))
SETTINGS = CoreSettings(scenarios=(BASELINE,))
"""The defaults without stress scenarios, which nothing can score."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One closed window's quantile beside the replications of its forecast, seconds. Unfinished counts as its age."""

    recording: str
    at_s: float
    horizon_s: float
    metric: Metric
    quantile: float
    observed_s: float
    replications_s: FloatArray
    covered: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One recording, run."""

    name: str
    result: Backtest
    scores: tuple[Score, ...]
    samples: tuple[Sample, ...]


def names() -> list[str]:
    """Recordings at hand, in order; none where the folder is absent."""
    return sorted(path.parent.name for path in RECORDINGS.glob("*/meta.json"))


def run_recording(name: str, settings: CoreSettings = SETTINGS) -> Run:
    """One recording of the folder through the core."""
    return run_events(name, read_recording(RECORDINGS / name), settings)


def run_events(name: str, recording: Recording, settings: CoreSettings = SETTINGS) -> Run:
    """Any recording through the core."""
    keeper = _Keeper(run)
    result = backtest(recording, settings, simulate=keeper)
    scores = tuple(scored for scored in result.scores if scored.phase == "fine" and not scored.intervened)
    samples = tuple(sample for scored in scores for sample in keeper.samples(name, recording.t0_us, scored))
    return Run(name, result, scores, samples)


@dataclass(slots=True)
class _Keeper:
    """Runs jobs and keeps the replications of fine baseline results."""

    simulate: Callable[[SimulationJob], SimulationResult]
    kept: dict[tuple[int, float], FloatArray] = field(default_factory=dict)

    def __call__(self, job: SimulationJob) -> SimulationResult:
        result = self.simulate(job)
        if result.phase == "fine":
            for horizon in result.scenario().horizons:
                self.kept[(job.as_of_us, horizon.horizon_s)] = horizon.latency_s
        return result

    def samples(self, name: str, t0_us: int, scored: Score) -> list[Sample]:
        latency_s = self.kept[(scored.as_of_us, scored.horizon_s)]
        longest_s = scored.horizon_s + CLOSES_AFTER_S
        return [
            Sample(
                recording=name,
                at_s=(scored.as_of_us - t0_us) / 1e6,
                horizon_s=scored.horizon_s,
                metric=cell.metric,
                quantile=cell.quantile,
                observed_s=longest_s if cell.observed_s is None else min(cell.observed_s, longest_s),
                replications_s=latency_s[:, METRICS.index(cell.metric), QUANTILES.index(cell.quantile)],
                covered=cell.covered,
            )
            for cell in scored.cells
        ]


def log_replications(sample: Sample) -> FloatArray:
    """Logs of the replications; NaN ones left out, infinite ones cut to the longest age."""
    known = sample.replications_s[~np.isnan(sample.replications_s)]
    logs: FloatArray = np.log(np.clip(known, 1e-6, sample.horizon_s + CLOSES_AFTER_S))
    return logs
