"""Known requests made for tests: records of an engine of known cost, as the twin itself would have recorded them."""

from typing import Any

import numpy as np

from schemas.requests import RequestArrived, RequestFinished, RequestRecord
from schemas.steps import Step
from tests.made_jobs import AS_OF_US, COST, config
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import StepShape
from twin.known.requests import KnownRequests, known_requests
from twin.known.run import KnownEngine, KnownRun, run_known

DEPLOYMENT = "d"


def arrived(number: int, time_s: float, **fields: Any) -> RequestArrived:
    return RequestArrived(
        **{
            "deployment": DEPLOYMENT,
            "request_id": f"r{number}",
            "at_us": AS_OF_US + round(time_s * 1e6),
            "engine": "e0",
            "isl_tokens": 100,
            **fields,
        }
    )


def finished(number: int, time_s: float, **fields: Any) -> RequestFinished:
    """Arrived at `time_s`; first token half a second later, last one a second later, unless said otherwise."""
    at_us = AS_OF_US + round(time_s * 1e6)
    return RequestFinished(
        **{
            "deployment": DEPLOYMENT,
            "request_id": f"r{number}",
            "at_us": at_us + 1_000_000,
            "arrived_us": at_us,
            "first_token_us": at_us + 500_000,
            "engine": "e0",
            "isl_tokens": 100,
            "osl_tokens": 11,
            **fields,
        }
    )


def traffic(count: int = 200, rate_per_s: float = 5.0, seed: int = 3, **fields: Any) -> KnownRequests:
    """Poisson arrivals with prompts of 40 to 400 and outputs of 2 to 60 tokens; nothing but lengths is told."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    records = [
        finished(
            i,
            float(time_s),
            isl_tokens=int(rng.integers(40, 400)),
            osl_tokens=int(rng.integers(2, 60)),
            timed=False,
            first_token_us=None,
            **fields,
        )
        for i, time_s in enumerate(times_s)
    ]
    return known_requests(records, AS_OF_US)


def engine(cost: FrozenStepCost = COST, **fields: Any) -> KnownEngine:
    return KnownEngine(config(**fields), cost)


def recorded(requests: KnownRequests, run: KnownRun) -> list[RequestRecord]:
    """The records that the simulated service would have left behind, with the engine's own stamps in microseconds."""

    def us(seconds: float) -> int:
        return AS_OF_US + round(seconds * 1e6)

    records: list[RequestRecord] = []
    for i, request_id in enumerate(requests.ids):
        arrived_us = us(requests.arrived_s[i])
        isl = int(requests.isl_tokens[i])
        name = run.engines[int(run.engine[i])].config.engine
        records.append(
            RequestArrived(deployment=DEPLOYMENT, request_id=request_id, at_us=arrived_us, engine=name, isl_tokens=isl)
        )
        records.append(
            RequestFinished(
                deployment=DEPLOYMENT,
                request_id=request_id,
                at_us=us(run.last_s[i] + 0.002),
                arrived_us=arrived_us,
                engine=name,
                isl_tokens=isl,
                osl_tokens=int(requests.osl_tokens[i]),
                first_token_us=us(run.first_s[i] + 0.002),
                engine_queued_us=us(run.queued_s[i]),
                engine_scheduled_us=us(run.scheduled_s[i]),
                engine_first_token_us=us(run.first_s[i]),
                engine_last_token_us=us(run.last_s[i]),
                preemptions=int(run.preemptions[i]),
                cached_tokens=int(run.cached_tokens[i]),
            )
        )
    return records


def steps(
    count: int = 400, cost: FrozenStepCost = COST, slow_after: int = 10**9, seed: int = 5, gap_us: int = 100
) -> list[Step]:
    """Steps of random shapes at known cost, `gap_us` apart; from `slow_after` on twice as long."""
    rng = np.random.default_rng(seed)
    made, at_us = [], AS_OF_US
    for number in range(count):
        prefill = int(rng.integers(1, 200)) if rng.random() < 0.4 else 0
        decodes = 0 if prefill and rng.random() < 0.3 else int(rng.integers(1, 16))
        pairs = prefill * (prefill + 1) // 2
        shape = StepShape(int(prefill > 0), prefill, pairs, decodes, decodes * 150)
        duration_us = round(cost.step_ps(shape) / 1e6 * (2.0 if number >= slow_after else 1.0))
        made.append(
            Step(
                step=number,
                start_us=at_us,
                duration_us=duration_us,
                prefill_requests=shape.prefill_requests,
                prefill_tokens=prefill,
                prefill_attention_pairs=pairs,
                decode_requests=decodes,
                decode_context_tokens=shape.decode_context_tokens,
                waiting=number % 4 // 3,
                running=decodes + 1,
            )
        )
        at_us += duration_us + gap_us
    return made


def served(requests: KnownRequests, *engines: KnownEngine, **how: Any) -> KnownRun:
    return run_known(engines or (engine(),), requests, **how)
