"""A closed window through the twin again, with the requests that really came: how faithful it was, and why it missed.

Twice: with the costs the forecast had and noise as it draws it, and with the level that its steps really had, per
engine and role, without noise. Nothing of a forecast goes in but the engines as they stood at `as_of`. Reads records
as they are given; keeps nothing. Law: with true costs on an engine of the same rules and without noise, recorded and
replayed latencies are equal.
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
from twin.attribution import Attribution, StepEvidence, TrafficEvidence, attribute
from twin.bias import NO_FACTORS, Factors, RoleSteps
from twin.cost.block import StepBlock
from twin.cost.noise import StepNoise
from twin.ends.finished_log import FinishedLog
from twin.ends.hindsight import state_then
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup, SimulationJob
from twin.metrics import METRICS, QUANTILES, IntArray, Latencies, latencies, quantile
from twin.replicate import most_tokens, noise_of
from twin.scoring import closes_us
from twin.traffic.draw import Arrivals
from twin.traffic.streams import Streams
from twin.window_job import WindowJob
from twin.window_replay import replay_window
from twin.window_steps import WindowSteps

US_PER_S = 1_000_000
SATURATED_RATIO = 0.8
LEVELS: tuple[str | float, ...] = ("mean", *QUANTILES)


@dataclass(frozen=True, slots=True, eq=False)
class ClosedWindow:
    """One window, recorded and replayed. Latencies are of its m members, in order of arrival.

    `replayed` holds one replay per draw of noise (one where costs have none). `role_steps` compare the window's steps
    with the costs the forecast had, all engines together. `cause` is why the forecast of it missed, where one is known.
    """

    as_of_us: int
    window_s: float
    observed: Latencies
    replayed: tuple[Latencies, ...]
    levelled: Latencies
    role_steps: tuple[RoleSteps, ...]
    saturated_ratio: float
    steps: StepEvidence | None
    mean_isl_tokens: float
    mean_osl_tokens: float
    prefill_ratio: float
    cause: Attribution | None = None
    cost_factors: Factors = NO_FACTORS

    @property
    def closed_us(self) -> int:
        """Event time of the closing."""
        return closes_us(self.as_of_us, self.window_s)

    @property
    def members(self) -> int:
        """Requests that arrived in the window and finished."""
        return int(self.observed.e2e_s.size)


def close_window(
    job: SimulationJob,
    finished: Iterable[RequestFinished],
    steps: Mapping[str, Sequence[Step]],
    window_s: float,
    forecast: HorizonForecast | None = None,
) -> ClosedWindow | None:
    """Replay (as_of, as_of + window_s] of a job; None if nothing that arrived in it has finished.

    `finished` holds at least every request that was in an engine at `as_of` or arrived until the window closed, and
    finished; `steps` those of each engine, in order. Both may hold more. `forecast`: the job's, of that horizon.
    """
    seen = WindowSteps({setup.name: setup.cost for setup in job.engines}, job.as_of_us, window_s)
    for engine, rows in steps.items():
        used = [each for each in rows if (each.prefill_tokens or each.decode_requests) and each.duration_us > 0]
        seen.add(engine, StepBlock.from_steps(used), waiting=np.array([bool(each.waiting) for each in used], np.bool_))
    return replay(WindowJob.of(job, seen, tuple(finished), window_s, seen.saturated_ratio, forecast))


def replay(job: WindowJob) -> ClosedWindow | None:
    """Replay a closed window; None if nothing that arrived in it has finished."""
    came = _Came.of(job)
    if not came.members:
        return None
    engines = [replace(setup, state=came.state_of(setup, job.drawn)) for setup in job.engines]
    given = [replace(setup, cost=job.steps.levelled(setup.name)) for setup in engines]
    noisy = any(setup.noise is not None for setup in engines)
    draws = range(job.replications) if noisy else range(1)
    window = ClosedWindow(
        as_of_us=job.as_of_us,
        window_s=job.window_s,
        observed=came.observed,
        replayed=tuple(_replay(job, engines, came, number if noisy else None) for number in draws),
        levelled=_replay(job, given, came, None),
        role_steps=job.steps.role_steps(),
        saturated_ratio=job.saturated_ratio,
        steps=job.steps.evidence(),
        mean_isl_tokens=float(came.arrivals.isl_tokens[: came.members].mean()),
        mean_osl_tokens=float(came.arrivals.osl_tokens[: came.members].mean()),
        prefill_ratio=job.steps.prefill_ratio,
        cost_factors=job.cost_factors,
    )
    if job.forecast is None:
        return window
    return replace(window, cause=cause_of(window, job.forecast, job.expected_isl_tokens, job.expected_osl_tokens))


def quantiles_of(*found: Latencies) -> dict[tuple[Metric, float], float]:
    """Seconds per metric and quantile, the mean over replays; those of no request are left out."""
    values = {(metric, level): _one(found, metric, level) for metric in METRICS for level in QUANTILES}
    return {key: value for key, value in values.items() if not math.isnan(value)}


def fidelity_rows(window: ClosedWindow, t0_us: int) -> list[dict[str, Any]]:
    """Recorded against replayed: one row per metric, quantile (and the mean), and whether the level was given."""
    rows: list[dict[str, Any]] = []
    for level_given, twin in ((False, window.replayed), (True, (window.levelled,))):
        for metric in METRICS:
            for level in LEVELS:
                pair = [_one(found, metric, level) for found in ((window.observed,), twin)]
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


def cause_of(
    window: ClosedWindow,
    forecast: HorizonForecast,
    expected_isl_tokens: float | None = None,
    expected_osl_tokens: float | None = None,
) -> Attribution:
    """Why the forecast of this window missed. `forecast` is its horizon of the baseline scenario; tokens per request
    are those it expected on the mean (None: unknown)."""
    expected = max(forecast.arrivals_per_s.value * window.window_s, 0.5)
    rate_per_s = window.members / window.window_s
    return attribute(
        quantiles_of(window.observed),
        {(each.metric, each.quantile): each.value_s for each in forecast.latencies},
        traffic=TrafficEvidence(
            arrivals_log=math.log(window.members / expected),
            prefill_tokens_log=_log_ratio(window.mean_isl_tokens, expected_isl_tokens),
            output_tokens_log=_log_ratio(window.mean_osl_tokens, expected_osl_tokens),
            outside=not forecast.arrivals_per_s.low <= rate_per_s <= forecast.arrivals_per_s.high,
            prefill_ratio=window.prefill_ratio,
        ),
        steps=window.steps,
        saturated_ratio=window.saturated_ratio,
        replayed=quantiles_of(*window.replayed),
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
    def of(cls, job: WindowJob) -> "_Came":
        names = {setup.name: index for index, setup in enumerate(job.engines)}
        timed = [each for each in job.requests if each.first_token_us is not None]
        rows = sorted(
            (each for each in timed if job.as_of_us < each.arrived_us <= job.closes_us),
            key=lambda each: each.arrived_us,
        )
        end_us = job.as_of_us + round(job.window_s * US_PER_S)
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
            observed=_recorded(rows[:members], job.closes_us),
            lengths={(each.arrived_us, each.isl_tokens): each.osl_tokens for each in timed},
            timed=timed,
            as_of_us=job.as_of_us,
        )

    def state_of(self, setup: EngineSetup, drawn: frozenset[str]) -> EngineState:
        """The engine as it stood, its requests with the lengths they really had; unknown ones end at once.

        Where nobody had told who was in it (`drawn`), those are who had come and not ended.
        """
        state = setup.state
        if setup.name in drawn:
            log = FinishedLog()
            for each in self.timed:
                if each.arrived_us <= self.as_of_us < each.at_us and each.engine in ("", setup.name):
                    log.on_finished(each)
            then = state_then(log.table(), self.as_of_us, setup.config)
            state = replace(state, running=then.running, waiting=then.waiting)
        limit_tokens = most_tokens(setup.config)
        return replace(
            state,
            running=tuple(self._with_length(each, limit_tokens) for each in state.running),
            waiting=tuple(self._with_length(each, limit_tokens) for each in state.waiting),
        )

    def _with_length(self, request: CarriedRequest, limit_tokens: int) -> CarriedRequest:
        """With the output it came to have, as far as the engine can hold it."""
        arrived_us = self.as_of_us + request.arrival_ps // 1_000_000
        length = min(self.lengths.get((arrived_us, request.isl_tokens), 0), limit_tokens - request.isl_tokens)
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


def _replay(job: WindowJob, engines: Sequence[EngineSetup], came: _Came, draw: int | None) -> Latencies:
    """One replay; `draw` numbers its noise (None: none)."""
    streams = Streams(job.root_seed, job.deployment, job.as_of_us)
    found = replay_window(
        engines,
        came.arrivals,
        window_s=job.window_s,
        served_by=came.served_by,
        overheads=job.overheads,
        noises=None if draw is None else [noise_of(_within(each.noise), streams, draw, each.name) for each in engines],
    )
    return found.latencies[: came.members]


def _within(noise: StepNoise | None) -> StepNoise | None:
    """What varies inside the window: the level of the whole window is the costs' to know, and a replay judges them."""
    return None if noise is None else replace(noise, window_sigma_ratio=0.0)


def _log_ratio(mean_tokens: float, expected_tokens: float | None) -> float:
    return math.log(mean_tokens / expected_tokens) if expected_tokens and mean_tokens > 0 else 0.0


def _one(found: Sequence[Latencies], metric: Metric, level: str | float) -> float:
    """One quantile, or the mean, of a metric: the mean over replays."""
    values = []
    for each in found:
        known = each.of(metric)[~np.isnan(each.of(metric))]
        if isinstance(level, str):
            values.append(float(known.mean()) if known.size else math.nan)
        else:
            values.append(quantile(known, level))
    return sum(values) / len(values)
