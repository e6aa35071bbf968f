"""Where queueing theory has an answer, an engine agrees with it: M/M/1, M/D/1, and Little's law whatever the load.

An engine of one sequence and one output token is a single server whose service time is the prefill. Waiting times are
judged by the confidence interval of the run itself, from the means of independent replications.
"""

import numpy as np
import pytest

from schemas.base import EARLIEST_US
from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.engine.run import simulate, simulate_many
from twin.engine.types import EngineChoice, Grid, Job, Workload

MEAN_TOKENS = 1_000
TOKEN_PS = 10**6
SERVICE_S = MEAN_TOKENS * TOKEN_PS / PS_PER_S
COST = FrozenStepCost.uniform(fixed_ps=1, prefill_token_ps=TOKEN_PS)
REPLICATIONS = 20
T_99 = 2.861
"""Student's t at 99 % of 19 degrees of freedom."""


def engine(**fields: object) -> EngineConfig:
    plain = {"max_num_seqs": 1, "kv_blocks": 10_000, "max_num_batched_tokens": 32_768, "enable_prefix_caching": False}
    return EngineConfig(
        deployment="d",
        engine="0",
        at_us=EARLIEST_US,
        block_size_tokens=16,
        **(plain | fields),  # type: ignore[arg-type]
    )


def waits_s(load: float, service: str, requests: int, seed: int, choice: EngineChoice) -> float:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(SERVICE_S / load, requests))
    isl = np.full(requests, MEAN_TOKENS) if service == "D" else np.rint(rng.exponential(MEAN_TOKENS, requests))
    workload = Workload.build(
        arrival_ps=np.rint(arrivals * PS_PER_S).astype(np.int64),
        isl_tokens=np.clip(isl, 1, 30_000).astype(np.int64),
        osl_tokens=np.ones(requests, np.int64),
    )
    (result,) = simulate_many([Job(engine(), COST, workload)], engine=choice)
    assert result.engine == choice
    waited_ps = result.requests.scheduled_ps - workload.arrival_ps
    return float(waited_ps[requests // 10 :].mean()) / PS_PER_S


@pytest.mark.parametrize(("choice", "requests"), [("kernel", 20_000), ("simpy", 2_000)])
@pytest.mark.parametrize("load", [0.5, 0.8])
@pytest.mark.parametrize(("service", "factor"), [("M", 1.0), ("D", 0.5)])
def test_waiting_times_are_those_of_theory(
    service: str, factor: float, load: float, choice: EngineChoice, requests: int
) -> None:
    means = [waits_s(load, service, requests, seed, choice) for seed in range(REPLICATIONS)]
    half_s = T_99 * np.std(means, ddof=1) / np.sqrt(REPLICATIONS)
    expected_s = factor * SERVICE_S * load / (1.0 - load)
    assert abs(np.mean(means) - expected_s) < half_s
    assert half_s < 0.2 * expected_s, "an interval this wide shows nothing"


@pytest.mark.parametrize("load", [0.5, 0.9, 1.5])
def test_littles_law_holds_for_an_engine_that_batches_and_preempts(load: float) -> None:
    rng = np.random.default_rng(7)
    n = 2_000
    cost = FrozenStepCost.uniform(fixed_ps=4 * 10**9, decode_request_ps=10**8, prefill_token_ps=2 * 10**7)
    workload = Workload.build(
        arrival_ps=np.rint(np.cumsum(rng.exponential(0.06 / load, n)) * PS_PER_S).astype(np.int64),
        isl_tokens=rng.integers(50, 400, n),
        osl_tokens=rng.geometric(1 / 100, n),
    )
    grid = Grid(step_ps=PS_PER_S // 50, points=20_000)
    result = simulate(engine(max_num_seqs=16, kv_blocks=300, max_num_batched_tokens=512), cost, workload, grid=grid)
    end_s = result.end_ps / PS_PER_S
    assert result.timeline is not None
    assert end_s < grid.points * grid.step_ps / PS_PER_S
    seen = (result.timeline.waiting + result.timeline.running)[: int(end_s * 50)]
    sojourn_s = (result.requests.last_token_ps - workload.arrival_ps) / PS_PER_S
    assert np.mean(seen) == pytest.approx(n / end_s * np.mean(sojourn_s), rel=0.02)
