"""A closed window through the twin again, with the requests that really came: how faithful it was, and why it missed.

Twice: with the costs the forecast had, and with the level that its steps really had, per engine and role. Nothing of a
forecast goes in but the engines as they stood at `as_of`. Reads records as they are given; keeps nothing.
Law: with true costs on an engine of the same rules, recorded and replayed latencies are equal.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.forecasts import HorizonForecast
from schemas.requests import RequestFinished
from schemas.slos import Metric
from schemas.steps import Step
from twin.attribution import ROLES, Attribution, StepEvidence, TrafficEvidence, attribute, step_evidence
from twin.bias import RoleSteps
from twin.cost.block import StepBlock
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.shape import Role, StepShape
from twin.ends.finished_log import FinishedLog
from twin.ends.hindsight import state_then
from twin.engine.types import CarriedRequest
from twin.job import EngineSetup, SimulationJob
from twin.metrics import CLOSES_AFTER_S, METRICS, QUANTILES, FloatArray, IntArray, Latencies, latencies, quantile
from twin.traffic.draw import Arrivals
from twin.window_replay import replay_window

US_PER_S = 1_000_000
SATURATED_RATIO = 0.8
LEVELS: tuple[str | float, ...] = ("mean", *QUANTILES)
_ENOUGH_STEPS = 20
_IDLE_DURATIONS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class ClosedWindow:
    """One window, recorded and replayed. Latencies are of its m members, in order of arrival.

    `role_steps` compare the window's steps with the costs the forecast had, all engines together.
    """

    as_of_us: int
    window_s: float
    observed: Latencies
    replayed: Latencies
    levelled: Latencies
    role_steps: tuple[RoleSteps, ...]
    saturated_ratio: float
    steps: StepEvidence | None
    mean_isl_tokens: float
    mean_osl_tokens: float
    prefill_ratio: float

    @property
    def members(self) -> int:
        """Requests that arrived in the window and finished."""
        return int(self.observed.e2e_s.size)


def close_window(
    job: SimulationJob,
    finished: Iterable[RequestFinished],
    steps: Mapping[str, Sequence[Step]],
    window_s: float,
) -> ClosedWindow | None:
    """Replay (as_of, as_of + window_s] of a job; None if nothing that arrived in it has finished.

    `finished` holds at least every request that was in an engine at `as_of` or arrived until the window closed, and
    finished; `steps` those of each engine, in order. Both may hold more.
    """
    came = _Came.of(job, finished, window_s)
    if not came.members:
        return None
    seen = {
        setup.name: _SeenSteps.of(setup.cost, _within(steps.get(setup.name, ()), job, window_s))
        for setup in job.engines
    }
    engines = [replace(setup, state=came.state_of(setup)) for setup in job.engines]
    given = [replace(setup, cost=seen[setup.name].levelled(setup.cost)) for setup in engines]
    return ClosedWindow(
        as_of_us=job.as_of_us,
        window_s=window_s,
        observed=came.observed,
        replayed=_replay(job, engines, came, window_s),
        levelled=_replay(job, given, came, window_s),
        role_steps=_together(list(seen.values())),
        saturated_ratio=_saturated(list(seen.values())),
        steps=_evidence(list(seen.values())),
        mean_isl_tokens=float(came.arrivals.isl_tokens[: came.members].mean()),
        mean_osl_tokens=float(came.arrivals.osl_tokens[: came.members].mean()),
        prefill_ratio=_prefill_ratio(list(seen.values())),
    )


def quantiles_of(found: Latencies) -> dict[tuple[Metric, float], float]:
    """Seconds per metric and quantile; those of no request are left out."""
    values = {(metric, level): quantile(found.of(metric), level) for metric in METRICS for level in QUANTILES}
    return {key: value for key, value in values.items() if not math.isnan(value)}


def fidelity_rows(window: ClosedWindow, t0_us: int) -> list[dict[str, Any]]:
    """Recorded against replayed: one row per metric, quantile (and the mean), and whether the level was given."""
    rows: list[dict[str, Any]] = []
    for level_given, twin in ((False, window.replayed), (True, window.levelled)):
        for metric in METRICS:
            for level in LEVELS:
                pair = [_one(found.of(metric), level) for found in (window.observed, twin)]
                if all(math.isfinite(value) and value > 0 for value in pair):
                    rows.append(
                        {
                            "window_start_s": (window.as_of_us - t0_us) / US_PER_S,
                            "window_s": window.window_s,
                            "saturated": window.saturated_ratio >= SATURATED_RATIO,
                            "level_given": level_given,
                            "metric": metric,
                            "quantile": level,
                            "observed": pair[0],
                            "twin": pair[1],
                        }
                    )
    return rows


def cause_of(window: ClosedWindow, forecast: HorizonForecast, job: SimulationJob) -> Attribution:
    """Why the forecast of this window missed. `forecast` is its horizon of the baseline scenario."""
    expected = max(forecast.arrivals_per_s.value * window.window_s, 0.5)
    rate_per_s = window.members / window.window_s
    return attribute(
        quantiles_of(window.observed),
        {(each.metric, each.quantile): each.value_s for each in forecast.latencies},
        traffic=TrafficEvidence(
            arrivals_log=math.log(window.members / expected),
            prefill_tokens_log=_log_ratio(window.mean_isl_tokens, job.traffic.sources.isl_tokens),
            output_tokens_log=_log_ratio(window.mean_osl_tokens, job.traffic.sources.osl_tokens),
            outside=not forecast.arrivals_per_s.low <= rate_per_s <= forecast.arrivals_per_s.high,
            prefill_ratio=window.prefill_ratio,
        ),
        steps=window.steps,
        saturated_ratio=window.saturated_ratio,
        replayed=quantiles_of(window.replayed),
        levelled=quantiles_of(window.levelled),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Came:
    """Requests that really came: as arrivals of one replication, the first `members` of them in the window."""

    arrivals: Arrivals
    served_by: IntArray
    members: int
    observed: Latencies
    lengths: Mapping[tuple[int, int], int]
    timed: Sequence[RequestFinished]
    as_of_us: int

    @classmethod
    def of(cls, job: SimulationJob, finished: Iterable[RequestFinished], window_s: float) -> "_Came":
        names = {setup.name: index for index, setup in enumerate(job.engines)}
        closes_us = job.as_of_us + round((window_s + CLOSES_AFTER_S) * US_PER_S)
        timed = [each for each in finished if each.first_token_us is not None]
        rows = sorted(
            (each for each in timed if job.as_of_us < each.arrived_us <= closes_us), key=lambda each: each.arrived_us
        )
        end_us = job.as_of_us + round(window_s * US_PER_S)
        members = sum(each.arrived_us <= end_us for each in rows)
        size = max((each.hash_block_tokens for each in rows), default=0)
        return cls(
            arrivals=Arrivals.of_one(
                arrived_s=np.array([(each.arrived_us - job.as_of_us) / US_PER_S for each in rows]),
                isl_tokens=np.array([max(each.isl_tokens, 1) for each in rows], np.int64),
                osl_tokens=np.array([max(each.osl_tokens, 1) for each in rows], np.int64),
                priority=np.array([each.priority for each in rows], np.int64),
                block_hashes=[each.block_hashes if each.hash_block_tokens == size else () for each in rows],
                hash_block_tokens=size,
            ),
            served_by=np.array([names.get(each.engine, 0) for each in rows], np.int64),
            members=members,
            observed=_recorded(rows[:members], closes_us),
            lengths={(each.arrived_us, each.isl_tokens): each.osl_tokens for each in timed},
            timed=timed,
            as_of_us=job.as_of_us,
        )

    def state_of(self, setup: EngineSetup) -> Any:
        """The engine as it stood, its requests with the lengths they really had; unknown ones end at once.

        Where nobody had told who was in it, those are who had come and not ended.
        """
        state = setup.state
        if setup.presence is not None:
            log = FinishedLog()
            for each in self.timed:
                if each.arrived_us <= self.as_of_us < each.at_us and each.engine in ("", setup.name):
                    log.on_finished(each)
            then = state_then(log.table(), self.as_of_us, setup.config)
            return replace(state, running=then.running, waiting=then.waiting)
        return replace(
            state,
            running=tuple(self._with_length(each) for each in state.running),
            waiting=tuple(self._with_length(each) for each in state.waiting),
        )

    def _with_length(self, request: CarriedRequest) -> CarriedRequest:
        arrived_us = self.as_of_us + request.arrival_ps // 1_000_000
        length = self.lengths.get((arrived_us, request.isl_tokens), 0)
        return replace(request, osl_tokens=max(length, request.generated_tokens + 1))


def _recorded(rows: Sequence[RequestFinished], closes_us: int) -> Latencies:
    first_us = [each.first_token_us if each.first_token_us is not None else each.at_us for each in rows]
    start_us = rows[0].arrived_us if rows else 0
    return latencies(
        arrived_s=np.array([(each.arrived_us - start_us) / US_PER_S for each in rows]),
        first_token_s=np.array([(first - start_us) / US_PER_S for first in first_us]),
        last_token_s=np.array([(each.at_us - start_us) / US_PER_S for each in rows]),
        osl_tokens=np.array([each.osl_tokens for each in rows], np.int64),
        closes_s=(closes_us - start_us) / US_PER_S,
    )


def _replay(job: SimulationJob, engines: Sequence[EngineSetup], came: _Came, window_s: float) -> Latencies:
    replay = replay_window(engines, came.arrivals, window_s=window_s, served_by=came.served_by, overheads=job.overheads)
    return replay.latencies[: came.members]


def _within(steps: Iterable[Step], job: SimulationJob, window_s: float) -> list[Step]:
    end_us = job.as_of_us + round(window_s * US_PER_S)
    return [each for each in steps if job.as_of_us < each.start_us <= end_us]


@dataclass(frozen=True, slots=True, eq=False)
class _SeenSteps:
    """Steps of one engine in the window that scheduled something; arrays of n, the gap before a step is part of it."""

    end_s: FloatArray
    roles: IntArray
    observed_s: FloatArray
    predicted_s: FloatArray
    waiting: FloatArray

    @classmethod
    def of(cls, cost: FrozenStepCost, steps: Sequence[Step]) -> "_SeenSteps":
        used = [each for each in steps if (each.prefill_tokens or each.decode_requests) and each.duration_us > 0]
        block = StepBlock.from_steps(used)
        gaps_s = _gaps_s(block)
        shapes = [StepShape(*(int(count) for count in row)) for row in block.shapes]
        return cls(
            end_s=block.at_us / US_PER_S,
            roles=np.array([ROLES.index(shape.role) for shape in shapes], np.int64),
            observed_s=block.duration_s + gaps_s,
            predicted_s=np.array([cost.step_ps(shape) / PS_PER_S for shape in shapes]),
            waiting=np.array([float(bool(each.waiting)) for each in used]),
        )

    def levelled(self, cost: FrozenStepCost) -> FrozenStepCost:
        """The costs at the level that the window's steps had, per role where it has enough of them."""
        if not self.observed_s.size:
            return cost
        whole = float(self.observed_s.sum() / self.predicted_s.sum())
        ratios = {}
        for index, role in enumerate(ROLES):
            mine = self.roles == index
            enough = np.count_nonzero(mine) >= _ENOUGH_STEPS
            ratios[role] = float(self.observed_s[mine].sum() / self.predicted_s[mine].sum()) if enough else whole
        return FrozenStepCost(
            prefill=cost.prefill.scaled(ratios[Role.PREFILL]),
            decode=cost.decode.scaled(ratios[Role.DECODE]),
            mixed=cost.mixed.scaled(ratios[Role.MIXED]),
        )


def _together(seen: Sequence[_SeenSteps]) -> tuple[RoleSteps, ...]:
    rows = []
    for index, role in enumerate(ROLES):
        picked = [(each, each.roles == index) for each in seen]
        rows.append(
            RoleSteps(
                role=role,
                steps=sum(int(np.count_nonzero(mine)) for _, mine in picked),
                observed_s=sum(float(each.observed_s[mine].sum()) for each, mine in picked),
                predicted_s=sum(float(each.predicted_s[mine].sum()) for each, mine in picked),
            )
        )
    return tuple(rows)


def _saturated(seen: Sequence[_SeenSteps]) -> float:
    """Share of step time with requests waiting, of the most saturated engine."""
    return max(
        (
            float((each.observed_s * each.waiting).sum() / each.observed_s.sum())
            for each in seen
            if each.observed_s.size
        ),
        default=0.0,
    )


def _evidence(seen: Sequence[_SeenSteps]) -> StepEvidence | None:
    if not any(each.observed_s.size for each in seen):
        return None
    return step_evidence(
        np.concatenate([each.end_s for each in seen]),
        np.concatenate([each.roles for each in seen]),
        np.concatenate([each.observed_s for each in seen]),
        np.concatenate([each.predicted_s for each in seen]),
    )


def _prefill_ratio(seen: Sequence[_SeenSteps]) -> float:
    """Share of step time in prefill, half of a mixed step's; a half where there was no step."""
    rows = {row.role: row.observed_s for row in _together(seen)}
    total = sum(rows.values())
    return (rows[Role.PREFILL] + rows[Role.MIXED] / 2) / total if total > 0 else 0.5


def _log_ratio(mean_tokens: float, sources: IntArray) -> float:
    known = sources[sources > 0]
    return math.log(mean_tokens / float(known.mean())) if known.size and mean_tokens > 0 else 0.0


def _one(values: FloatArray, level: str | float) -> float:
    known = values[~np.isnan(values)]
    if isinstance(level, str):
        return float(known.mean()) if known.size else math.nan
    return quantile(known, level)


def _gaps_s(block: StepBlock) -> FloatArray:
    """Time between steps while work waited, float64[n]; the mean where it is unknown, or so long that none waited."""
    if not len(block):
        return block.duration_s
    usable = (block.gap_s >= 0.0) & (block.gap_s <= _IDLE_DURATIONS * np.median(block.duration_s))
    mean = float(block.gap_s[usable].mean()) if usable.any() else 0.0
    return np.where(usable, block.gap_s, mean)
