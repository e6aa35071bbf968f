"""The live core over recorded input, one message at a time. Writes to no log; keeps no output.

Laws: the outputs depend on the messages, the settings and what is set, never on the speed; they equal those of the live
run that was recorded, with the same settings and state; memory does not depend on the length of the input.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelines.archive.feeds import Fed, Feed, Skips, State
from pipelines.archive.moments import Until
from pipelines.archive.overrides import Overrides
from pipelines.errors import ConfigError
from pipelines.outputs import Outgoing, outgoing
from pipelines.runtime import Incoming, Runtime, Todo
from schemas.alerts import Alert
from schemas.codec import SchemaError, decode
from schemas.state import Snapshot
from schemas.topics import ALERTS, DLQ, FORECASTS, OUTPUTS, SLOS
from twin.core import SnapshotError
from twin.effects import Emit
from twin.insight import run_with_insight
from twin.job import SimulationJob, SimulationResult
from twin.risk import RiskAlerts
from twin.settings import CoreSettings

Simulate = Callable[[SimulationJob], SimulationResult]
US_PER_S = 1_000_000
WRITTEN = frozenset(topic.name for topic in (*OUTPUTS, DLQ))
"""What a replay puts out. A message that a core forwards stands in the archive already, where it was forwarded to."""


class Played(NamedTuple):
    """An input message and what the core wrote because of it."""

    fed: Fed
    outputs: tuple[Outgoing, ...]


@dataclass(slots=True)
class Pace:
    """A clock that runs `speed` times as fast as the recorded one (infinite: it does not wait).

    `now_s` and `sleep` are the machine's; only when something happens depends on them, never what.
    """

    speed: float = float("inf")
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began: tuple[float, int] | None = None

    def __post_init__(self) -> None:
        if not self.speed > 0:
            raise ConfigError(f"--speed must be above 0 or max, got {self.speed}; 1 plays as it happened")

    def wait(self, at_us: int) -> None:
        """Return when it is this event time."""
        if self.speed == float("inf"):
            return
        if self._began is None:
            self._began = (self.now_s(), at_us)
        began_s, first_us = self._began
        remaining_s = began_s + (at_us - first_us) / US_PER_S / self.speed - self.now_s()
        if remaining_s > 0:
            self.sleep(remaining_s)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to replay: settings by deployment, where to stop, what is set, what was learned elsewhere.

    `cold` begins without the states that an archive holds.
    """

    settings_of: Callable[[str], CoreSettings]
    until: Until | None = None
    overrides: Overrides = field(default_factory=Overrides)
    warm: Snapshot | None = None
    pace: Pace = field(default_factory=Pace)
    cold: bool = False


class Replay:
    """One replay. `on_job` is told of every job with its result, before the core is."""

    def __init__(
        self,
        feed: Feed,
        plan: Plan,
        simulate: Simulate = run_with_insight,
        on_job: Callable[[SimulationJob, SimulationResult], None] = lambda _job, _result: None,
    ) -> None:
        self._feed = feed
        self._plan = plan
        self._simulate = simulate
        self._on_job = on_job
        self._skips: Skips = feed.skips()
        self._variant = _Variant(plan.overrides, simulate)
        overrides = plan.overrides
        self.runtime = Runtime(lambda name: overrides.core(plan.settings_of(name)), feed.partitions, plan.warm)
        self.states = () if plan.cold else feed.states()
        for state in self.states:
            self._begin_from(state)
        self.fed = 0
        self.skipped = 0
        self.first_us: int | None = None
        self.last_us: int | None = None

    def _begin_from(self, state: State) -> None:
        """Go on as the live run did; a core skips input that its state holds already."""
        try:
            self.runtime.restore(state.value)
        except (SchemaError, SnapshotError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"{self._feed.folder}: the recorded state of {state.deployment} cannot be taken over ({error}); "
                "replay it with --cold"
            ) from error
        if self._plan.overrides.slos:
            self.runtime.cores[state.deployment].state.slos = self._plan.overrides.slos

    def __iter__(self) -> Iterator[Played]:
        """Play. Raises ConfigError where the twin cannot run what is set."""
        until = self._plan.until
        for fed in self._feed.messages():
            message = fed.message
            if until is not None and until.reached(fed.at_us, message.topic, message.partition, message.offset):
                return
            self._plan.pace.wait(fed.at_us)
            self.fed += 1
            self.first_us = fed.at_us if self.first_us is None else self.first_us
            self.last_us = fed.at_us
            yield Played(fed, tuple(self._take(message)))

    def _take(self, message: Incoming) -> Iterable[Outgoing]:
        if message.topic == SLOS.name and self._plan.overrides.slos:
            return ()  # other targets are set
        return self._finished(self.runtime.handle(message))

    def _finished(self, todo: Todo) -> Iterator[Outgoing]:
        """Carry out jobs at once, in order, until none is left."""
        writes, jobs = list(todo.writes), deque(todo.jobs)
        while jobs:
            more = self._run(jobs.popleft())
            writes += more.writes
            jobs += more.jobs
        for message in writes:
            if message.topic in WRITTEN:
                yield from self._variant.instead_of(message)

    def _run(self, job: SimulationJob) -> Todo:
        if (job.deployment, job.as_of_us, job.phase) in self._skips:
            self.skipped += 1
            return self.runtime.on_skipped(job)
        result = self._simulate(job)
        self._on_job(job, result)
        self._variant.on_job(self.runtime, job)
        return self.runtime.on_simulated(result)


class _Variant:
    """Forecasts of other engines, and risk alerts at other thresholds, in place of the core's.

    The core itself is fed what was recorded, so that it goes on from the recorded state and learns from what happened;
    scores and drift compare that with its own forecasts and say nothing of other engines: they are left out then.
    """

    def __init__(self, overrides: Overrides, simulate: Simulate) -> None:
        self._overrides = overrides
        self._simulate = simulate
        self._forecasts: dict[tuple[str, int, str], Outgoing] = {}
        self._risk: dict[str, RiskAlerts] = {}

    def on_job(self, runtime: Runtime, job: SimulationJob) -> None:
        """Run the job with the engines that are set."""
        if not self._overrides.changes_engines:
            return
        core = runtime.cores[job.deployment]
        try:
            asked = self._overrides.job(job)
            forecast = core.forecast_of(asked, self._simulate(asked))
        except ValueError as error:
            raise ConfigError(f"--set {' '.join(self._overrides.texts)}: {error}; correct it") from error
        if forecast is not None:
            made = outgoing(Emit(FORECASTS, job.deployment, forecast), job.deployment)
            self._forecasts[job.deployment, job.as_of_us, job.phase] = made

    def instead_of(self, message: Outgoing) -> Iterator[Outgoing]:
        """What is put out where the core wrote this."""
        overrides = self._overrides
        if not overrides.changes_engines and overrides.risk is None:
            yield message
        elif message.topic == FORECASTS.name:
            yield from self._forecast(message)
        elif message.topic == ALERTS.name:
            alert: Alert = decode(ALERTS.name, message.value).record
            if alert.kind != "slo_risk" and not overrides.changes_engines:
                yield message
        elif not overrides.changes_engines or message.topic == DLQ.name:
            yield message

    def _forecast(self, message: Outgoing) -> Iterator[Outgoing]:
        forecast = decode(FORECASTS.name, message.value).record
        name = forecast.deployment
        if self._overrides.changes_engines:
            message = self._forecasts.pop((name, forecast.as_of_us, forecast.phase))
            forecast = decode(FORECASTS.name, message.value).record
        yield message
        if forecast.phase == "fine":
            risk = self._risk.setdefault(name, RiskAlerts(name, self._overrides.risk))
            for alert in risk.on_forecast(forecast):
                yield outgoing(Emit(ALERTS, name, alert), name)
