"""A small service made for tests: a 30-line engine, its requests and steps as wire records in event order.

Not the twin: fixed step time, every waiting request is admitted while there is room, each prompt in one step.
"""

from dataclasses import dataclass

import numpy as np

from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished, RequestRecord
from schemas.steps import Step, StepBatch, StepRow

START_US = 1_796_052_000_000_000
STEP_US = 20_000
MAX_RUNNING = 8


@dataclass
class _Request:
    name: str
    arrived_us: int
    isl_tokens: int
    osl_tokens: int
    generated_tokens: int = 0
    first_token_us: int = 0


def engine_config(deployment: str = "d") -> EngineConfig:
    return EngineConfig(
        deployment=deployment,
        engine="0",
        at_us=START_US,
        block_size_tokens=16,
        kv_blocks=2_000,
        max_num_seqs=MAX_RUNNING,
        max_num_batched_tokens=2_048,
    )


def service(
    seconds: float, rate_per_s: float = 4.0, seed: int = 1, deployment: str = "d"
) -> list[EngineConfig | RequestRecord | StepBatch]:
    """Records of `seconds` of traffic, in event order; steps come in messages of up to ten."""
    rng = np.random.default_rng(seed)
    count = int(seconds * rate_per_s)
    arrivals = START_US + np.sort(rng.integers(0, int(seconds * 1e6), count))
    waiting = [
        _Request(f"r{i}", int(at), int(rng.integers(10, 200)), int(rng.integers(2, 40)))
        for i, at in enumerate(arrivals)
    ]
    records: list[EngineConfig | RequestRecord | StepBatch] = [engine_config(deployment)]
    records += [
        RequestArrived(deployment=deployment, request_id=r.name, at_us=r.arrived_us, isl_tokens=r.isl_tokens)
        for r in waiting
    ]
    running: list[_Request] = []
    steps: list[Step] = []
    now_us = START_US
    while waiting or running:
        if not running and waiting[0].arrived_us > now_us:
            now_us = waiting[0].arrived_us
        rows = [StepRow(r.name, "decode", 1, r.isl_tokens + r.generated_tokens - 1) for r in running]
        while waiting and waiting[0].arrived_us <= now_us and len(running) < MAX_RUNNING:
            running.append(waiting.pop(0))
            rows.append(StepRow(running[-1].name, "first", running[-1].isl_tokens, 0))
        queued = sum(r.arrived_us <= now_us for r in waiting[:50])
        ending = sum(r.generated_tokens + 1 == r.osl_tokens for r in running)
        steps.append(_step(len(steps), now_us, rows, queued, ending))
        now_us += STEP_US
        for request in running:
            request.generated_tokens += 1
            request.first_token_us = request.first_token_us or now_us
        done = [r for r in running if r.generated_tokens == r.osl_tokens]
        running = [r for r in running if r.generated_tokens < r.osl_tokens]
        records += [_finished(r, now_us + 1_000, deployment) for r in done]
        now_us += 100
    batches = [steps[i : i + 10] for i in range(0, len(steps), 10)]
    records += [StepBatch(deployment=deployment, engine="0", steps=tuple(batch)) for batch in batches]
    return sorted(records, key=at_us)


def at_us(record: EngineConfig | RequestRecord | StepBatch) -> int:
    """When the record is sent: a batch of steps when its last one ends."""
    return record.steps[-1].at_us if isinstance(record, StepBatch) else record.at_us


def _step(number: int, start_us: int, rows: list[StepRow], waiting: int, ending: int) -> Step:
    prefills = [row for row in rows if row.kind != "decode"]
    decodes = [row for row in rows if row.kind == "decode"]
    wobble_us = (number * 7_919) % 400
    return Step(
        step=number,
        start_us=start_us,
        duration_us=STEP_US - 400 + wobble_us,
        prefill_requests=len(prefills),
        prefill_tokens=sum(row.tokens for row in prefills),
        prefill_attention_pairs=sum(row.tokens * (row.tokens + 1) // 2 for row in prefills),
        decode_requests=len(decodes),
        decode_context_tokens=sum(row.computed_tokens + 1 for row in decodes),
        waiting=waiting,
        running=len(rows),
        finished_requests=ending,
        rows=tuple(rows),
    )


def _finished(request: _Request, at_us: int, deployment: str) -> RequestFinished:
    return RequestFinished(
        deployment=deployment,
        request_id=request.name,
        at_us=at_us,
        arrived_us=request.arrived_us,
        isl_tokens=request.isl_tokens,
        osl_tokens=request.osl_tokens,
        first_token_us=request.first_token_us,
    )
