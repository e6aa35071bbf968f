"""What a tick of a core does: scores windows that have closed, judges itself, asks for a simulation, tells its result.

Keeps nothing of its own: it reads and moves the parts of a core. Law: what it asks for depends on the parts and the
tick's event time alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from schemas.changes import Phase
from schemas.forecasts import Forecast
from schemas.lineage import Lineage, Offset
from schemas.topics import ACTIONS, ALERTS, FORECASTS, SCORES
from twin.baselines import Baselines
from twin.closed_window import quantiles_of
from twin.core_parts import Parts
from twin.credibility import Standing, assess, margin_ratio
from twin.deployment import LearnedSteps
from twin.effects import Effect, Emit
from twin.engine_room import costs_hash
from twin.forecasting import Footing, assemble
from twin.job import SimulationJob, SimulationResult, Trials
from twin.metrics import CLOSES_AFTER_S, METRICS, QUANTILES
from twin.scoring import closes_us, score
from twin.settings import TWINCAST_VERSION
from twin.traffic.plan import TrafficPlan
from twin.window_job import WindowJob

LOOK_BACK_US = 60_000_000
_WANTED = [(metric, quantile) for metric in METRICS for quantile in QUANTILES]


@dataclass(slots=True)
class Pending:
    """A tick whose results are on their way, with everything a forecast needs as it stood at `as_of`."""

    job: SimulationJob
    footing: Footing
    baselines: dict[float, Baselines]
    coarse_done: bool = False
    early_fine: SimulationResult | None = None

    def at_phase(self, phase: Phase) -> SimulationJob:
        """The job of one phase; a closed window is replayed with the fine one."""
        job = self.job.at_phase(phase)
        return job if phase == "fine" else replace(job, window=None)


def on_steps(parts: Parts, found: list[LearnedSteps]) -> list[Effect]:
    """Steps were learned: drift, and the sums of windows under way."""
    effects: list[Effect] = []
    for each in found:
        alerts = parts.drift.on_steps(each.engine, each.block, each.learned)
        effects += [Emit(ALERTS, parts.deployment, alert) for alert in alerts]
        parts.replays.tapes.on_steps(each.engine, each.block, each.learned.accepted)
    return effects


def close_windows(parts: Parts, as_of_us: int) -> list[Effect]:
    """Score the windows that have closed, and learn from the scores."""
    effects: list[Effect] = []
    for window in parts.windows.closed_by(as_of_us):
        due_us = closes_us(window.forecast.as_of_us, window.horizon_s)
        end_us = due_us - round(CLOSES_AFTER_S * 1e6)
        scored = score(
            window.forecast,
            window.horizon_s,
            parts.state.observed.members(due_us),
            window.baselines,
            intervened=parts.state.changed_within(window.forecast.as_of_us, end_us),
            saturated_ratio=parts.state.saturation.ratio(window.forecast.as_of_us, end_us),
        )
        effects.append(Emit(SCORES, parts.deployment, scored))
        if window.forecast.phase == "fine":
            parts.ledger.add(scored)
            parts.calibration.on_score(scored)
            parts.authority.on_score(scored)
            effects += [Emit(ALERTS, parts.deployment, alert) for alert in parts.drift.on_score(scored)]
    return effects


def judge(parts: Parts, as_of_us: int) -> None:
    """What forecasts may be used for, and how far outlooks were right."""
    state = parts.state
    parts.authority.on_inputs(as_of_us, state.input_level, state.steps_learned)
    prints = sorted({repr(room.config.fingerprint) for room in state.rooms.values() if room.config is not None})
    fingerprint = sha256(";".join(prints).encode()).hexdigest()
    parts.authority.on_fingerprint(as_of_us, fingerprint)
    parts.authority.on_drift(as_of_us, "cost", bool(parts.drift.drifting))
    parts.outlook_widths.on_tick(as_of_us, state.traffic.arrivals)
    parts.replays.on_fingerprints({name: repr(r.config.fingerprint) for name, r in state.rooms.items() if r.config})


def footing_at(parts: Parts, as_of_us: int, applied: Mapping[tuple[str, int], int]) -> Footing:
    """What a forecast made now stands on. `applied`: the next offset of each topic and partition."""
    state = parts.state
    standing = Standing(
        input_level=state.input_level,
        steps=state.steps_learned,
        scored_rounds=parts.authority.rounds,
        saturated_ratio=state.saturation.ratio(as_of_us - LOOK_BACK_US, as_of_us),
        stale_s=max(as_of_us - state.newest_us, 0) / 1e6,
        drifting=parts.drift.drifting,
        skill=parts.ledger.skill(),
        assumed_limits=state.assumed_limits,
        transfer_ratio=state.transfers.latency_ratio,
    )
    return Footing(
        standing=standing,
        authority=parts.authority.level,
        credibility=assess(standing),
        calibration=parts.calibration.freeze(),
        period_s=parts.settings.period_s,
        lineage=Lineage(
            twincast_version=TWINCAST_VERSION,
            settings_hash=parts.settings.digest,
            costs_hash=costs_hash([room for _, room in sorted(state.rooms.items())], parts.replays.factors),
            seed=parts.settings.root_seed,
            replications=0,
            engine="",
            offsets=tuple(
                Offset(topic=topic, partition=partition, next_offset=offset)
                for (topic, partition), offset in sorted(applied.items())
            ),
            steps_learned=state.steps_learned,
        ),
        outlook_widths=parts.outlook_widths.freeze(),
    )


def job_at(parts: Parts, as_of_us: int, footing: Footing) -> SimulationJob | None:
    """What a forecast made now simulates; None before there is traffic or an engine."""
    settings = parts.settings
    plan = parts.state.plan(as_of_us)
    engines = () if plan is None else parts.state.setups(as_of_us, plan)
    if plan is None or not engines:
        return None
    return SimulationJob(
        deployment=parts.deployment,
        as_of_us=as_of_us,
        tick=as_of_us // settings.period_us,
        phase="coarse",
        engines=parts.replays.corrected(engines),
        traffic=plan,
        root_seed=settings.root_seed,
        routing=settings.routing,
        overheads=parts.state.frontend(),
        slos=parts.state.slos,
        horizons_s=settings.horizons_s,
        coarse_replications=settings.coarse_replications,
        fine_replications=settings.fine_replications,
        scenarios=settings.scenarios,
        with_insight=settings.insight,
        trials=_trials(parts, as_of_us, plan, footing),
    )


def _trials(parts: Parts, as_of_us: int, plan: TrafficPlan, footing: Footing) -> Trials | None:
    parts.advisor.on_traffic(as_of_us, parts.state.traffic.arrivals, plan.rate, parts.state.start_s)
    if not parts.state.slos:
        return None
    return parts.advisor.trials(parts.state.start_s, footing.credibility.level, margin_ratio(footing.standing))


def pending_at(parts: Parts, as_of_us: int, footing: Footing) -> Pending | None:
    """The question of a tick: its forecast, and the replay that is due; a window begins where the last one ended."""
    closed = _closed(parts, as_of_us)
    job = job_at(parts, as_of_us, footing)
    if job is None:
        return None
    parts.replays.tapes.begin(job, parts.replays.factors)
    baselines = {h: parts.state.baselines.at(as_of_us, h, _WANTED) for h in parts.settings.horizons_s}
    return Pending(replace(job, window=closed), footing, baselines)


def _closed(parts: Parts, as_of_us: int) -> WindowJob | None:
    state = parts.state
    return parts.replays.tapes.closed(
        parts.deployment,
        parts.settings.root_seed,
        as_of_us,
        engines={name: room.live for name, room in state.rooms.items()},
        saturation=state.saturation,
        changes_us=[change.at_us for change in state.changes],
    )


def publish(parts: Parts, pending: Pending, result: SimulationResult) -> list[Effect]:
    """The forecast of one phase, and what follows from it."""
    forecast: Forecast = assemble(pending.job.at_phase(result.phase), result, pending.footing)
    effects: list[Effect] = [Emit(FORECASTS, parts.deployment, forecast)]
    if result.phase == "fine":
        effects += [Emit(ALERTS, parts.deployment, alert) for alert in parts.risk.on_forecast(forecast)]
        parts.replays.tapes.on_forecast(forecast)
        if forecast.outlook is not None:
            parts.outlook_widths.on_outlook(forecast.as_of_us, forecast.outlook)
    for horizon_s, baselines in pending.baselines.items():
        parts.windows.open(forecast, horizon_s, baselines)
    told = parts.advisor.on_result(forecast, pending.job, result, parts.settings.period_s)
    effects += [Emit(ACTIONS, parts.deployment, each) for each in told]
    if result.window is not None:
        told_of = parts.replays.on_replayed(parts.deployment, result.window)
        parts.calibration.on_replay(quantiles_of(result.window.observed), quantiles_of(result.window.levelled))
        effects.append(Emit(SCORES, parts.deployment, told_of))
    return effects
