"""A service whose truth is known: the one-event-per-step engine, tapped, with costs, traffic and noise as given.

Made for benchmarks of what judges forecasts: what really happened is known here, and why.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import simpy

from pipelines.ingest.recording import Recording, event_of, in_order
from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import RowKind, Step, StepBatch, StepRow
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost
from twin.cost.shape import StepShape
from twin.engine.plain import PlainEngine, shape_of
from twin.engine.prepare import Prepared, prepare
from twin.engine.record import single_result
from twin.engine.run import simulate
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
    """One step: when it began and how long it took (ps), its shape, its rows, how many waited, ran, and ended."""

    start_ps: int
    duration_ps: int
    shape: StepShape
    rows: tuple[tuple[int, RowKind, int, int], ...]
    waiting: int
    running: int
    finished: int


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

    def __init__(self, env: simpy.Environment, prepared: Prepared) -> None:
        super().__init__(env, prepared)
        self.steps: list[StepSeen] = []
        self._began = (0, 0, 0)

    def _wait(self, duration_ps: int) -> Generator[simpy.Event, object, int]:
        self._began = (self._now, len(self.scheduler.waiting), len(self.scheduler.running))
        return (yield from super()._wait(duration_ps))

    def _end_step(self, rows: list[Scheduled]) -> None:
        start_ps, waiting, running = self._began
        scheduled = tuple((r.request.row, _kind(r), r.tokens, r.before) for r in rows)
        super()._end_step(rows)
        self.steps.append(
            StepSeen(
                start_ps=start_ps,
                duration_ps=self._now - start_ps,
                shape=shape_of(rows),
                rows=scheduled,
                waiting=waiting,
                running=running,
                finished=sum(r.request.ended for r in rows),
            )
        )


def serve(requests: Requests, cost: FrozenStepCost = COST, noise: Noise | None = None) -> Truth:
    """Run all requests to their end."""
    env = simpy.Environment(initial_time=0)
    prepared = prepare(Job(CONFIG, cost, requests.workload, noise=noise))
    engine = _Tapped(env, prepared)
    env.process(engine.run())
    env.run()
    engine.stop()
    done = single_result(prepared, engine.record, "plain", "").requests
    first_s, last_s = done.first_token_ps / PS_PER_S, done.last_token_ps / PS_PER_S
    found = latencies(
        arrived_s=requests.arrived_s, first_token_s=first_s, last_token_s=last_s, osl_tokens=requests.osl_tokens
    )
    return Truth(requests, found, first_s, last_s, tuple(engine.steps))


def latencies_of(requests: Requests, cost: FrozenStepCost = COST) -> Latencies:
    """The same on the fastest engine, without writing down steps."""
    done = simulate(CONFIG, cost, requests.workload).requests
    return latencies(
        arrived_s=requests.arrived_s,
        first_token_s=done.first_token_ps / PS_PER_S,
        last_token_s=done.last_token_ps / PS_PER_S,
        osl_tokens=requests.osl_tokens,
    )


def recording_of(truth: Truth, name: str, batch_steps: int = 20) -> Recording:
    """Everything of a drained run as records of the wire, in event order."""
    batches = [
        StepBatch(
            deployment="oracle",
            engine="0",
            steps=tuple(_wire_step(k, truth.steps[k]) for k in range(at, min(at + batch_steps, len(truth.steps)))),
        )
        for at in range(0, len(truth.steps), batch_steps)
    ]
    requests = [record for i in range(truth.first_s.size) for record in _wire_request(truth, i)]
    events = in_order(event_of(record) for record in [CONFIG, *requests, *batches])
    return Recording(name=name, level="S3", t0_us=START_US, events=events)


def _wire_step(number: int, seen: StepSeen) -> Step:
    shape = seen.shape
    return Step(
        step=number,
        start_us=START_US + seen.start_ps // 1_000_000,
        duration_us=max(seen.duration_ps // 1_000_000, 1),
        prefill_requests=shape.prefill_requests,
        prefill_tokens=shape.prefill_tokens,
        prefill_attention_pairs=shape.prefill_attention_pairs,
        decode_requests=shape.decode_requests,
        decode_context_tokens=shape.decode_context_tokens,
        waiting=seen.waiting,
        running=seen.running,
        finished_requests=seen.finished,
        rows=tuple(StepRow(f"r{row}", kind, tokens, before) for row, kind, tokens, before in seen.rows),
    )


def _wire_request(truth: Truth, i: int) -> tuple[RequestArrived, RequestFinished]:
    requests = truth.requests
    arrived_us, first_us, last_us = (
        START_US + round(float(seconds[i]) * 1e6) for seconds in (requests.arrived_s, truth.first_s, truth.last_s)
    )
    isl, osl = int(requests.isl_tokens[i]), int(requests.osl_tokens[i])
    arrived = RequestArrived(deployment="oracle", request_id=f"r{i}", at_us=arrived_us, engine="0", isl_tokens=isl)
    finished = RequestFinished(
        deployment="oracle",
        request_id=f"r{i}",
        at_us=last_us,
        engine="0",
        arrived_us=arrived_us,
        isl_tokens=isl,
        osl_tokens=osl,
        first_token_us=first_us,
        engine_queued_us=arrived_us,
        engine_first_token_us=first_us,
        engine_last_token_us=last_us,
    )
    return arrived, finished


def wandering(random: np.random.Generator, rate_per_s: float, span_s: float, sigma: float = 0.2) -> Requests:
    """Arrivals whose rate wanders by `sigma` (log) with a memory of ten minutes."""
    minutes = int(span_s / 60.0) + 1
    level = np.empty(minutes)
    level[0] = random.normal()
    keep = np.exp(-1.0 / 10.0)
    for k in range(1, minutes):
        level[k] = keep * level[k - 1] + np.sqrt(1 - keep**2) * random.normal()
    counts = random.poisson(60.0 * rate_per_s * np.exp(sigma * level - sigma**2 / 2))
    arrived = np.concatenate([60.0 * k + random.uniform(0.0, 60.0, count) for k, count in enumerate(counts)])
    arrived = np.sort(arrived[arrived < span_s])
    return Requests(arrived, _lengths(random, 240.0, arrived.size, 1500), _lengths(random, 48.0, arrived.size, 600))


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
