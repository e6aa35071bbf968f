"""Random clusters: engines of all sorts behind a router, appearing and draining."""

from dataclasses import fields, replace

import msgspec
import numpy as np
from engine_cases import assert_same, random_job

from schemas.engines import EngineConfig
from twin.engine.cluster import ClusterEngine, ClusterJob, ClusterResult, KvLink
from twin.engine.types import EngineState, Outcomes


def random_cluster(seed: int, routing: str, *, requests: int = 40) -> ClusterJob:
    """One to four engines of the same block size; states only where an engine is there from the start."""
    rng = np.random.default_rng(seed)
    base = random_job(seed, requests=requests, warm=False)
    load = base.workload
    members = []
    for i in range(int(rng.integers(1, 5))):
        other = random_job(seed * 7 + i, requests=0, warm=bool(rng.random() < 0.4))
        config = msgspec.structs.replace(
            base.config,
            engine=str(i),
            max_num_seqs=other.config.max_num_seqs,
            kv_blocks=base.config.kv_blocks + int(rng.integers(0, 40)),
            max_queued_requests=other.config.max_queued_requests,
        )
        late = bool(rng.random() < 0.2 and load.requests > 0)
        start = int(load.arrival_ps[load.requests // 3]) if late else 0
        drains = bool(rng.random() < 0.2 and load.requests > 0)
        members.append(
            ClusterEngine(
                config=config,
                cost=other.cost,
                state=EngineState() if late else _fitting(other.state, config),
                noise=other.noise,
                from_ps=start,
                drain_ps=max(int(load.arrival_ps[-1]), start) if drains else None,
                weight=float(rng.integers(1, 4)),
            )
        )
    return ClusterJob(tuple(members), load, routing, seed=seed, grid=base.grid, until_ps=base.until_ps)


def random_disaggregated(seed: int, routing: str) -> ClusterJob:
    """Two to four engines, prefill and decode in turn, joined by a link that is often faster than a step."""
    rng = np.random.default_rng(seed)
    base = random_job(seed, requests=40, warm=False)
    members = []
    for i in range(int(rng.integers(2, 5))):
        other = random_job(seed * 7 + i, requests=0, warm=False)
        config = msgspec.structs.replace(
            base.config,
            engine=str(i),
            role="decode" if i % 2 else "prefill",
            max_num_seqs=other.config.max_num_seqs,
            max_queued_requests=other.config.max_queued_requests,
        )
        members.append(ClusterEngine(config, other.cost, noise=other.noise))
    link = KvLink(
        token_ps=int(rng.choice([0, 0, 1, 30])),
        fixed_ps=int(rng.choice([0, 1, 500])),
        cv=float(rng.choice([0.0, 0.4])),
        overlapped=bool(rng.random() < 0.5),
    )
    return ClusterJob(tuple(members), base.workload, routing, link, seed, base.grid, base.until_ps)


def _fitting(state: EngineState, config: EngineConfig) -> EngineState:
    """Of a state made for another engine, what this one can carry, without hashes of another block size."""
    size, left = config.block_size_tokens, config.kv_blocks - config.reserved_blocks
    longest, running = left * size, []
    for request in state.running:
        left -= -(-request.computed_tokens // size)
        if left < 0 or len(running) == config.max_num_seqs or request.isl_tokens + request.osl_tokens > longest:
            break
        running.append(replace(request, block_hashes=()))
    waiting = tuple(replace(r, block_hashes=()) for r in state.waiting if r.isl_tokens + r.osl_tokens <= longest)
    return EngineState(tuple(running), waiting, step_left_ps=state.step_left_ps if running else 0)


def assert_same_cluster(left: ClusterResult, right: ClusterResult) -> None:
    """Every request, engine and sample equal, to the bit."""
    np.testing.assert_array_equal(left.engine_index, right.engine_index)
    for field in fields(Outcomes):
        a, b = getattr(left.requests, field.name), getattr(right.requests, field.name)
        np.testing.assert_array_equal(a, b, err_msg=field.name)
    for a, b in zip(left.engines, right.engines, strict=True):
        assert_same(a, b)
