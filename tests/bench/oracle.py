"""A service whose truth is known: the one-event-per-step engine, tapped, with costs, traffic and noise as given.

Made for benchmarks of what judges forecasts: what really happened is known here, and why.
"""

from dataclasses import dataclass

import numpy as np
import simpy

from schemas.engines import EngineConfig
from schemas.steps import RowKind
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost
from twin.cost.shape import StepShape
from twin.engine.plain import PlainEngine
from twin.engine.prepare import prepare
from twin.engine.scheduler import Scheduled
from twin.engine.types import Job, Noise, Workload
from twin.metrics import FloatArray, IntArray, Latencies, latencies

START_US = 1_800_000_000_000_000
CONFIG = EngineConfig(
    deployment="oracle",
    engine="0",
    at_us=START_US,
    block_size_tokens=32,
    kv_blocks=160,
    max_num_seqs=24,
    max_num_batched_tokens=256,
)
_ROLE = RoleCost(
    decode_requests_ps=(5_500_000_000, 6_400_000_000),
    prefill_request_ps=600_000_000,
    prefill_token_ps=150_000_000,
    prefill_attention_pair_ps=30_000,
    decode_context_token_ps=400_000,
)
COST = FrozenStepCost(prefill=_ROLE, decode=_ROLE, mixed=_ROLE)
"""Close to what a small model on one CPU core takes; capacity about ten requests per second of `LENGTHS`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """n requests in order of arrival: seconds from the start, tokens."""

    arrived_s: FloatArray
    isl_tokens: IntArray
    osl_tokens: IntArray

    @property
    def workload(self) -> Workload:
        """For an engine."""
        return Workload.from_seconds(arrival_s=self.arrived_s, isl_tokens=self.isl_tokens, osl_tokens=self.osl_tokens)


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step: when it began and how long it took (ps), its shape, its rows, how many waited and ran."""

    start_ps: int
    duration_ps: int
    shape: StepShape
    rows: tuple[tuple[int, RowKind, int, int], ...]
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened. `latencies` per request, `first_s` and `last_s` from the start, NaN where it never came."""

    requests: Requests
    latencies: Latencies
    first_s: FloatArray
    last_s: FloatArray
    steps: tuple[StepSeen, ...]


class _Tapped(PlainEngine):
    """The oracle engine, which writes down every step."""

    def __init__(self, env: simpy.Environment, job: Job) -> None:
        super().__init__(env, prepare(job))
        self.steps: list[StepSeen] = []

    def _account(self, rows: list[Scheduled]) -> int:
        duration_ps = super()._account(rows)
        scheduled = tuple((r.request.row, _kind(r), r.tokens, r.before) for r in rows)
        self.steps.append(
            StepSeen(
                start_ps=self._now,
                duration_ps=duration_ps,
                shape=_shape(rows),
                rows=scheduled,
                waiting=len(self._scheduler.waiting),
                running=len(self._scheduler.running),
            )
        )
        return duration_ps


def serve(requests: Requests, cost: FrozenStepCost = COST, noise: Noise | None = None) -> Truth:
    """Run all requests to their end."""
    env = simpy.Environment(initial_time=0)
    engine = _Tapped(env, Job(CONFIG, cost, requests.workload, noise=noise))
    env.process(engine.run())
    env.run()
    done = engine.record.result(engine._given, "plain", "").requests
    first_s, last_s = done.first_token_ps / PS_PER_S, done.last_token_ps / PS_PER_S
    found = latencies(
        arrived_s=requests.arrived_s, first_token_s=first_s, last_token_s=last_s, osl_tokens=requests.osl_tokens
    )
    return Truth(requests, found, first_s, last_s, tuple(engine.steps))


def poisson(
    random: np.random.Generator, rate_per_s: float, span_s: float, *, isl: float = 1.0, osl: float = 1.0
) -> Requests:
    """Poisson arrivals; prompts lognormal with mean 240 x `isl`, outputs with mean 48 x `osl` tokens."""
    count = int(random.poisson(rate_per_s * span_s))
    return Requests(
        arrived_s=np.sort(random.uniform(0.0, span_s, count)),
        isl_tokens=_lengths(random, 240.0 * isl, count, 1500),
        osl_tokens=_lengths(random, 48.0 * osl, count, 600),
    )


def _lengths(random: np.random.Generator, mean: float, count: int, most: int) -> IntArray:
    drawn = random.lognormal(np.log(mean) - 0.125, 0.5, count)
    return np.clip(np.rint(drawn), 2, most).astype(np.int64)


def _kind(row: Scheduled) -> RowKind:
    if row.decode:
        return "decode"
    if row.before > row.request.cached_tokens:
        return "chunk"
    return "resumed" if row.request.preemptions else "first"


def _shape(rows: list[Scheduled]) -> StepShape:
    prefills = [r for r in rows if not r.decode]
    decodes = [r for r in rows if r.decode]
    return StepShape(
        prefill_requests=len(prefills),
        prefill_tokens=sum(r.tokens for r in prefills),
        prefill_attention_pairs=sum(r.tokens * r.before + r.tokens * (r.tokens + 1) // 2 for r in prefills),
        decode_requests=len(decodes),
        decode_context_tokens=sum(r.before + 1 for r in decodes),
    )
