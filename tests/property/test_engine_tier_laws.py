"""Laws of engines with KV tiers over random engines, workloads and starting states."""

import msgspec
import numpy as np
import pytest
from engine_cases import random_job

from schemas.engines import KvTier
from twin.engine.run import simulate
from twin.engine.types import Grid, Status, Workload

# 2 (keys and values) x 1 layer x 1 head x 2 numbers of 2 bytes: 8 bytes a token, 32 a block.
MODEL = {
    "model_type": "llama",
    "hidden_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 4,
    "vocab_size": 10,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("seed", range(60))
def test_with_tiers_every_request_ends_and_all_blocks_come_back(seed):
    job = random_job(seed, warm=seed % 3 == 0)
    rng = np.random.default_rng(seed)
    tiers = tuple(
        KvTier(
            kind="host",
            capacity_blocks=int(rng.choice([2, 9, 60])),
            load_bytes_per_s=8e12 * job.config.block_size_tokens / int(rng.choice([1, 50, 5000])),
            overlapped=bool(rng.random() < 0.7),
        )
        for _ in range(int(rng.integers(1, 3)))
    )
    asynchronous = bool(rng.random() < 0.3)
    config = msgspec.structs.replace(job.config, kv_tiers=tiers, model_config=MODEL, async_scheduling=asynchronous)
    horizon = 10**9
    grid = Grid(step_ps=horizon, points=2)
    result = simulate(config, job.cost, job.workload, job.state, job.noise, grid=grid)
    assert result.fallback
    assert result.end_ps < horizon
    for part in (result.requests, result.carried):
        assert Status.UNFINISHED not in part.status
        done = part.status == Status.FINISHED
        assert (part.queued_ps <= part.scheduled_ps)[done].all()
        assert (part.scheduled_ps < part.last_token_ps)[done].all()
    assert result.timeline is not None
    assert (result.timeline.kv_used_blocks[1], result.timeline.waiting[1], result.timeline.running[1]) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_tier_that_never_holds_a_wanted_block_changes_nothing(seed):
    job = random_job(seed, warm=False)
    load = job.workload
    plain = Workload.build(
        arrival_ps=load.arrival_ps,
        isl_tokens=load.isl_tokens,
        osl_tokens=load.osl_tokens,
        priority=load.priority,
    )
    roomy = msgspec.structs.replace(job.config, kv_blocks=10_000, model_config=MODEL)
    with_tier = msgspec.structs.replace(
        roomy, kv_tiers=(KvTier(kind="host", capacity_blocks=50, load_bytes_per_s=1e12),)
    )
    a, b = (simulate(config, job.cost, plain, noise=job.noise) for config in (roomy, with_tier))
    assert a.requests.last_token_ps.tolist() == b.requests.last_token_ps.tolist()
    assert a.requests.first_token_ps.tolist() == b.requests.first_token_ps.tolist()
    assert a.steps == b.steps
