"""A made fleet of live services: records of many deployments in event time, as their engines would tell them.

Each deployment is one engine with a fixed step time and as many running requests as its rate needs; it is no vLLM, and
says nothing of fidelity. Law: records come in event order, and a deployment's request rate is what was asked.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipelines.outputs import Outgoing
from schemas.codec import encode
from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished
from schemas.slos import Slos, SloTarget
from schemas.steps import Step, StepBatch
from schemas.topics import ENGINES, REQUESTS, SLOS, STEPS

STEP_US = 20_000
BATCH_STEPS = 5
ISL_TOKENS, OSL_TOKENS = 240, 24
TTFT_US = 45_000
TARGET = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)


@dataclass
class Service:
    """One deployment at `rate_per_s` requests."""

    name: str
    rate_per_s: float
    rng: np.random.Generator
    step: int = 0
    request: int = 0
    running: list[int] = field(default_factory=list)
    """Ends of running requests, microseconds."""
    pending: list[Step] = field(default_factory=list)
    next_arrival_us: int = 0


def fleet(deployments: int, rate_per_s: float) -> list[Service]:
    """So many deployments of this rate each."""
    return [Service(f"chat-{i}", rate_per_s, np.random.default_rng(i)) for i in range(deployments)]


def stream(
    services: list[Service], seconds: float, start_us: int, *, targets: tuple[SloTarget, ...] = (TARGET,)
) -> Iterator[tuple[int, Outgoing]]:
    """Messages with the event time at which they are to be sent, in order."""
    for service in services:
        service.next_arrival_us = start_us
        yield start_us, _out(ENGINES.name, service, _engine(service, start_us), start_us, key=f"{service.name}/0")
        if targets:
            slos = Slos(deployment=service.name, at_us=start_us, targets=targets)
            yield start_us, _out(SLOS.name, service, slos, start_us)
    yield from heapq.merge(*(_records(each, seconds, start_us) for each in services), key=lambda pair: pair[0])


def _records(service: Service, seconds: float, start_us: int) -> Iterator[tuple[int, Outgoing]]:
    ends: list[tuple[int, int, int]] = []
    for number in range(int(seconds * 1e6 / STEP_US)):
        at_us = start_us + number * STEP_US
        new = 0
        while service.next_arrival_us <= at_us:
            arrived_us, name = service.next_arrival_us, service.request
            service.request += 1
            service.next_arrival_us += max(1, round(service.rng.exponential(1e6 / service.rate_per_s)))
            record = RequestArrived(
                deployment=service.name, request_id=f"r{name}", at_us=arrived_us, isl_tokens=ISL_TOKENS
            )
            yield arrived_us, _out(REQUESTS.name, service, record, arrived_us)
            heapq.heappush(ends, (at_us + TTFT_US + OSL_TOKENS * STEP_US, arrived_us, name))
            new += 1
        while ends and ends[0][0] <= at_us:
            end_us, arrived_us, name = heapq.heappop(ends)
            yield at_us, _out(REQUESTS.name, service, _finished(service, end_us, arrived_us, name), end_us)
        service.pending.append(_step(service, at_us, new, len(ends) - new))
        if len(service.pending) == BATCH_STEPS:
            batch = StepBatch(deployment=service.name, engine="0", steps=tuple(service.pending))
            service.pending.clear()
            yield at_us + STEP_US, _out(STEPS.name, service, batch, at_us)


def _out(topic: str, service: Service, record: object, at_us: int, key: str = "") -> Outgoing:
    return Outgoing(topic, service.name, (key or service.name).encode(), encode(record), (), at_us)  # type: ignore[arg-type]


def _engine(service: Service, at_us: int) -> EngineConfig:
    return EngineConfig(
        deployment=service.name, engine="0", at_us=at_us, block_size_tokens=32, kv_blocks=20_000, max_num_seqs=1024,
        max_num_batched_tokens=32_768,
    )  # fmt: skip


def _finished(service: Service, end_us: int, arrived_us: int, name: int) -> RequestFinished:
    return RequestFinished(
        deployment=service.name, request_id=f"r{name}", at_us=end_us, engine="0", arrived_us=arrived_us,
        isl_tokens=ISL_TOKENS, osl_tokens=OSL_TOKENS, first_token_us=min(arrived_us + TTFT_US, end_us),
    )  # fmt: skip


def _step(service: Service, at_us: int, new: int, decodes: int) -> Step:
    service.step += 1
    tokens = new * ISL_TOKENS
    return Step(
        step=service.step, start_us=at_us, duration_us=STEP_US - 500 - int(service.rng.integers(0, 1000)),
        prefill_requests=new, prefill_tokens=tokens, prefill_attention_pairs=tokens * (ISL_TOKENS + 1) // 2,
        decode_requests=decodes, decode_context_tokens=decodes * (ISL_TOKENS + OSL_TOKENS // 2), waiting=0,
        running=decodes + new, kv_used_blocks=min(9 * (decodes + new), 20_000),
    )  # fmt: skip
