"""A recording through the live core at full speed, and the account of it. Needs no broker; prints nothing.

Law: two runs over the same recording and settings give identical outputs, byte for byte.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from pipelines.ingest.recording import Recording
from pipelines.outputs import Outgoing
from pipelines.playback import as_incoming, messages_of
from pipelines.replays import causes, fidelity, replay_windows, starts_a_window
from pipelines.runtime import Runtime, Todo
from schemas.alerts import Alert
from schemas.codec import decode
from schemas.forecasts import Forecast
from schemas.scores import Replay, Score
from schemas.slos import SloTarget
from schemas.state import Snapshot
from schemas.topics import ALERTS, FORECASTS, SCORES
from twin.core import Core
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost
from twin.insight import run_with_insight
from twin.job import SimulationJob, SimulationResult
from twin.settings import CoreSettings
from twin.step_errors import frozen_total_errors

PARTITIONS = 4
US_PER_S = 1_000_000


@dataclass(slots=True)
class Backtest:
    """What a run gave: all output messages in order, and the core as it stood at the end."""

    recording: Recording
    core: Core
    balance: dict[str, int]
    frozen: dict[str, list[tuple[int, FrozenStepCost]]] = field(default_factory=dict)
    outputs: list[Outgoing] = field(default_factory=list)
    window_jobs: list[SimulationJob] = field(default_factory=list)

    def records(self, topic: str) -> list[Any]:
        """Output records of one topic, in order."""
        return [decode(topic, message.value).record for message in self.outputs if message.topic == topic]

    @property
    def forecasts(self) -> list[Forecast]:
        """Forecasts, in order."""
        return self.records(FORECASTS.name)

    @property
    def scores(self) -> list[Score]:
        """Scores, in order."""
        return [record for record in self.records(SCORES.name) if isinstance(record, Score)]

    @property
    def replays(self) -> list[Replay]:
        """Closed windows that the core itself has replayed, in order."""
        return [record for record in self.records(SCORES.name) if isinstance(record, Replay)]

    @property
    def alerts(self) -> list[Alert]:
        """Alerts, in order."""
        return self.records(ALERTS.name)

    @property
    def output_sha256(self) -> str:
        """Digest of all outputs: topic, key, value, in order of topic and then of writing."""
        digest = sha256()
        for message in sorted(self.outputs, key=lambda m: m.topic):
            digest.update(message.topic.encode() + b"\0" + (message.key or b"") + b"\0" + message.value + b"\n")
        return digest.hexdigest()


def backtest(
    recording: Recording,
    settings: CoreSettings,
    *,
    slos: tuple[SloTarget, ...] = (),
    warm: Snapshot | None = None,
    simulate: Callable[[SimulationJob], SimulationResult] = run_with_insight,
    progress: Callable[[float], None] = lambda _: None,
) -> Backtest:
    """Run a recording of one deployment. `progress` is told a share of 1.

    `warm` is the state of an earlier run, whose learned costs to begin with.
    """
    runtime = Runtime(lambda _: settings, PARTITIONS, warm)
    result = Backtest(recording, Core(recording.deployment, settings), {})

    def watched(job: SimulationJob) -> SimulationResult:
        if starts_a_window(result.window_jobs, job):
            result.window_jobs.append(job)
        if job.phase == "fine":
            for engine in job.engines:
                result.frozen.setdefault(engine.name, []).append((job.as_of_us, engine.cost))
        return simulate(job)

    messages = list(as_incoming(messages_of(recording, slos), PARTITIONS))
    for number, message in enumerate(messages):
        result.outputs += finish(runtime, runtime.handle(message), watched)
        if number % 500 == 0:
            progress(number / len(messages))
    progress(1.0)
    result.core, result.balance = runtime.cores[recording.deployment], runtime.balance()
    return result


def finish(runtime: Runtime, todo: Todo, simulate: Callable[[SimulationJob], SimulationResult]) -> Iterable[Outgoing]:
    """Carry out jobs at once, in order, until none is left."""
    writes, jobs = list(todo.writes), list(todo.jobs)
    while jobs:
        more = runtime.on_simulated(simulate(jobs.pop(0)))
        writes += more.writes
        jobs += more.jobs
    return writes


def report(result: Backtest) -> dict[str, Any]:
    """The account of a run as plain data; times are seconds from the recording's start."""
    core = result.core
    t0_us = result.recording.t0_us
    replayed = replay_windows(result.recording, result.window_jobs, result.forecasts)
    return {
        "recording": result.recording.name,
        "records": {name: count for name, count in result.balance.items() if name != "held"},
        "held": result.balance["held"],
        "refusal_reasons": dict(core.accounts.reasons),
        "level": core.state.input_level,
        "steps": step_errors(result),
        "fidelity": fidelity(replayed, t0_us),
        "causes": causes(replayed, t0_us),
        "forecasts_made": len(result.forecasts),
        "windows_scored": len(result.scores),
        "forecasts": core.ledger.rows(),
        "skill": core.ledger.skill(),
        "alerts": _alert_rows(result.alerts, t0_us),
        "authority": [[(at_us - t0_us) / US_PER_S, level] for at_us, level in core.authority.changes],
        "output_sha256": result.output_sha256,
    }


def step_errors(result: Backtest) -> dict[str, Any]:
    """Errors of step costs, ratios; per engine where there are several."""
    rows = {}
    for name, room in sorted(result.core.state.rooms.items()):
        steps = [s for batch in result.recording.step_batches if batch.engine == name for s in batch.steps]
        totals = frozen_total_errors(result.frozen.get(name, []), StepBlock.from_steps(steps)) if steps else np.zeros(0)
        rows[name] = room.errors.as_dict() | {
            "frozen_60s_total_error": {
                "windows": len(totals),
                "median": float(np.median(totals)) if len(totals) else None,
                "p90": float(np.quantile(totals, 0.9)) if len(totals) else None,
            }
        }
    return next(iter(rows.values())) if len(rows) == 1 else rows


def _alert_rows(alerts: list[Alert], t0_us: int) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for alert in alerts:
        row = rows.setdefault(
            alert.alert_id,
            {"kind": alert.kind, "cause": alert.cause, "onset_s": None, "firing_s": None, "resolved_s": None},
        )
        row["onset_s"] = (alert.onset_us - t0_us) / US_PER_S
        if alert.state in ("firing", "resolved"):
            row[f"{alert.state}_s"] = (alert.at_us - t0_us) / US_PER_S
    return list(rows.values())
