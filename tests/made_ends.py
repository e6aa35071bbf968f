"""Finished requests made for tests: a known engine serves known traffic, and only the ends of requests are told."""

import numpy as np

from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.run import simulate
from twin.engine.types import EngineResult, Workload

START_US = 1_796_052_000_000_000
COST = FrozenStepCost.uniform(
    fixed_ps=6 * 10**9,
    decode_request_ps=6 * 10**8,
    prefill_request_ps=10**9,
    prefill_token_ps=15 * 10**7,
    decode_context_token_ps=4 * 10**5,
)
"""Decode steps of about 9 ms, 0.15 ms per prompt token."""


def config(**fields: object) -> EngineConfig:
    return EngineConfig(
        **{  # type: ignore[arg-type]
            "deployment": "d",
            "engine": "0",
            "at_us": START_US,
            "block_size_tokens": 16,
            "kv_blocks": 600,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            "enable_prefix_caching": False,
            "emits_steps": False,
            **fields,
        }
    )


def served(
    requests: int, rate_per_s: float, cost: FrozenStepCost = COST, seed: int = 1, **fields: object
) -> tuple[Workload, EngineResult]:
    """Poisson arrivals, prompts of 20 to 400 tokens, outputs of 2 to 80, on the engine of `config`."""
    rng = np.random.default_rng(seed)
    load = Workload.from_seconds(
        arrival_s=np.cumsum(rng.exponential(1.0 / rate_per_s, requests)),
        isl_tokens=rng.integers(20, 400, requests),
        osl_tokens=rng.integers(2, 80, requests),
    )
    return load, simulate(config(**fields), cost, load)


def ends_of(
    load: Workload,
    result: EngineResult,
    *,
    delay_s: float = 0.0,
    jitter_s: float = 0.0,
    stamped: bool = False,
    engine: str = "0",
    seed: int = 2,
) -> list[RequestFinished]:
    """Ends as a client sees them, in order; half of `delay_s` is spent each way. `stamped`: as the engine does too."""
    rng = np.random.default_rng(seed)
    found = result.requests
    way_s = delay_s / 2 + rng.uniform(0.0, jitter_s, (2, load.requests)) if jitter_s else np.full((2, 1), delay_s / 2)
    way_s = np.broadcast_to(way_s, (2, load.requests))

    def us(ps: int, more_s: float = 0.0) -> int:
        return START_US + round(ps / PS_PER_S * 1e6 + more_s * 1e6)

    events = [
        RequestFinished(
            deployment="d",
            request_id=f"r{i}",
            engine=engine,
            at_us=max(us(found.last_token_ps[i], way_s[1, i]), us(found.first_token_ps[i], way_s[0, i])),
            arrived_us=us(load.arrival_ps[i], -delay_s / 2),
            isl_tokens=int(load.isl_tokens[i]),
            osl_tokens=int(load.osl_tokens[i]),
            first_token_us=us(found.first_token_ps[i], way_s[0, i]),
            engine_queued_us=us(found.queued_ps[i]) if stamped else None,
            engine_scheduled_us=us(found.scheduled_ps[i]) if stamped else None,
            engine_first_token_us=us(found.first_token_ps[i]) if stamped else None,
            engine_last_token_us=us(found.last_token_ps[i]) if stamped else None,
            preemptions=int(found.preemptions[i]) if stamped else None,
        )
        for i in range(load.requests)
    ]
    return sorted(events, key=lambda event: event.at_us)
