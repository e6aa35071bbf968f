"""The state machine of one deployment: records in, effects out. Knows no Kafka, file, clock, thread or process.

Between ticks it folds records; at a tick (event time k * period) it learns, scores closed windows, judges itself and
asks for a simulation. The results of a tick enter before the next tick, so outputs do not depend on how long a
simulation took. Laws: the same messages in any order within the lateness give the same outputs; changing anything
after `as_of` changes no forecast made at it; a restored core goes on as the first would have.
"""

from collections.abc import Mapping
from typing import Any, Self

from schemas.changes import Change, Phase
from schemas.forecasts import Forecast
from schemas.lineage import Offset
from schemas.requests import RequestFinished
from schemas.state import Snapshot
from schemas.topics import ALERTS
from twin.accounting import Accounts
from twin.clock import Unit
from twin.core_parts import FORMAT_VERSION, Parts, SnapshotError, check, digest
from twin.core_tick import Pending, close_windows, footing_at, job_at, judge, on_steps, pending_at, publish
from twin.credibility import Authority
from twin.deployment import DeploymentState
from twin.effects import Effect, Emit, Refuse, Simulate
from twin.forecasting import Footing, assemble
from twin.intake import Intake, Message
from twin.job import SimulationJob, SimulationResult
from twin.replay_calibration import ReplayCalibration
from twin.scoring import SkillLedger
from twin.settings import CoreSettings

__all__ = ["Core", "SnapshotError"]


class Core:
    """One deployment.

    Parameters
    ----------
    deployment
        Its name; every record fed is of it.
    settings
        See `CoreSettings`.
    """

    def __init__(self, deployment: str, settings: CoreSettings) -> None:
        self.deployment = deployment
        self.settings = settings
        self._parts = Parts(deployment, settings)
        self.ticks = 0
        self._intake = Intake(settings.sources)
        self._applied: dict[tuple[str, int], int] = {}
        self._next_tick_us: int | None = None
        self._pending: Pending | None = None
        self._held = False

    @property
    def state(self) -> DeploymentState:
        """What was folded of the records."""
        return self._parts.state

    @property
    def ledger(self) -> SkillLedger:
        """The account of its scores."""
        return self._parts.ledger

    @property
    def authority(self) -> Authority:
        """What its forecasts may be used for."""
        return self._parts.authority

    @property
    def replays(self) -> ReplayCalibration:
        """What replays of closed windows taught."""
        return self._parts.replays

    @property
    def accounts(self) -> Accounts:
        """What became of every unit."""
        return self._intake.accounts

    @property
    def awaiting(self) -> bool:
        """Whether results of the last tick are still to come."""
        return self._pending is not None

    @property
    def heard_us(self) -> int:
        """Newest event time that was heard of, applied or not; 0 before the first."""
        return self._intake.clock.newest_us

    @property
    def watermark_us(self) -> int:
        """Event time up to which nothing earlier is expected; 0 before the first."""
        return self._intake.clock.watermark_us

    @property
    def backlog(self) -> int:
        """Units that wait for the watermark or for results."""
        return len(self._intake)

    def on_message(self, message: Message) -> list[Effect]:
        """Take one message of the deployment."""
        refusals: list[Effect] = [Refuse(refusal) for refusal in self._intake.accept(message)]
        return refusals + self._advance()

    def on_simulated(self, result: SimulationResult) -> list[Effect]:
        """Take the result of a job. Coarse comes before fine, whatever order they end in; a stranger is ignored."""
        pending = self._pending
        if pending is None or result.tick != pending.job.tick:
            return []
        if result.phase == "fine" and not pending.coarse_done:
            pending.early_fine = result
            return []
        effects = publish(self._parts, pending, result)
        if result.phase == "coarse":
            pending.coarse_done = True
            return effects + (self.on_simulated(pending.early_fine) if pending.early_fine else [])
        self._pending = None
        return effects + self._advance()

    def on_skipped(self, tick: int, phase: Phase) -> list[Effect]:
        """A phase of the awaited tick will have no result: live, its deadline was missed. A stranger is ignored."""
        pending = self._pending
        if pending is None or tick != pending.job.tick:
            return []
        if phase == "fine":
            self._pending = None
            return self._advance()
        pending.coarse_done = True
        return self.on_simulated(pending.early_fine) if pending.early_fine else []

    def forecast_of(self, job: SimulationJob, result: SimulationResult) -> Forecast | None:
        """What the awaited tick would publish if its engines were those of `job`; None for a stranger. Changes nothing.

        Raises ValueError if the result is not that of the job.
        """
        pending = self._pending
        if pending is None or (job.tick, job.as_of_us) != (pending.job.tick, pending.job.as_of_us):
            return None
        return assemble(job, result, pending.footing)

    def prospect(self) -> tuple[SimulationJob, Footing] | None:
        """What a forecast made now, beside the ticks, would need; None before there is traffic. Changes nothing."""
        as_of_us = min(self.watermark_us, self._next_tick_us or self.watermark_us)
        footing = footing_at(self._parts, as_of_us, self._applied)
        job = job_at(self._parts, as_of_us, footing)
        return None if job is None else (job, footing)

    def hold(self) -> None:
        """Start no tick until `go_on`, so that a busy core comes to a point where a snapshot can be taken."""
        self._held = True

    def go_on(self) -> list[Effect]:
        """End `hold`. When the shell chooses to hold changes no output."""
        self._held = False
        return self._advance()

    def _advance(self) -> list[Effect]:
        """Apply what the watermark allows; stop at a tick while the one before waits for its results."""
        effects: list[Effect] = []
        watermark_us = self._intake.clock.watermark_us
        if self._next_tick_us is None:
            self._next_tick_us = self._first_tick_us(watermark_us)
        while True:
            due_us = self._next_tick_us
            if due_us is None or due_us > watermark_us:
                return effects + self._apply_until(watermark_us)
            effects += self._apply_until(due_us)
            if self._pending is not None or self._held:
                return effects
            self._next_tick_us = due_us + self.settings.period_us
            effects += self._tick(due_us)

    def _first_tick_us(self, watermark_us: int) -> int | None:
        """The first unit sets the ticks."""
        at_us = self._intake.next_at_us()
        if at_us is None or at_us > watermark_us:
            return None
        period_us, offset_us = self.settings.period_us, self.settings.tick_offset_us(self.deployment)
        return ((at_us - offset_us) // period_us + 1) * period_us + offset_us

    def _apply_until(self, until_us: int) -> list[Effect]:
        parts = self._parts
        effects: list[Effect] = []
        for item in self._intake.release(until_us):
            position = item.position
            self._applied[position.topic, position.partition] = position.offset + 1
            effects += on_steps(parts, parts.state.apply(item))
            if isinstance(item, Unit) and isinstance(item.record, RequestFinished):
                parts.replays.tapes.on_finished(item.record)
                effects += [Emit(ALERTS, self.deployment, alert) for alert in parts.drift.on_finished(item.record)]
            elif isinstance(item, Unit) and isinstance(item.record, Change):
                parts.advisor.on_change(item.record)
        return effects

    def _tick(self, as_of_us: int) -> list[Effect]:
        parts = self._parts
        self.ticks += 1
        effects = on_steps(parts, parts.state.learn(as_of_us))
        effects += close_windows(parts, as_of_us)
        judge(parts, as_of_us)
        parts.state.observed.forget_before(as_of_us)
        self._pending = pending_at(parts, as_of_us, footing_at(parts, as_of_us, self._applied))
        if self._pending is None:
            return effects
        return [*effects, Simulate(self._pending.at_phase("coarse")), Simulate(self._pending.at_phase("fine"))]

    def state_hash(self) -> str:
        """Digest of the state without counters, offsets and messages as they came: equal with and without kills,
        restarts and duplicates."""
        plain = self._plain()
        del plain["intake"]["accounts"], plain["intake"]["originals"]
        return digest(plain)

    def _plain(self) -> dict[str, Any]:
        return {
            "intake": self._intake.snapshot(),
            **self._parts.plain(),
            "applied": [[topic, partition, offset] for (topic, partition), offset in sorted(self._applied.items())],
            "ticks": self.ticks,
            "next_tick_us": self._next_tick_us,
        }

    def snapshot(self) -> Snapshot:
        """The state with the offsets it holds. Raises RuntimeError while results are awaited."""
        if self._pending is not None:
            raise RuntimeError(
                f"snapshot of {self.deployment}: results of tick {self._pending.job.tick} are still to come"
            )
        plain = self._plain()
        return Snapshot(
            deployment=self.deployment,
            at_us=max(self._intake.clock.watermark_us, 10**15),
            format_version=FORMAT_VERSION,
            sha256=digest(plain),
            offsets=self._intake.offsets(),
            state=plain,
        )

    @classmethod
    def restore(cls, snapshot: Snapshot, settings: CoreSettings) -> Self:
        """The core of a snapshot. Raises SnapshotError if it is corrupt or of another format."""
        check(snapshot)
        core = cls(snapshot.deployment, settings)
        core._restore(snapshot.state, snapshot.offsets)
        return core

    def adopt(self, earlier: Snapshot) -> None:
        """Begin warm: take over costs, overheads and interval widths of another run, not its time or requests.

        Authority is not taken over; it is earned anew. Raises SnapshotError like `restore`.
        """
        check(earlier)
        self._parts.adopt(earlier.state)

    def _restore(self, data: Mapping[str, Any], offsets: tuple[Offset, ...]) -> None:
        self._intake.restore(data["intake"], offsets)
        self._parts.restore(data)
        self._applied = {(topic, partition): offset for topic, partition, offset in data["applied"]}
        self.ticks = data["ticks"]
        self._next_tick_us = data["next_tick_us"]
