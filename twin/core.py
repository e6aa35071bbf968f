"""The state machine of one deployment: records in, effects out. Knows no Kafka, file, clock, thread or process.

Between ticks it folds records; at a tick (event time k * period) it learns, scores closed windows, judges itself and
asks for a simulation. The results of a tick enter before the next tick, so outputs do not depend on how long a
simulation took. Laws: the same messages in any order within the lateness give the same outputs; changing anything
after `as_of` changes no forecast made at it; a restored core goes on as the first would have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

import msgspec

from schemas.changes import Change, Phase
from schemas.forecasts import Forecast
from schemas.lineage import Lineage, Offset
from schemas.requests import RequestFinished
from schemas.state import Snapshot
from schemas.topics import ACTIONS, ALERTS, FORECASTS, SCORES
from twin.accounting import Accounts
from twin.advise.advisor import Advisor
from twin.baselines import Baselines
from twin.calibration import Calibration
from twin.clock import Position, Unit
from twin.credibility import Authority, Standing, assess, margin_ratio
from twin.deployment import DeploymentState
from twin.drift import DriftAlerts
from twin.effects import Effect, Emit, Refuse, Simulate
from twin.engine_room import costs_hash
from twin.forecasting import Footing, assemble
from twin.intake import Intake, Message
from twin.job import SimulationJob, SimulationResult, Trials
from twin.metrics import CLOSES_AFTER_S, METRICS, QUANTILES
from twin.risk import RiskAlerts
from twin.scoring import SkillLedger, closes_us, score
from twin.settings import TWINCAST_VERSION, CoreSettings
from twin.traffic.plan import TrafficPlan
from twin.windows import OpenWindows

FORMAT_VERSION = 1
_WANTED = [(metric, quantile) for metric in METRICS for quantile in QUANTILES]


class SnapshotError(Exception):
    """A snapshot that cannot be taken over: corrupt, or of a newer program."""


@dataclass(slots=True)
class _Pending:
    """A tick whose results are on their way, with everything a forecast needs as it stood at `as_of`."""

    job: SimulationJob
    footing: Footing
    baselines: dict[float, Baselines]
    coarse_done: bool = False
    early_fine: SimulationResult | None = None


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
        self.state = DeploymentState(settings.horizons_s[-1] + CLOSES_AFTER_S + 2 * settings.period_s, settings.slos)
        self.ledger = SkillLedger()
        self.authority = Authority()
        self.ticks = 0
        self._intake = Intake(settings.sources)
        self._calibration = Calibration()
        self._drift = DriftAlerts(deployment, settings.drift_detectors)
        self._risk = RiskAlerts(deployment)
        self._advisor = Advisor(settings.policy)
        self._windows = OpenWindows()
        self._applied: dict[tuple[str, int], int] = {}
        self._next_tick_us: int | None = None
        self._pending: _Pending | None = None
        self._held = False

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
    def doubted(self) -> list[Position]:
        """Where units stand that are held back until their clock is believed; empty but after a jump."""
        return [unit.position for unit in self._intake.clock.held()]

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
        effects = self._publish(pending, result)
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
        footing = self._footing(as_of_us)
        job = self._job(as_of_us, footing)
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
        alerts = []
        for item in self._intake.release(until_us):
            position = item.position
            self._applied[position.topic, position.partition] = position.offset + 1
            for block in self.state.apply(item):
                alerts += self._drift.on_steps(block.engine, block.block, block.learned)
            if isinstance(item, Unit) and isinstance(item.record, RequestFinished):
                alerts += self._drift.on_finished(item.record)
            elif isinstance(item, Unit) and isinstance(item.record, Change):
                self._advisor.on_change(item.record)
        return [Emit(ALERTS, self.deployment, alert) for alert in alerts]

    def _tick(self, as_of_us: int) -> list[Effect]:
        self.ticks += 1
        alerts = []
        for block in self.state.learn(as_of_us):
            alerts += self._drift.on_steps(block.engine, block.block, block.learned)
        effects: list[Effect] = [Emit(ALERTS, self.deployment, alert) for alert in alerts]
        effects += self._close_windows(as_of_us)
        self._judge(as_of_us)
        self.state.observed.forget_before(as_of_us)
        footing = self._footing(as_of_us)
        job = self._job(as_of_us, footing)
        if job is None:
            return effects
        self._pending = _Pending(
            job=job,
            footing=footing,
            baselines={h: self.state.baselines.at(as_of_us, h, _WANTED) for h in self.settings.horizons_s},
        )
        return [*effects, Simulate(job), Simulate(job.at_phase("fine"))]

    def _close_windows(self, as_of_us: int) -> list[Effect]:
        effects: list[Effect] = []
        for window in self._windows.closed_by(as_of_us):
            due_us = closes_us(window.forecast.as_of_us, window.horizon_s)
            end_us = due_us - round(CLOSES_AFTER_S * 1e6)
            scored = score(
                window.forecast,
                window.horizon_s,
                self.state.observed.members(due_us),
                window.baselines,
                intervened=self.state.changed_within(window.forecast.as_of_us, end_us),
                saturated_ratio=self.state.saturation.ratio(window.forecast.as_of_us, end_us),
            )
            effects.append(Emit(SCORES, self.deployment, scored))
            if window.forecast.phase == "fine":
                self.ledger.add(scored)
                self._calibration.on_score(scored)
                self.authority.on_score(scored)
                effects += [Emit(ALERTS, self.deployment, alert) for alert in self._drift.on_score(scored)]
        return effects

    def _judge(self, as_of_us: int) -> None:
        self.authority.on_inputs(as_of_us, self.state.input_level, self.state.steps_learned)
        prints = [repr(r.config.fingerprint) for _, r in sorted(self.state.rooms.items()) if r.config is not None]
        self.authority.on_fingerprint(as_of_us, sha256(";".join(prints).encode()).hexdigest())
        self.authority.on_drift(as_of_us, "cost", bool(self._drift.drifting))

    def _trials(self, as_of_us: int, plan: TrafficPlan, footing: Footing) -> Trials | None:
        self._advisor.on_traffic(as_of_us, self.state.traffic.arrivals, plan.rate, self.state.start_s)
        if not self.state.slos:
            return None
        widen = margin_ratio(footing.standing)
        return self._advisor.trials(self.state.start_s, footing.credibility.level, widen)

    def _job(self, as_of_us: int, footing: Footing) -> SimulationJob | None:
        plan = self.state.plan(as_of_us)
        engines = () if plan is None else self.state.setups(as_of_us, plan)
        if plan is None or not engines:
            return None
        return SimulationJob(
            deployment=self.deployment,
            as_of_us=as_of_us,
            tick=as_of_us // self.settings.period_us,
            phase="coarse",
            engines=engines,
            traffic=plan,
            root_seed=self.settings.root_seed,
            routing=self.settings.routing,
            overheads=self.state.frontend(),
            slos=self.state.slos,
            horizons_s=self.settings.horizons_s,
            coarse_replications=self.settings.coarse_replications,
            fine_replications=self.settings.fine_replications,
            scenarios=self.settings.scenarios,
            with_insight=self.settings.insight,
            trials=self._trials(as_of_us, plan, footing),
        )

    def _footing(self, as_of_us: int) -> Footing:
        lookback_us = as_of_us - round(60e6)
        skill = self.ledger.skill()
        standing = Standing(
            input_level=self.state.input_level,
            steps=self.state.steps_learned,
            scored_rounds=self.authority.rounds,
            saturated_ratio=self.state.saturation.ratio(lookback_us, as_of_us),
            stale_s=max(as_of_us - self.state.newest_us, 0) / 1e6,
            drifting=self._drift.drifting,
            skill=skill,
            assumed_limits=self.state.assumed_limits,
            transfer_ratio=self.state.transfers.latency_ratio,
        )
        return Footing(
            standing=standing,
            authority=self.authority.level,
            credibility=assess(standing),
            calibration=self._calibration.freeze(),
            period_s=self.settings.period_s,
            lineage=Lineage(
                twincast_version=TWINCAST_VERSION,
                settings_hash=self.settings.digest,
                costs_hash=costs_hash([room for _, room in sorted(self.state.rooms.items())]),
                seed=self.settings.root_seed,
                replications=0,
                engine="",
                offsets=self._applied_offsets(),
                steps_learned=self.state.steps_learned,
            ),
        )

    def _applied_offsets(self) -> tuple[Offset, ...]:
        return tuple(
            Offset(topic=topic, partition=partition, next_offset=offset)
            for (topic, partition), offset in sorted(self._applied.items())
        )

    def _publish(self, pending: _Pending, result: SimulationResult) -> list[Effect]:
        forecast: Forecast = assemble(pending.job.at_phase(result.phase), result, pending.footing)
        effects: list[Effect] = [Emit(FORECASTS, self.deployment, forecast)]
        if result.phase == "fine":
            effects += [Emit(ALERTS, self.deployment, alert) for alert in self._risk.on_forecast(forecast)]
        for horizon_s, baselines in pending.baselines.items():
            self._windows.open(forecast, horizon_s, baselines)
        told = self._advisor.on_result(forecast, pending.job, result, self.settings.period_s)
        return effects + [Emit(ACTIONS, self.deployment, each) for each in told]

    def state_hash(self) -> str:
        """Digest of the state without counters and offsets: equal with and without kills, restarts and duplicates."""
        plain = self._plain()
        del plain["intake"]["accounts"]
        return sha256(msgspec.json.encode(plain)).hexdigest()

    def _plain(self) -> dict[str, Any]:
        return {
            "intake": self._intake.snapshot(),
            "state": self.state.snapshot(),
            "ledger": self.ledger.snapshot(),
            "authority": self.authority.snapshot(),
            "calibration": self._calibration.snapshot(),
            "drift": self._drift.snapshot(),
            "risk": self._risk.snapshot(),
            "advisor": self._advisor.snapshot(),
            "windows": self._windows.snapshot(),
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
            sha256=_digest(plain),
            offsets=self._intake.offsets(),
            state=plain,
        )

    @classmethod
    def restore(cls, snapshot: Snapshot, settings: CoreSettings) -> Self:
        """The core of a snapshot. Raises SnapshotError if it is corrupt or of another format."""
        _check(snapshot)
        core = cls(snapshot.deployment, settings)
        core._restore(snapshot.state, snapshot.offsets)
        return core

    def adopt(self, earlier: Snapshot) -> None:
        """Begin warm: take over costs, overheads and interval widths of another run, not its time or requests.

        Authority is not taken over; it is earned anew. Raises SnapshotError like `restore`.
        """
        _check(earlier)
        self.state.adopt(earlier.state["state"])
        self._calibration = Calibration.restore(earlier.state["calibration"])

    def _restore(self, data: Mapping[str, Any], offsets: tuple[Offset, ...]) -> None:
        self._intake.restore(data["intake"], offsets)
        self.state.restore(data["state"])
        self.ledger = SkillLedger.restore(data["ledger"])
        self.authority = Authority.restore(data["authority"])
        self._calibration = Calibration.restore(data["calibration"])
        self._drift = DriftAlerts.restore(data["drift"], self.settings.drift_detectors)
        self._risk = RiskAlerts.restore(data["risk"])
        if "advisor" in data:  # older snapshots have none
            self._advisor = Advisor.restore(data["advisor"], self.settings.policy)
        self._windows = OpenWindows.restore(data["windows"])
        self._applied = {(topic, partition): offset for topic, partition, offset in data["applied"]}
        self.ticks = data["ticks"]
        self._next_tick_us = data["next_tick_us"]


def _check(snapshot: Snapshot) -> None:
    if snapshot.format_version != FORMAT_VERSION:
        raise SnapshotError(
            f"snapshot of {snapshot.deployment} has format {snapshot.format_version}, this program reads "
            f"{FORMAT_VERSION}; update the program, or start without state"
        )
    if _digest(snapshot.state) != snapshot.sha256:
        raise SnapshotError(f"snapshot of {snapshot.deployment} is corrupt: its digest differs; use an older one")


def _digest(state: Mapping[str, Any]) -> str:
    return sha256(msgspec.json.encode(state)).hexdigest()
