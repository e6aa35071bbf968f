"""The simulation job of one moment of a recording: what the core would have asked for then. Simulates little itself.

Law: the job is that of the live core at the same tick with the same settings, replications aside.
"""

from dataclasses import replace

from pipelines.backtest import PARTITIONS
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording
from pipelines.playback import as_incoming, messages_of
from pipelines.runtime import Runtime
from schemas.slos import SloTarget
from schemas.state import Snapshot
from twin.job import SimulationJob
from twin.settings import CoreSettings
from twin.simulate import run
from twin.traffic.scenarios import BASELINE

US_PER_S = 1_000_000


def job_at(
    recording: Recording,
    settings: CoreSettings,
    *,
    at_s: float | None = None,
    slos: tuple[SloTarget, ...] = (),
    warm: Snapshot | None = None,
) -> SimulationJob:
    """The job of the last tick at or before `at_s` seconds of the recording (None: its end).

    Raises ConfigError when there was none: too early, or no engine known.
    """
    light = replace(settings, coarse_replications=1, fine_replications=1, scenarios=(BASELINE,), insight=False)
    runtime = Runtime(lambda _: light, PARTITIONS, warm)
    until_us = None if at_s is None else recording.t0_us + round(at_s * US_PER_S)
    last: SimulationJob | None = None
    for message in as_incoming(messages_of(recording, slos), PARTITIONS):
        jobs = list(runtime.handle(message).jobs)
        while jobs:
            job = jobs.pop(0)
            if until_us is not None and job.as_of_us > until_us:
                return _require(last, recording, at_s)
            last = job
            jobs += runtime.on_simulated(run(job)).jobs
    return _require(last, recording, at_s)


def _require(job: SimulationJob | None, recording: Recording, at_s: float | None) -> SimulationJob:
    if job is None:
        when = "in it" if at_s is None else f"before second {at_s:g}"
        raise ConfigError(
            f"recording {recording.name} tells of no engine at work {when}; name a later second with --at"
        )
    return job
