"""What-ifs on a forecast job, each on the same random numbers: bottlenecks by effect, more or fewer engines, bursts.

Proposes nothing and knows no costs of actions. Law: a change that does nothing has an effect of exactly zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import msgspec
import numpy as np

from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.cost.shape import Role
from twin.engine.types import EngineState
from twin.job import EngineSetup, SimulationJob
from twin.metrics import BoolArray, FloatArray
from twin.simulate import run
from twin.traffic.scenarios import BASELINE, Scenario

CHEAPER = 0.9
"""Factor of every what-if: ten per cent cheaper, or ten per cent more of a resource."""

Change = Callable[[EngineSetup], EngineSetup]


@dataclass(frozen=True, slots=True)
class Effect:
    """Relative change of a P95 if one thing is ten per cent cheaper; negative is an improvement.

    Means over replications with their intervals; NaN where the latency itself is undefined or infinite.
    """

    name: str
    kind: Literal["class", "operator", "resource"]
    ttft_p95_change_ratio: float
    ttft_low_ratio: float
    ttft_high_ratio: float
    tpot_p95_change_ratio: float
    tpot_low_ratio: float
    tpot_high_ratio: float


@dataclass(frozen=True, slots=True, eq=False)
class EnginesPoint:
    """With `engines` engines, over (`from_s`, `to_s`]: goodput float64[R]; whether any target is missed, bool[R]."""

    engines: int
    goodput_requests_per_s: FloatArray
    breached: BoolArray
    from_s: float = 0.0
    to_s: float = 0.0


def mean_interval(values: FloatArray, level: float = 0.9) -> tuple[float, float, float]:
    """Mean of independent values and its Student interval; NaN values are left out, NaN if fewer than two remain.

    References: Hill, Algorithm 396, CACM 1970 (first term of the expansion of the quantile).
    """
    values = values[np.isfinite(values)]
    if values.size < 2:
        return (float(values[0]) if values.size else math.nan), math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    student = z + (z**3 + z) / (4.0 * (values.size - 1))
    half = student * float(values.std(ddof=1)) / math.sqrt(values.size)
    mean = float(values.mean())
    return mean, mean - half, mean + half


def role_changes() -> dict[str, Change]:
    """Each step role ten per cent cheaper."""
    return {f"{role} steps": partial(_role_cheaper, role=role, factor=CHEAPER) for role in Role}


def class_changes(shares: Mapping[str, Mapping[Role, float]]) -> dict[str, Change]:
    """Each span class ten per cent cheaper, from its share of the step time of each role (0 .. 1, missing is 0).

    Raises ValueError for a share outside 0 .. 1.
    """
    for name, by_role in shares.items():
        for role, share in by_role.items():
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"share of class {name!r} in {role} steps must be in 0 .. 1, got {share}")
    return {name: partial(_class_cheaper, by_role=dict(by_role)) for name, by_role in shares.items()}


def resource_changes() -> dict[str, Change]:
    """Each coefficient of the step cost ten per cent cheaper, each limit of the engine ten per cent wider."""
    coefficients = ("prefill_request_ps", "prefill_token_ps", "prefill_attention_pair_ps", "decode_context_token_ps")
    changes: dict[str, Change] = {
        name.removesuffix("_ps"): partial(_coefficient_cheaper, name=name) for name in coefficients
    }
    changes["step_fixed"] = _fixed_cheaper
    changes["decode_request"] = _sequences_cheaper
    for name in ("kv_blocks", "max_num_seqs", "max_num_batched_tokens"):
        changes[name] = partial(_limit_wider, name=name)
    return changes


def effects(
    job: SimulationJob, changes: Mapping[str, Change], kind: Literal["class", "operator", "resource"]
) -> list[Effect]:
    """Rerun the baseline over the longest horizon with each change, on the same seeds; the largest TTFT gain first."""
    plain = replace(job, scenarios=(BASELINE,), horizons_s=job.horizons_s[-1:])
    before = _p95(plain)
    found = []
    for name, change in changes.items():
        after = _p95(replace(plain, engines=tuple(change(setup) for setup in plain.engines)))
        with np.errstate(invalid="ignore", divide="ignore"):
            ttft, tpot = (after - before) / before
        found.append(Effect(name, kind, *mean_interval(ttft), *mean_interval(tpot)))
    return sorted(found, key=lambda effect: (math.isnan(effect.ttft_p95_change_ratio), effect.ttft_p95_change_ratio))


def _p95(job: SimulationJob) -> FloatArray:
    """P95 of TTFT and TPOT, float64[2, R]."""
    found = run(job).scenario().horizons[0]
    return np.stack((found.latency("ttft_s", 0.95), found.latency("tpot_s", 0.95)))


def responses(job: SimulationJob, deltas: Sequence[int] = (-1, 0, 1, 2, 3), ready_s: float = 0.0) -> list[EnginesPoint]:
    """Baseline over the longest horizon with more or fewer engines, on the same seeds.

    An added engine is like the first one, empty, and takes requests from `ready_s`; a removed one (the last first)
    finishes what it has. Counts below one engine are left out.
    """
    points = []
    for delta in deltas:
        if len(job.engines) + delta < 1:
            continue
        asked = replace(
            job, scenarios=(BASELINE,), horizons_s=job.horizons_s[-1:], engines=resized(job.engines, delta, ready_s)
        )
        found = run(asked).scenario().horizons[0]
        points.append(
            EnginesPoint(
                len(job.engines) + delta,
                found.goodput_requests_per_s,
                np.any(found.breached, axis=1),
                to_s=job.horizons_s[-1],
            )
        )
    return points


def resized(engines: tuple[EngineSetup, ...], delta: int, ready_s: float) -> tuple[EngineSetup, ...]:
    """The engines with `delta` more, empty and taking requests from `ready_s`, or fewer, the last ones drained."""
    if delta < 0:
        kept = len(engines) + delta
        drained = (replace(setup, available_from_s=0.0, available_until_s=0.0) for setup in engines[kept:])
        return engines[:kept] + tuple(drained)
    added = (
        replace(
            engines[0], name=f"{engines[0].name}+{i + 1}", state=EngineState(), presence=None, available_from_s=ready_s
        )
        for i in range(delta)
    )
    return engines + tuple(added)


def burst_headroom_ratio(
    job: SimulationJob,
    *,
    burst_s: float = 30.0,
    factors: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
    most_breach_probability: float = 0.1,
) -> float:
    """Largest of `factors` by which traffic may rise for `burst_s` before a target is likely missed; 0 if none may.

    Raises ValueError if the job has no targets.
    """
    if not job.slos:
        raise ValueError("burst headroom needs service level targets in job.slos")
    bursts = tuple(Scenario(f"x{factor:g}", burst_factor=factor, burst_s=burst_s) for factor in sorted(factors))
    result = run(replace(job, scenarios=bursts, horizons_s=job.horizons_s[:1]))
    headroom = 0.0
    for factor, found in zip(sorted(factors), result.scenarios, strict=True):
        if float(found.horizons[0].breached.any(axis=1).mean()) > most_breach_probability:
            break
        headroom = factor
    return headroom


def with_config(job: SimulationJob, **fields: Any) -> SimulationJob:
    """The job with fields of every engine's configuration replaced. Raises TypeError for an unknown field.

    Of more running requests than an engine may then run, the last ones wait again, as if they had been preempted.
    """
    changed = (replace(e, config=msgspec.structs.replace(e.config, **fields)) for e in job.engines)
    return replace(job, engines=tuple(_within_limits(setup) for setup in changed))


def _within_limits(setup: EngineSetup) -> EngineSetup:
    state, most = setup.state, setup.config.max_num_seqs
    if len(state.running) <= most:
        return setup
    back = tuple(replace(request, computed_tokens=0) for request in state.running[most:])
    return replace(setup, state=replace(state, running=state.running[:most], waiting=back + state.waiting))


def _role_cheaper(setup: EngineSetup, role: Role, factor: float) -> EngineSetup:
    name = str(role)
    return replace(setup, cost=replace(setup.cost, **{name: setup.cost.role(role).scaled(factor)}))


def _class_cheaper(setup: EngineSetup, by_role: Mapping[Role, float]) -> EngineSetup:
    for role, share in by_role.items():
        setup = _role_cheaper(setup, role, 1.0 - (1.0 - CHEAPER) * share)
    return setup


def _on_roles(setup: EngineSetup, change: Callable[[RoleCost], RoleCost]) -> EngineSetup:
    cost = setup.cost
    return replace(setup, cost=FrozenStepCost(change(cost.prefill), change(cost.decode), change(cost.mixed)))


def _coefficient_cheaper(setup: EngineSetup, name: str) -> EngineSetup:
    return _on_roles(setup, lambda role: replace(role, **{name: round(getattr(role, name) * CHEAPER)}))


def _fixed_cheaper(setup: EngineSetup) -> EngineSetup:
    """The cost of a step with nothing in it."""

    def change(role: RoleCost) -> RoleCost:
        saved = role.decode_requests_ps[0] - max(round(role.decode_requests_ps[0] * CHEAPER), 1)
        return replace(role, decode_requests_ps=tuple(value - saved for value in role.decode_requests_ps))

    return _on_roles(setup, change)


def _sequences_cheaper(setup: EngineSetup) -> EngineSetup:
    """What each decoding sequence adds to a step."""

    def change(role: RoleCost) -> RoleCost:
        fixed = role.decode_requests_ps[0]
        table = tuple(fixed + round((value - fixed) * CHEAPER) for value in role.decode_requests_ps)
        return replace(role, decode_requests_ps=table)

    return _on_roles(setup, change)


def _limit_wider(setup: EngineSetup, name: str) -> EngineSetup:
    value = getattr(setup.config, name)
    return replace(setup, config=msgspec.structs.replace(setup.config, **{name: math.ceil(value / CHEAPER)}))
