"""The scheduler of another serving engine is one class: static batching, where nobody joins a batch under way."""

import numpy as np
import pytest
from made_jobs import config

from schemas.engines import EngineConfig, KvTier
from twin.cost.frozen import FrozenStepCost
from twin.engine.memory import Memory
from twin.engine.request import FcfsQueue, Request, WaitingQueue
from twin.engine.run import simulate
from twin.engine.scheduler import Scheduled, VllmScheduler
from twin.engine.types import Status, Workload

STEP_PS = 10
COST = FrozenStepCost.uniform(fixed_ps=STEP_PS)


class StaticBatching:
    """Whole prompts, blocks for whole answers, and nobody joins a batch under way. Starts from empty."""

    def __init__(self, config: EngineConfig, memory: Memory, watermark_blocks: int) -> None:
        self.memory = memory
        self.running: dict[int, Request] = {}
        self.waiting: WaitingQueue = FcfsQueue()
        self._most = config.max_num_seqs
        self._admissions = 0

    def restore(self, request: Request, *, in_flight: bool) -> None:
        raise ValueError("static batching starts from empty")

    def drop(self, request: Request) -> None:
        if request.order < 0:
            self.waiting.remove(request)
            return
        del self.running[request.order]
        self.memory.release(request, resumes=False)

    def idle(self) -> None:
        pass

    def schedule(self) -> list[Scheduled]:
        if not self.running:
            self._begin_batch()
        rows = []
        for request in self.running.values():
            before, tokens = request.computed, request.known - request.computed
            request.computed += tokens
            request.placeholders += 1
            rows.append(Scheduled(request, tokens, before, request.generated > 0, True))
        return rows

    def _begin_batch(self) -> None:
        while self.waiting and len(self.running) < self._most:
            request = self.waiting.head()
            blocks = -(-(request.isl + request.osl) // self.memory.block_size_tokens)
            if blocks > self.memory.free:
                return
            self.waiting.pop()
            self.memory.admit(request, [], blocks)
            request.order, request.cached_tokens = self._admissions, 0
            self.running[request.order] = request
            self._admissions += 1


def test_a_batch_begins_when_the_one_before_has_ended() -> None:
    osl = np.array([3, 7, 2, 4, 5])
    load = Workload.build(arrival_ps=np.zeros(5, np.int64), isl_tokens=np.full(5, 8), osl_tokens=osl)
    found = simulate(config(max_num_seqs=2), COST, load, scheduler_of=StaticBatching)
    assert (found.engine, found.fallback) == ("plain", "an own scheduler")
    begins = np.array([0, 0, 7, 7, 11]) * STEP_PS
    np.testing.assert_array_equal(found.requests.scheduled_ps, begins)
    np.testing.assert_array_equal(found.requests.first_token_ps, begins + STEP_PS)
    np.testing.assert_array_equal(found.requests.last_token_ps, begins + osl * STEP_PS)


@pytest.mark.parametrize("seed", range(5))
def test_it_keeps_the_laws_of_every_engine(seed: int) -> None:
    rng = np.random.default_rng(seed)
    load = Workload.build(
        arrival_ps=np.sort(rng.integers(0, 4_000, 60)),
        isl_tokens=rng.integers(1, 300, 60),
        osl_tokens=rng.integers(1, 30, 60),
    )
    short = config(max_num_seqs=6, kv_blocks=40)
    found = simulate(short, COST, load, scheduler_of=StaticBatching)
    done = found.requests
    assert (done.status == Status.FINISHED).all()
    np.testing.assert_array_equal(done.generated_tokens, load.osl_tokens)
    assert (load.arrival_ps <= done.queued_ps).all()
    assert (done.queued_ps <= done.scheduled_ps).all()
    assert (done.scheduled_ps < done.first_token_ps).all()
    assert (done.first_token_ps <= done.last_token_ps).all()
    assert found.prefill_tokens == load.isl_tokens.sum()
    continuous = simulate(short, COST, load, scheduler_of=VllmScheduler)
    assert continuous.requests.last_token_ps.mean() < done.last_token_ps.mean()
    same = simulate(short, COST, load, engine="plain")
    np.testing.assert_array_equal(continuous.requests.last_token_ps, same.requests.last_token_ps)


def test_tiers_belong_to_vllm() -> None:
    load = Workload.build(arrival_ps=[0], isl_tokens=[8], osl_tokens=[2])
    tiered = config(kv_tiers=(KvTier(kind="host", capacity_blocks=10, load_bytes_per_s=1e9),))
    with pytest.raises(ValueError, match="kv_tiers, which only vLLM"):
        simulate(tiered, COST, load, scheduler_of=StaticBatching)
