"""Random engines, workloads and starting states that reach every rule: tight memory, ties, priorities, timeouts."""

from dataclasses import fields

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.engine.types import CarriedRequest, EngineResult, EngineState, Grid, Job, Noise, Outcomes, Workload

AT_US = 1_700_000_000_000_000


def random_job(seed: int, *, requests: int = 30, warm: bool | None = None) -> Job:
    """A job drawn from the seed; about one in three is short of KV blocks."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 4, 16]))
    longest_isl, longest_osl = int(rng.choice([3, 20, 90])), int(rng.choice([1, 5, 40, 150]))
    need = -(-(longest_isl + longest_osl) // size)
    config = EngineConfig(
        deployment="d",
        engine="e",
        at_us=AT_US,
        block_size_tokens=size,
        kv_blocks=1 + int(need * rng.choice([1.0, 1.5, 3.0, 12.0])) + 1,
        max_num_seqs=int(rng.choice([1, 2, 5, 16, 64])),
        max_num_batched_tokens=int(rng.choice([1, 3, 17, 64, 512])),
        enable_prefix_caching=bool(rng.random() < 0.6),
        long_prefill_threshold_tokens=int(rng.choice([0, 0, 0, 5, 30])),
        policy="priority" if rng.random() < 0.3 else "fcfs",
        reserve_full_isl=bool(rng.random() < 0.7),
        watermark_ratio=float(rng.choice([0.0, 0.0, 0.05, 0.3])),
        max_queued_requests=None if rng.random() < 0.7 else int(rng.integers(0, 12)),
    )
    n = int(rng.integers(0, requests + 1))
    step = int(rng.choice([1, 7, 1000]))
    # Few distinct instants, so that arrivals tie with each other and with step boundaries.
    arrival = np.sort(rng.integers(0, max(n, 1) * int(rng.choice([1, 5, 40])) + 1, n)) * step
    hashes = _hashes(rng, n) if rng.random() < 0.5 else None
    hash_tokens = 0 if hashes is None else size * int(rng.choice([1, 2])) if rng.random() < 0.8 else max(size // 2, 1)
    workload = Workload.build(
        arrival_ps=arrival,
        isl_tokens=rng.integers(1, longest_isl + 1, n),
        osl_tokens=rng.integers(1, longest_osl + 1, n),
        priority=rng.integers(-1, 2, n),
        timeout_ps=rng.integers(0, 400, n) * step * 3 if rng.random() < 0.3 else None,
        block_hashes=hashes,
        hash_block_tokens=hash_tokens,
    )
    state = EngineState()
    if warm if warm is not None else rng.random() < 0.3:
        state = _state(rng, config, longest_isl, longest_osl, step, hash_tokens)
    return Job(
        config=config,
        cost=_cost(rng, step),
        workload=workload,
        state=state,
        noise=Noise.lognormal(seed=seed, epochs=5, cv=0.3) if rng.random() < 0.3 else None,
        grid=Grid(step_ps=int(rng.integers(1, 50)) * step, points=60) if rng.random() < 0.5 else None,
        until_ps=int(rng.integers(1, 3000)) * step if rng.random() < 0.2 else None,
    )


def crowded_job(seed: int) -> Job:
    """Short requests of few prefixes in a tiny memory, several ending in one step: evictions tell orders apart."""
    rng = np.random.default_rng(seed)
    n = 60
    chains = rng.integers(0, 4, n)
    load = Workload.build(
        arrival_ps=np.sort(rng.integers(0, 60, n)),
        isl_tokens=rng.integers(1, 14, n),
        osl_tokens=rng.integers(1, 4, n),
        block_hashes=[[int(chain) * 100 + i for i in range(14)] for chain in chains],
        hash_block_tokens=1,
    )
    config = EngineConfig(
        deployment="d",
        engine="e",
        at_us=AT_US,
        block_size_tokens=1,
        kv_blocks=40,
        max_num_seqs=8,
        max_num_batched_tokens=12,
        long_prefill_threshold_tokens=3,
    )
    return Job(config, _cost(rng, 1), load)


def _hashes(rng: np.random.Generator, n: int) -> list[list[int]]:
    # A prefix of one of three chains; the hash of a block names the whole prefix, so chains never meet again.
    return [[int(chain) * 1000 + i for i in range(int(rng.integers(0, 9)))] for chain in rng.integers(0, 3, n)]


def _cost(rng: np.random.Generator, step: int) -> FrozenStepCost:
    def role() -> RoleCost:
        increments = rng.integers(0, 3, int(rng.integers(0, 6))) * int(rng.choice([0, 1, step]))
        table = np.cumsum(np.concatenate(([int(rng.integers(1, 5)) * step], increments)))
        return RoleCost(
            decode_requests_ps=tuple(int(v) for v in table),
            prefill_request_ps=int(rng.integers(0, 3)),
            prefill_token_ps=int(rng.integers(0, 3)) * step,
            prefill_attention_pair_ps=int(rng.integers(0, 2)),
            decode_context_token_ps=int(rng.choice([0, 1, 3])),
        )

    return FrozenStepCost(prefill=role(), decode=role(), mixed=role())


def _state(
    rng: np.random.Generator, config: EngineConfig, isl_most: int, osl_most: int, step: int, hash_tokens: int
) -> EngineState:
    left = int(rng.integers(0, 9)) * step
    blocks = config.kv_blocks - config.reserved_blocks
    running: list[CarriedRequest] = []
    for i in range(int(rng.integers(0, config.max_num_seqs + 1))):
        isl, osl = int(rng.integers(1, isl_most + 1)), int(rng.integers(1, osl_most + 1))
        generated = int(rng.integers(0, osl)) if rng.random() < 0.8 else 0
        most = isl + generated - (left == 0)
        computed = most if generated or rng.random() < 0.3 else int(rng.integers(0, most + 1))
        blocks -= -(-computed // config.block_size_tokens)
        if blocks < 0:
            break
        running.append(
            CarriedRequest(
                isl_tokens=isl,
                osl_tokens=osl,
                arrival_ps=-int(rng.integers(0, 99)) * step,
                computed_tokens=computed,
                generated_tokens=generated,
                scheduled_ps=-1,
                first_token_ps=-1 if generated else None,
                preemptions=int(rng.integers(0, 2)),
                priority=int(rng.integers(-1, 2)),
                timeout_ps=0 if rng.random() < 0.8 else int(rng.integers(1, 500)) * step,
                block_hashes=tuple(_hashes(rng, 1)[0]) if hash_tokens and i % 2 else (),
            )
        )
    waiting = [
        CarriedRequest(
            isl_tokens=int(rng.integers(1, isl_most + 1)),
            osl_tokens=osl_most,
            arrival_ps=-int(rng.integers(0, 99)) * step,
            generated_tokens=int(rng.integers(0, 2)) if osl_most > 1 else 0,
        )
        for _ in range(int(rng.integers(0, 4)))
    ]
    return EngineState(
        running=tuple(running),
        waiting=tuple(waiting),
        cached_hashes=tuple(_hashes(rng, 1)[0]) if hash_tokens else (),
        hash_block_tokens=hash_tokens,
        step_left_ps=left if running else 0,
    )


def assert_same(left: EngineResult, right: EngineResult) -> None:
    """Every array and number equal, to the bit."""
    for name in ("requests", "carried"):
        for field in fields(Outcomes):
            a, b = getattr(getattr(left, name), field.name), getattr(getattr(right, name), field.name)
            np.testing.assert_array_equal(a, b, err_msg=f"{name}.{field.name}")
    np.testing.assert_array_equal(left.work, right.work)
    assert (left.end_ps, left.saturated_ps) == (right.end_ps, right.saturated_ps)
    assert (left.timeline is None) == (right.timeline is None)
    if left.timeline is not None and right.timeline is not None:
        for field in fields(left.timeline):
            a, b = getattr(left.timeline, field.name), getattr(right.timeline, field.name)
            np.testing.assert_array_equal(a, b, err_msg=f"timeline.{field.name}")
