"""Small forecast jobs made for tests: one engine of known cost, steady or bursty traffic, round numbers."""

from typing import Any

import numpy as np

from schemas.engines import EngineConfig
from schemas.slos import SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.job import EngineSetup, SimulationJob
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan

AS_OF_US = 1_796_052_000_000_000
COST = FrozenStepCost.uniform(fixed_ps=5 * 10**9, decode_request_ps=3 * 10**8, prefill_token_ps=15 * 10**7)


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "deployment": "d",
            "engine": "e0",
            "at_us": AS_OF_US,
            "block_size_tokens": 16,
            "kv_blocks": 800,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 256,
            "enable_prefix_caching": False,
            **fields,
        }
    )


def plan(rate_per_s: float = 5.0, *, n: int = 400, sigma: float = 0.1, seed: int = 1) -> TrafficPlan:
    """Random arrivals with prompts of 40 to 400 and outputs of 2 to 60 tokens."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, n, n))
    isl, osl = rng.integers(40, 400, n), rng.integers(2, 60, n)
    lengths = OutputLengths.fit(osl, np.ones(n, np.bool_))
    return TrafficPlan(
        Sources.plain(at, float(n), isl, osl), 10.0 * rate_per_s, RateForecast.steady(rate_per_s, sigma), lengths
    )


def job(**fields: Any) -> SimulationJob:
    """A fine job of 4 replications and one horizon of 20 s unless said otherwise."""
    return SimulationJob(
        **{
            "deployment": "d",
            "as_of_us": AS_OF_US,
            "tick": 7,
            "phase": "fine",
            "engines": (EngineSetup("e0", config(), COST),),
            "traffic": plan(),
            "root_seed": 11,
            "slos": (SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5),),
            "horizons_s": (20.0,),
            "coarse_replications": 2,
            "fine_replications": 4,
            "arrivals_beyond_s": 5.0,
            **fields,
        }
    )
