"""vLLM's scheduling rules, one by one, where each differs from the textbook. Times are steps of 1 ps."""

import msgspec
import numpy as np
import pytest

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import StepShape
from twin.engine.memory import BlockMemory, RunMemory
from twin.engine.request import PriorityQueue, Request
from twin.engine.run import simulate
from twin.engine.scheduler import VllmScheduler
from twin.engine.types import Status, Workload

CONFIG = EngineConfig(
    deployment="d",
    engine="e",
    at_us=1_700_000_000_000_000,
    block_size_tokens=4,
    kv_blocks=101,
    max_num_seqs=8,
    max_num_batched_tokens=16,
    enable_prefix_caching=False,
)
STEP = FrozenStepCost.uniform(fixed_ps=1)
ENGINES = pytest.mark.parametrize("engine", ["plain", "simpy", "kernel"])


def config(**changes):
    return msgspec.structs.replace(CONFIG, **changes)


def load(isl, osl, arrival=None, **more):
    return Workload.build(arrival_ps=arrival or [0] * len(isl), isl_tokens=isl, osl_tokens=osl, **more)


def run(requests, engine, cost=STEP, **changes):
    return simulate(config(**changes), cost, requests, engine=engine)


@ENGINES
def test_running_requests_are_served_before_waiting_ones(engine):
    # 12 prompt tokens and 1 decode take the budget of 13; the next one waits for its turn.
    out = run(load([4, 12, 4], [9, 1, 1], [0, 1, 1]), engine, max_num_batched_tokens=13).requests
    assert out.scheduled_ps.tolist() == [0, 1, 2]


@ENGINES
def test_a_long_prompt_is_computed_in_chunks_of_the_budget(engine):
    result = run(load([40], [1]), engine)
    assert result.requests.first_token_ps.tolist() == [3]
    assert result.work[0, :3].tolist() == [3, 3, 40]


@ENGINES
def test_a_long_prefill_threshold_leaves_room_for_others(engine):
    out = run(load([40, 8], [1, 1]), engine, long_prefill_threshold_tokens=8).requests
    assert out.first_token_ps.tolist() == [5, 1]


@ENGINES
def test_without_chunked_prefill_a_prompt_waits_for_a_budget_that_holds_it_whole(engine):
    both = load([10, 10], [1, 1])
    assert run(both, engine).requests.scheduled_ps.tolist() == [0, 0]
    assert run(both, engine, enable_chunked_prefill=False).requests.scheduled_ps.tolist() == [0, 1]


@ENGINES
def test_all_known_tokens_must_fit_before_admission(engine):
    # 10 usable blocks; the first holds 5 of them. The other needs 8 for its prompt, 4 for its first chunk.
    both = load([20, 32], [20, 1], [0, 3])
    whole = run(both, engine, kv_blocks=11).requests
    chunk = run(both, engine, kv_blocks=11, reserve_full_isl=False).requests
    assert whole.scheduled_ps[1] == whole.last_token_ps[0]
    assert chunk.scheduled_ps[1] == 3


@ENGINES
def test_a_watermark_holds_back_admission_only_while_something_runs(engine):
    both = load([20, 20], [4, 4], [0, 1])
    free = run(both, engine, kv_blocks=12).requests
    held = run(both, engine, kv_blocks=12, watermark_ratio=0.2).requests
    assert free.scheduled_ps.tolist() == [0, 1]
    # 20 tokens need 5 blocks; 11 - 5 are free, and 2 of them are the watermark.
    assert held.scheduled_ps.tolist() == [0, held.last_token_ps[0]]


@ENGINES
def test_the_last_one_is_preempted(engine):
    # Both fill 3 of 6 blocks; the first one's fourth is taken from the second.
    result = run(load([8, 8], [12, 12]), engine, kv_blocks=7)
    assert result.requests.preemptions.tolist() == [0, 1]
    assert (result.requests.status == Status.FINISHED).all()


@ENGINES
def test_nobody_is_admitted_in_a_step_that_preempts(engine):
    # Blocks run out in the step at 5. The urgent one that comes then would fit into what the victim gave back.
    requests = load([8, 8, 1], [12, 12, 1], [0, 0, 5], priority=[0, 1, -1])
    out = run(requests, engine, kv_blocks=7, policy="priority").requests
    assert out.preemptions.tolist() == [0, 1, 0]
    assert out.scheduled_ps[2] == 6


@ENGINES
def test_a_preempted_request_resumes_from_its_full_blocks(engine):
    both = load([8, 8], [12, 12])
    cached = run(both, engine, kv_blocks=8, enable_prefix_caching=True)
    plain = run(both, engine, kv_blocks=8)
    assert cached.preemptions == plain.preemptions == 1
    # Known when it gives up: 14 tokens; 3 full blocks stay, less those that the other one took.
    assert plain.prefill_tokens - 16 > cached.prefill_tokens - 16 >= 1


@ENGINES
def test_priority_goes_first_and_the_least_urgent_gives_up(engine):
    requests = load([8, 8], [12, 12], priority=[1, 0])
    out = run(requests, engine, policy="priority", max_num_seqs=1).requests
    assert out.scheduled_ps[1] < out.scheduled_ps[0]
    tight = run(requests, engine, policy="priority", kv_blocks=7).requests
    assert tight.preemptions.tolist() == [1, 0]


@ENGINES
def test_requests_in_flight_are_limited_not_only_those_waiting(engine):
    out = run(load([4] * 6, [50] * 6, [0, 1, 2, 3, 4, 400]), engine, max_queued_requests=3).requests
    assert out.status.tolist() == [0, 0, 0, 1, 1, 0]


@ENGINES
def test_a_client_that_gives_up_frees_its_place(engine):
    requests = load([4, 4], [100, 5], timeout_ps=[20, 0])
    out = run(requests, engine, max_num_seqs=1).requests
    assert out.status.tolist() == [Status.TIMED_OUT, Status.FINISHED]
    # Its last token in time is that of step 20; the boundary after the deadline lets it go.
    assert out.generated_tokens.tolist() == [20, 5]
    assert out.scheduled_ps[1] == 21


@ENGINES
def test_shared_prefixes_are_computed_once(engine):
    prompt = list(range(5))
    requests = load([22, 22], [1, 1], [0, 5], block_hashes=[prompt, prompt], hash_block_tokens=4)
    result = run(requests, engine, enable_prefix_caching=True)
    assert result.requests.cached_tokens.tolist() == [0, 20]
    assert result.prefill_tokens == 24
    # In the same step too: blocks are findable from scheduling on.
    together = load([22, 22], [1, 1], block_hashes=[prompt, prompt], hash_block_tokens=4)
    assert run(together, engine, enable_prefix_caching=True, max_num_batched_tokens=64).requests.cached_tokens[1] == 20


@ENGINES
def test_one_token_of_a_wholly_cached_prompt_is_computed(engine):
    prompt = list(range(5))
    requests = load([20, 20], [1, 1], [0, 5], block_hashes=[prompt, prompt], hash_block_tokens=4)
    assert run(requests, engine, enable_prefix_caching=True).requests.cached_tokens.tolist() == [0, 16]


@ENGINES
def test_the_least_recently_used_prefix_is_evicted_first(engine):
    # 10 usable blocks, three prompts of 4 full blocks each: the third takes the first one's.
    chains = [[c * 10 + i for i in range(4)] for c in (0, 1, 2, 1, 0)]
    requests = load([17] * 5, [1] * 5, [0, 10, 20, 30, 40], block_hashes=chains, hash_block_tokens=4)
    hits = run(requests, engine, enable_prefix_caching=True, kv_blocks=11, max_num_batched_tokens=32).requests
    assert hits.cached_tokens.tolist()[:4] == [0, 0, 0, 16]
    assert hits.cached_tokens[4] < 16


def test_prefills_wait_for_the_cadence_while_decodes_run():
    requests = load([4, 4], [20, 1], [0, 2])
    often = run(requests, "plain").requests
    seldom = run(requests, "plain", prefill_schedule_interval_steps=8).requests
    assert often.scheduled_ps.tolist() == [0, 2]
    assert seldom.scheduled_ps.tolist() == [0, 8]
    alone = run(load([40], [1]), "plain", prefill_schedule_interval_steps=8).requests
    assert alone.first_token_ps.tolist() == [3]


def test_with_async_scheduling_arrivals_wait_for_one_more_step():
    requests = load([4, 4], [20, 3], [0, 5])
    sync = run(requests, "plain").requests
    result = run(requests, "auto", async_scheduling=True)
    assert (result.engine, result.fallback) == ("plain", "async_scheduling")
    # Taken in at the same boundary; the step after that was chosen before it came.
    assert sync.first_token_ps[1] == 6
    assert result.requests.first_token_ps[1] == 7
    assert result.requests.generated_tokens.tolist() == [20, 3]
    # No step is scheduled beyond the last token.
    assert result.requests.last_token_ps[0] == sync.last_token_ps[0] == 20


@pytest.mark.parametrize("seed", range(8))
def test_async_scheduling_loses_and_doubles_no_token(seed):
    rng = np.random.default_rng(seed)
    n = 40
    requests = load(
        rng.integers(1, 30, n),
        rng.integers(1, 30, n),
        np.sort(rng.integers(0, 300, n)).tolist(),
        priority=rng.integers(0, 3, n),
    )
    policy = "priority" if seed % 2 else "fcfs"
    result = run(requests, "plain", async_scheduling=True, kv_blocks=25, policy=policy, enable_prefix_caching=True)
    assert (result.requests.status == Status.FINISHED).all()
    np.testing.assert_array_equal(result.requests.generated_tokens, requests.osl_tokens)
    assert result.preemptions > 0


def test_a_cost_that_is_not_affine_is_asked_for_every_step():
    class Table:
        def step_ps(self, shape):
            return 3 if shape.prefill_tokens else 1 + shape.decode_requests**2

    requests = load([4, 4], [3, 5])
    result = run(requests, "auto", cost=Table())
    assert (result.engine, result.fallback) == ("simpy", "step cost is not affine")
    # Prefill of both, two decodes of two, two of one.
    assert result.end_ps == 3 + 2 * 5 + 2 * 2
    assert run(requests, "plain", cost=Table()).end_ps == result.end_ps


def test_work_is_counted_by_role_and_adds_up():
    cost = FrozenStepCost.uniform(
        fixed_ps=7, decode_request_ps=3, prefill_request_ps=11, prefill_token_ps=2, prefill_attention_pair_ps=1,
        decode_context_token_ps=5,
    )  # fmt: skip
    result = run(load([10, 10], [4, 4], [0, 50]), "kernel", cost=cost)
    expected = sum(
        row[0] * 7 + row[1] * 11 + row[2] * 2 + row[3] + row[4] * 3 + row[5] * 5 for row in result.work.tolist()
    )
    assert result.busy_ps == expected
    assert cost.step_ps(StepShape(1, 10, 55)) == 7 + 11 + 20 + 55


def test_a_scheduler_keeps_to_budget_sequences_and_blocks():
    rng = np.random.default_rng(4)
    for caching in (False, True):
        memory = BlockMemory(30, 4, caching=caching)
        scheduler = VllmScheduler(config(kv_blocks=31, enable_prefix_caching=caching), memory, 0)
        for row in range(60):
            scheduler.waiting.push(Request(row, int(rng.integers(1, 60)), int(rng.integers(1, 40))))
        while scheduler.running or len(scheduler.waiting):
            rows = scheduler.schedule()
            assert sum(row.tokens for row in rows) <= 16
            assert len(scheduler.running) <= 8
            held = sum(request.held for request in scheduler.running.values())
            assert held + memory.free == memory.total
            for row in rows:
                if row.samples:
                    row.request.placeholders = 0
                    row.request.generated += 1
                    if row.request.generated == row.request.osl:
                        scheduler.drop(row.request)
        assert memory.free == memory.total


def test_memory_refuses_what_is_not_there():
    for memory in (RunMemory(4, 4, keeps=True), BlockMemory(4, 4, caching=True)):
        with pytest.raises(ValueError, match="needs 5 KV blocks, 4 are free"):
            memory.admit(Request(0, 20, 1), [], 5)
        assert memory.free == 4


def test_a_priority_queue_forgets_only_who_is_there():
    queue = PriorityQueue()
    requests = [Request(row, 1, 1, rank) for row, rank in enumerate((5, 1, 3))]
    for request in requests:
        queue.push(request)
    queue.remove(requests[1])
    assert [request.rank for request in queue] == [3, 5]
    with pytest.raises(ValueError, match="row 1 is not waiting"):
        queue.remove(requests[1])
