"""Who decides in the closed loop: reactive scaling, persistence, the twin, perfect foresight. Each sees what it may.

Reactive scaling sees requests in flight, or their rate, over the last half minute. The twin sees arrivals, ends of
requests with their lengths, what engines hold, and sums of step shapes and durations; it is given the hardware's costs,
not the hidden ones, and corrects them by what it sees. Only foresight sees the future, and the true service.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from schemas.actions import Action, Scale
from schemas.changes import Change
from schemas.lineage import Lineage
from schemas.requests import RequestArrived, RequestFinished
from schemas.slos import SloTarget
from tests.bench.closed_loop_service import Member, Service
from twin.advise.advisor import Advisor
from twin.advise.policy import Policy
from twin.advise.rounds import Ground
from twin.advise.trials import tried
from twin.advise.upper_side import judged
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import RoleNoise, StepNoise
from twin.cost.shape import Role
from twin.engine.cluster import ClusterResult
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup, SimulationJob
from twin.metrics import IntArray
from twin.tally import seconds
from twin.traffic.forecast import RateForecast
from twin.traffic.history import TrafficHistory

START_US = 1_800_000_000_000_000
US_PER_S = 1_000_000
LEAST_ARRIVALS = 20
_ROLE_NOISE = RoleNoise((1.0,) * 9, 1.0)
NOISE = StepNoise(60.0, 0.03, 0.06, 0.9, 0.0, _ROLE_NOISE, _ROLE_NOISE, _ROLE_NOISE)
ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)


class Scheduler(Protocol):
    """Says how many engines to have."""

    def decide(self, service: Service, at_s: float) -> int:
        """Engines from now on, those that are starting included."""
        ...


def in_flight(service: Service, at_s: float, times_s: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    """Mean requests in the service at some times up to `at_s`; what comes later changes nothing before it."""
    if times_s.size and times_s.max() > at_s:
        raise ValueError(f"in_flight sees nothing after {at_s} s")
    found = service.result(service.requests.span_s).requests
    arrived = service.requests.arrived_s[: found.last_token_ps.size]
    ended = np.where(found.status == 0, seconds(found.last_token_ps), np.inf)
    return float(np.mean([np.count_nonzero((arrived <= t) & (ended > t)) for t in times_s]))


@dataclass(slots=True)
class Reactive:
    """Like Kubernetes' horizontal autoscaler: a target share of what an engine may hold (or of `rate_per_s` where that
    is given), ten per cent of tolerance, the highest wish of the last `down_hold_s` on the way down."""

    target: float
    least: int
    most: int
    down_hold_s: float
    rate_per_s: float | None = None
    wishes: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, service: Service, at_s: float) -> int:
        """See `Scheduler`."""
        standing = len(service.standing())
        if self.rate_per_s is None:
            load = in_flight(service, at_s, np.arange(max(at_s - 30.0, 0.0), at_s, 5.0)) / service.config.max_num_seqs
        else:
            arrived = service.requests.arrived_s
            since_s = max(at_s - 60.0, 0.0)
            count = np.count_nonzero((arrived > since_s) & (arrived <= at_s))
            load = count / (at_s - since_s) / self.rate_per_s
        ratio = load / (standing * self.target)
        wish = standing if abs(ratio - 1.0) <= 0.1 else int(np.ceil(load / self.target - 1e-9))
        wish = min(max(wish, self.least), self.most)
        self.wishes = [(t, n) for t, n in self.wishes if t > at_s - self.down_hold_s] + [(at_s, wish)]
        return max(wish, min(standing, max(n for _, n in self.wishes)))


@dataclass(slots=True)
class Foresight:
    """The fewest engines that keep violations below `violations` once a new one is ready, as it will be."""

    violations: float
    least: int
    most: int
    window_s: float = 60.0

    def decide(self, service: Service, at_s: float) -> int:
        """See `Scheduler`."""
        standing = len(service.standing())
        from_s, to_s = at_s + service.start_s, at_s + service.start_s + self.window_s
        for engines in range(standing, self.most + 1):
            if self._share(service, at_s, engines, from_s, to_s) <= self.violations:
                break
        else:
            engines = self.most
        while engines == standing and engines > self.least:
            if self._share(service, at_s, engines - 1, at_s, to_s) > self.violations / 2:
                break
            return engines - 1
        return engines

    def _share(self, service: Service, at_s: float, engines: int, from_s: float, to_s: float) -> float:
        members = [replace(member) for member in service.members]
        standing = [member for member in members if member.drain_s is None]
        for _ in range(engines - len(standing)):
            members.append(Member(len(members), at_s, at_s + service.start_s))
        for member in standing[engines:]:
            member.drain_s = at_s
        arrived = service.requests.arrived_s
        bad = service.violated(min(to_s, service.requests.span_s) + 30.0, members)
        inside = (arrived[: bad.size] > from_s) & (arrived[: bad.size] <= to_s)
        return float(bad[inside].mean()) if inside.any() else 0.0


@dataclass(slots=True)
class Twin:
    """The twin's own parts in the loop: its traffic history, its engines, its trials and its advisor.

    `persistence`: the rate of the last minute goes on, without doubt, instead of the twin's forecast.
    """

    policy: Policy
    prior: FrozenStepCost
    slos: tuple[SloTarget, ...]
    period_s: float
    seed: int
    persistence: bool = False
    history: TrafficHistory = field(default_factory=TrafficHistory)
    advisor: Advisor = field(init=False)
    told_until: int = 0
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.advisor = Advisor(self.policy)

    def decide(self, service: Service, at_s: float) -> int:
        """See `Scheduler`."""
        now_us = START_US + round(at_s * US_PER_S)
        standing = len(service.standing())
        job = self.watch(service, at_s)
        if job is None:
            return standing
        ground = Ground(
            deployment="loop",
            as_of_us=now_us,
            phase="fine",
            period_s=self.period_s,
            start_s=service.start_s,
            authority="full",
            credibility="high",
            lineage=Lineage(
                twincast_version="", settings_hash="", costs_hash="", seed=self.seed, replications=0, engine=""
            ),
        )
        told = self.advisor.on_trials(ground, [judged(each, self.slos) for each in tried(job)])
        for each in told:
            if isinstance(each, Action) and each.executable and isinstance(each.what, Scale):
                self.advisor.on_change(
                    Change(
                        deployment="loop",
                        at_us=now_us,
                        kind="scale",
                        status="accepted",
                        action_id=each.action_id,
                        engines_before=standing,
                        engines_after=each.what.engines_after,
                        ready_at_us=now_us + round(service.start_s * US_PER_S),
                    )
                )
                return each.what.engines_after
        return standing

    def watch(self, service: Service, at_s: float) -> SimulationJob | None:
        """Hear what has happened up to a time; the job of a forecast from there, None before twenty arrivals."""
        result = service.result(at_s)
        self._hear(service, result, at_s)
        if self.told_until < LEAST_ARRIVALS:
            return None
        return self._job(service, result, at_s, START_US + round(at_s * US_PER_S))

    def _hear(self, service: Service, result: ClusterResult, at_s: float) -> None:
        """Events since the last time, in order."""
        load, done = service.requests, result.requests
        last_s = seconds(done.last_token_ps)
        events: list[tuple[float, int, int]] = []
        count = int(np.searchsorted(load.arrived_s, at_s))
        events += [(float(load.arrived_s[i]), 0, i) for i in range(self.told_until, count)]
        self.told_until = count
        ends = np.flatnonzero((done.status == 0) & (last_s <= at_s)).tolist()
        fresh = [i for i in ends if i not in self.ended]
        self.ended.update(fresh)
        events += [(float(last_s[i]), 1, i) for i in fresh]
        for when_s, kind, i in sorted(events):
            at_us, arrived_us = (START_US + round(t * US_PER_S) for t in (when_s, float(load.arrived_s[i])))
            isl = min(int(load.isl_tokens[i]), (service.config.max_model_len_tokens or 2**20) - 2)
            if kind == 0:
                self.history.arrived(RequestArrived(deployment="loop", request_id=str(i), at_us=at_us, isl_tokens=isl))
            else:
                self.history.finished(
                    RequestFinished(
                        deployment="loop",
                        request_id=str(i),
                        at_us=at_us,
                        arrived_us=arrived_us,
                        isl_tokens=isl,
                        osl_tokens=int(done.generated_tokens[i]),
                    )
                )

    def _job(self, service: Service, result: ClusterResult, at_s: float, now_us: int) -> SimulationJob:
        plan = self.history.plan(now_us)
        if self.persistence:
            recent = np.count_nonzero(service.requests.arrived_s[: self.told_until] > at_s - 60.0)
            plan = replace(plan, rate=RateForecast.steady(max(recent, 1) / min(60.0, at_s)))
        else:
            self.advisor.on_traffic(now_us, self.history.arrivals, plan.rate, service.start_s)
        return SimulationJob(
            deployment="loop",
            as_of_us=now_us,
            tick=round(at_s / self.period_s),
            phase="fine",
            engines=self._engines(service, result, at_s),
            traffic=plan,
            root_seed=self.seed,
            slos=self.slos,
            horizons_s=(60.0,),
            arrivals_beyond_s=20.0,
            trials=self.advisor.trials(service.start_s, "high", 1.0),
        )

    def _engines(self, service: Service, result: ClusterResult, at_s: float) -> tuple[EngineSetup, ...]:
        cost = corrected(self.prior, result)
        used = [m for m in service.members if m.drain_s is None or m.drain_s > m.ready_s]
        made = []
        for index, member in enumerate(used):
            if member.drain_s is not None:
                continue
            mine = np.flatnonzero((result.engine_index == index) & (result.requests.status == 3))
            made.append(
                EngineSetup(
                    name=f"e{member.number}",
                    config=service.config,
                    cost=cost,
                    noise=NOISE,
                    state=_state(service, result, mine, at_s) if member.ready_s <= at_s else EngineState(),
                    available_from_s=max(member.ready_s - at_s, 0.0),
                )
            )
        return tuple(made)


def _state(service: Service, result: ClusterResult, mine: IntArray, at_s: float) -> EngineState:
    """What one engine holds; how far prompts in work are is not known: they begin anew."""
    done = result.requests
    running, waiting = [], []
    for i in mine.tolist():
        arrived_ps = round((float(service.requests.arrived_s[i]) - at_s) * 1e12)
        generated = int(done.generated_tokens[i])
        isl = min(int(service.requests.isl_tokens[i]), (service.config.max_model_len_tokens or 2**20) - 2)
        request = CarriedRequest(isl_tokens=isl, osl_tokens=generated + 1, arrival_ps=min(arrived_ps, 0))
        if generated:
            past = round(min(float(seconds(done.first_token_ps[i : i + 1])[0]) - at_s, 0.0) * 1e12)
            running.append(
                replace(
                    request,
                    computed_tokens=isl + generated - 1,
                    generated_tokens=generated,
                    scheduled_ps=past,
                    first_token_ps=past,
                )
            )
        else:
            waiting.append(request)
    return EngineState(running=tuple(running), waiting=tuple(waiting))


def corrected(prior: FrozenStepCost, result: ClusterResult) -> FrozenStepCost:
    """The prior at the level of the steps seen, per role: sums of their shapes and durations are all that is used."""
    work = np.sum([engine.work for engine in result.engines], axis=0)
    roles = []
    for row, role in zip(work.tolist(), ROLES, strict=True):
        steps, requests, tokens, pairs, decodes, context, busy_ps = row
        cost = prior.role(role)
        if steps < 50:
            roles.append(cost)
            continue
        expected = (
            steps * cost.decodes_ps(round(decodes / steps))
            + requests * cost.prefill_request_ps
            + tokens * cost.prefill_token_ps
            + pairs * cost.prefill_attention_pair_ps
            + context * cost.decode_context_token_ps
        )
        roles.append(cost.scaled(min(max(busy_ps / expected, 0.5), 2.0)))
    return FrozenStepCost(*roles)
