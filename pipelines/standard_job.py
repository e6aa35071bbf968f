"""A simulation of known size: to warm a process up, and to see how fast this machine simulates. Publishes nothing.

Run as `python -m pipelines.standard_job` it compiles what is compiled once per machine, so that no worker has to.
"""

import time
from dataclasses import replace

import numpy as np

from pipelines.budget import Pace
from schemas.base import EARLIEST_US
from schemas.engines import EngineConfig
from schemas.steps import Step
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.cost.model import StepCostModel
from twin.insight import insight
from twin.job import EngineSetup, SimulationJob
from twin.simulate import run
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import Sources, TrafficPlan

RATE_PER_S = 10.0
REQUESTS = 200
PS_PER_MS = 1_000_000_000


def standard_job(replications: int = 1) -> SimulationJob:
    """One engine at 10 requests/s, prompts of 240 and outputs of 48 tokens on the mean, 180 s."""
    at = (np.arange(REQUESTS) + 1.0).astype(np.float64)
    isl = 120 + (np.arange(REQUESTS) * 37) % 241
    osl = 24 + (np.arange(REQUESTS) * 13) % 49
    role = RoleCost(
        decode_requests_ps=tuple(6 * PS_PER_MS + PS_PER_MS * n // 5 for n in range(25)),
        prefill_token_ps=PS_PER_MS // 6,
    )
    traffic = TrafficPlan(
        sources=Sources.plain(at, float(REQUESTS), isl, osl),
        block=5.0,
        rate=RateForecast.steady(RATE_PER_S),
        lengths=OutputLengths.fit(osl, np.ones(REQUESTS, np.bool_)),
    )
    config = EngineConfig(
        deployment="standard",
        engine="0",
        at_us=EARLIEST_US,
        block_size_tokens=32,
        kv_blocks=1_000,
        max_num_seqs=24,
        max_num_batched_tokens=256,
    )
    return SimulationJob(
        deployment="standard",
        as_of_us=EARLIEST_US,
        tick=0,
        phase="coarse",
        engines=(EngineSetup("0", config, FrozenStepCost(role, role, role)),),
        traffic=traffic,
        root_seed=1,
        coarse_replications=replications,
        fine_replications=replications,
    )


def warm_up() -> None:
    """Load and compile all that simulating and learning need."""
    run(standard_job())
    _learn()


def _learn() -> None:
    steps = [
        Step(
            step=number,
            start_us=EARLIEST_US + 10_000 * number,
            duration_us=9_000,
            decode_requests=2,
            decode_context_tokens=64,
            class_us={"attention": 4_000},
        )
        for number in range(600)
    ]
    model = StepCostModel()
    model.learn_block(StepBlock.from_steps(steps))
    model.freeze(max_num_seqs=8)


def measure() -> Pace:
    """How fast this process simulates, once warm."""
    job = replace(standard_job(), coarse_replications=4, fine_replications=30)
    start_s = time.perf_counter()
    simulated = run(job).simulated_requests
    between_s = time.perf_counter()
    insight(job.at_phase("fine"))
    return Pace(simulated / (between_s - start_s), time.perf_counter() - between_s)


if __name__ == "__main__":
    warm_up()
