"""A service that obeys: engines whose costs nobody knows, started and drained while requests come. Decides nothing.

The truth is the engine that is equal, bit by bit, to the one that steps singly; its costs are the hardware's, scaled by
a factor of the seed per step role, with noise that wanders per engine. The past is simulated again, from the start,
whenever the schedule of engines has changed: what is decided at a time changes nothing before it.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.cluster import ClusterEngine, ClusterJob, ClusterResult, simulate_clusters
from twin.engine.types import Noise, Workload
from twin.metrics import BoolArray, FloatArray, IntArray
from twin.tally import seconds

NOISE_EPOCHS = 4096
TAIL_S = 180.0


@dataclass(frozen=True, slots=True)
class Requests:
    """n requests in order of arrival: seconds from the start, tokens."""

    name: str
    arrived_s: FloatArray
    isl_tokens: IntArray
    osl_tokens: IntArray

    @property
    def span_s(self) -> float:
        """When the last one has arrived."""
        return float(self.arrived_s[-1])


@dataclass(slots=True)
class Member:
    """One engine: when it was ordered, ready, and told to drain."""

    number: int
    ordered_s: float
    ready_s: float
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must keep."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Service:
    """Engines and requests. `cost` is the true one, noise aside."""

    requests: Requests
    config: EngineConfig
    cost: FrozenStepCost
    limits: Limits
    start_s: float
    noise_sigma_ratio: float
    noise_rho: float
    seed: int
    members: list[Member] = field(default_factory=list)
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    _workload: Workload | None = None
    _noises: dict[int, Noise] = field(default_factory=dict)
    _known: tuple[tuple[tuple[int, float, float | None], ...], float, ClusterResult] | None = None

    def begin(self, engines: int) -> None:
        """Engines that are ready at once."""
        self.members = [Member(number, 0.0, 0.0) for number in range(engines)]

    def standing(self) -> list[Member]:
        """Engines that serve or start."""
        return [member for member in self.members if member.drain_s is None]

    def order(self, at_s: float, engines: int) -> None:
        """Have so many engines: new ones take `start_s`; given up are those that are starting, then the newest."""
        standing = self.standing()
        before = len(standing)
        for _ in range(engines - before):
            self.members.append(Member(len(self.members), at_s, at_s + self.start_s))
        for member in reversed(standing[engines:] if engines < before else []):
            member.drain_s = at_s
        if engines != before:
            self.steps.append((at_s, before, engines))

    def result(self, until_s: float, members: list[Member] | None = None) -> ClusterResult:
        """What has happened by a time; with other `members`, what would have."""
        chosen = self._chosen(members or self.members)
        key = tuple((member.number, member.ready_s, member.drain_s) for member in chosen)
        if self._known is not None and self._known[0] == key and self._known[1] == until_s:
            return self._known[2]
        found = simulate_clusters([self._job(chosen, until_s)])[0]
        if members is None:
            self._known = (key, until_s, found)
        return found

    def same_step_by_step(self, until_s: float) -> bool:
        """Whether the engine that takes one step at a time gives the same times, request by request."""
        asked = self._job(self._chosen(self.members), until_s)
        one, two = (simulate_clusters([asked], engine=name)[0].requests for name in ("auto", "plain"))
        return bool(
            np.array_equal(one.first_token_ps, two.first_token_ps)
            and np.array_equal(one.last_token_ps, two.last_token_ps)
        )

    @staticmethod
    def _chosen(members: list[Member]) -> list[Member]:
        """Those that ever serve."""
        return [member for member in members if member.drain_s is None or member.drain_s > member.ready_s]

    def _job(self, chosen: list[Member], until_s: float) -> ClusterJob:
        if self._workload is None:
            limit = (self.config.max_model_len_tokens or 2**20) - 1
            isl = np.minimum(self.requests.isl_tokens, limit - 1)
            osl = np.minimum(self.requests.osl_tokens, limit - isl)
            self._workload = Workload.from_seconds(
                arrival_s=self.requests.arrived_s, isl_tokens=isl, osl_tokens=np.maximum(osl, 1)
            )
        return ClusterJob(
            engines=tuple(self._engine(member) for member in chosen),
            workload=_until(self._workload, round(until_s * PS_PER_S)),
            until_ps=round(until_s * PS_PER_S),
        )

    def _engine(self, member: Member) -> ClusterEngine:
        return ClusterEngine(
            config=self.config,
            cost=self.cost,
            noise=self._noise(member.number),
            from_ps=round(member.ready_s * PS_PER_S),
            drain_ps=None if member.drain_s is None else round(max(member.drain_s, member.ready_s) * PS_PER_S),
        )

    def _noise(self, number: int) -> Noise:
        if number in self._noises:
            return self._noises[number]
        normal = np.random.default_rng([self.seed, 77, number]).standard_normal(NOISE_EPOCHS)
        rho, state, ratios = self.noise_rho, float(normal[0]), np.empty(NOISE_EPOCHS)
        for epoch in range(NOISE_EPOCHS):
            state = rho * state + np.sqrt(1.0 - rho * rho) * normal[epoch] if epoch else state
            ratios[epoch] = np.exp(self.noise_sigma_ratio * state - self.noise_sigma_ratio**2 / 2)
        self._noises[number] = Noise.from_ratios(np.tile(ratios, (3, 1)))
        return self._noises[number]

    def violated(self, until_s: float, members: list[Member] | None = None) -> BoolArray:
        """Requests that missed a limit, or had not finished."""
        found = self.result(until_s, members).requests
        arrived = self.requests.arrived_s[: found.first_token_ps.size]
        first, last = seconds(found.first_token_ps), seconds(found.last_token_ps)
        tokens = np.maximum(found.generated_tokens - 1, 1)
        with np.errstate(invalid="ignore"):
            good = (first - arrived <= self.limits.ttft_s) & (
                (found.generated_tokens < 2) | ((last - first) / tokens <= self.limits.tpot_s)
            )
        return ~(good & (found.status == 0))

    def account(self, counted_from_s: float = 0.0) -> "Account":
        """Of the whole run; requests are counted that arrive from `counted_from_s` on."""
        end_s = self.requests.span_s
        result = self.result(end_s + TAIL_S)
        bad = self.violated(end_s + TAIL_S)[self.requests.arrived_s >= counted_from_s]
        hours = 0.0
        last_s = seconds(result.requests.last_token_ps)
        used = self._chosen(self.members)
        for member in self.members:
            ended_s = end_s if member.drain_s is None else member.drain_s
            if member in used and member.drain_s is not None:
                mine = last_s[result.engine_index == used.index(member)]
                ended_s = max(ended_s, float(np.nanmax(mine, initial=0.0)))
            hours += max(min(ended_s, end_s) - member.ordered_s, 0.0) / 3600.0
        ways = [np.sign(after - before) for _, before, after in self.steps]
        reversals = sum(1 for one, two in pairwise(ways) if one != two)
        return Account(int(bad.sum()), bad.size, hours, len(self.steps), reversals)


@dataclass(frozen=True, slots=True)
class Account:
    """Requests that missed a limit, requests, engine-hours, steps up or down, and how often the way turned."""

    violations: int
    requests: int
    engine_hours: float
    steps: int
    reversals: int


def _until(load: Workload, until_ps: int) -> Workload:
    count = int(np.searchsorted(load.arrival_ps, until_ps))
    return replace(
        load,
        **{
            name: getattr(load, name)[:count]
            for name in ("arrival_ps", "isl_tokens", "osl_tokens", "priority", "timeout_ps")
        },
        hash_offsets=load.hash_offsets[: count + 1],
    )


def hidden(cost: FrozenStepCost, seed: int, low: float, high: float) -> FrozenStepCost:
    """Costs scaled by a factor per role that only the seed knows."""
    factors = np.random.default_rng([seed, 5]).uniform(low, high, 3)
    return FrozenStepCost(
        *(role.scaled(f) for role, f in zip((cost.prefill, cost.decode, cost.mixed), factors, strict=True))
    )
