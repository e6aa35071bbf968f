"""KV tiers behind an engine: what they hold, how long loads take and whom they delay. Times are picoseconds."""

import msgspec
import numpy as np
import pytest

from schemas.engines import EngineConfig, KvTier
from twin.cost.frozen import FrozenStepCost
from twin.engine.cluster import ClusterEngine, ClusterJob, simulate_cluster
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
CONFIG = EngineConfig(
    deployment="d",
    engine="e",
    at_us=1_700_000_000_000_000,
    block_size_tokens=4,
    kv_blocks=101,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    enable_prefix_caching=False,
    model_config=MODEL,
)
COST = FrozenStepCost.uniform(fixed_ps=100, prefill_token_ps=10)
OVERLAP = pytest.mark.parametrize("overlapped", [False, True])


def tier(block_ps, *, capacity=50, overlapped=True, kind="host"):
    return KvTier(kind=kind, capacity_blocks=capacity, load_bytes_per_s=32e12 / block_ps, overlapped=overlapped)


def run(load, *tiers, **changes):
    return simulate(msgspec.structs.replace(CONFIG, kv_tiers=tiers, **changes), COST, load)


def same_prompt(*arrival_ps, isl=22, osl=1):
    """Requests of one prompt, five full blocks and two tokens by default."""
    n = len(arrival_ps)
    hashes = [range(isl // 4)] * n
    return Workload.build(
        arrival_ps=arrival_ps, isl_tokens=[isl] * n, osl_tokens=[osl] * n, block_hashes=hashes, hash_block_tokens=4
    )


@OVERLAP
def test_a_repeated_prompt_is_loaded_and_the_rest_computed(overlapped):
    out = run(same_prompt(0, 1000), tier(7, overlapped=overlapped)).requests
    assert out.cached_tokens.tolist() == [0, 20]
    assert out.first_token_ps.tolist() == [320, 1000 + 5 * 7 + 120]


@OVERLAP
def test_a_prompt_that_is_cached_here_is_not_loaded(overlapped):
    result = run(same_prompt(0, 1000), tier(7, overlapped=overlapped), enable_prefix_caching=True)
    assert result.requests.first_token_ps.tolist() == [320, 1120]


def test_an_overlapped_load_lets_others_decode_and_any_other_delays_them():
    # The first decodes in steps of 100 while the third asks for what the second left in the tier.
    load = Workload.build(
        arrival_ps=[0, 500, 2000],
        isl_tokens=[3, 22, 22],
        osl_tokens=[40, 1, 1],
        block_hashes=[[], range(5), range(5)],
        hash_block_tokens=4,
    )
    beside, within, nothing = run(load, tier(50)), run(load, tier(50, overlapped=False)), run(load)
    last = [int(result.requests.last_token_ps[0]) for result in (beside, within, nothing)]
    assert last == [130 + 39 * 100 + 220 + 20, 130 + 39 * 100 + 220 + 20 + 250, 130 + 39 * 100 + 220 + 220]
    # Steps end at 2050, 2150, ...; the load begun at 2050 is through at 2300.
    assert beside.requests.first_token_ps[2] == 2350 + 120
    assert beside.saturated_ps == 0
    assert within.requests.first_token_ps[2] == 2050 + 250 + 120


def test_loads_of_one_tier_come_one_after_the_other():
    load = same_prompt(0, 1000, 1000)
    out = run(load, tier(100)).requests
    assert out.first_token_ps.tolist() == [320, 1500 + 120, 2000 + 120]


def test_who_need_not_wait_passes_who_loads():
    load = Workload.build(
        arrival_ps=[0, 1000, 1001],
        isl_tokens=[22, 22, 3],
        osl_tokens=[1, 1, 1],
        block_hashes=[range(5), range(5), []],
        hash_block_tokens=4,
    )
    out = run(load, tier(100)).requests
    assert out.first_token_ps.tolist() == [320, 1500 + 120, 1001 + 130]


def test_the_tail_of_a_prefix_goes_first_when_a_tier_is_full():
    assert run(same_prompt(0, 1000), tier(7, capacity=3)).requests.cached_tokens.tolist() == [0, 12]


def test_the_least_recently_used_prefix_goes_first():
    prompts = [0, 1, 0, 2, 1, 0]
    load = Workload.build(
        arrival_ps=np.arange(6) * 1000,
        isl_tokens=[9] * 6,
        osl_tokens=[1] * 6,
        block_hashes=[[10 * p, 10 * p + 1] for p in prompts],
        hash_block_tokens=4,
    )
    assert run(load, tier(7, capacity=4)).requests.cached_tokens.tolist() == [0, 0, 8, 0, 0, 0]
    assert run(load, tier(7, capacity=6)).requests.cached_tokens.tolist() == [0, 0, 8, 0, 8, 8]


@OVERLAP
def test_what_the_first_tier_lost_comes_from_the_next(overlapped):
    for first_ps, next_ps in ((7, 30), (30, 7)):
        host = tier(first_ps, capacity=2, overlapped=overlapped)
        disk = tier(next_ps, kind="disk", overlapped=overlapped)
        out = run(same_prompt(0, 1000), host, disk).requests
        # Tiers load at the same time where loads run beside the steps.
        load_ps = max(2 * first_ps, 3 * next_ps) if overlapped else 2 * first_ps + 3 * next_ps
        assert out.first_token_ps[1] == 1000 + load_ps + 120


def test_a_preempted_request_resumes_from_the_tier():
    load = Workload.build(arrival_ps=[0, 0], isl_tokens=[8, 8], osl_tokens=[12, 12])
    tight = {"kv_blocks": 7, "reserve_full_isl": True}
    lost, kept = run(load, **tight), run(load, tier(1), **tight)
    assert lost.preemptions == kept.preemptions == 1
    assert kept.prefill_tokens < lost.prefill_tokens


def test_who_was_loaded_and_preempted_is_loaded_again():
    load = Workload.build(
        arrival_ps=[0, 1000, 1000],
        isl_tokens=[22, 3, 22],
        osl_tokens=[1, 60, 20],
        block_hashes=[range(5), [], range(5)],
        hash_block_tokens=4,
    )
    result = run(load, tier(1), kv_blocks=17)
    assert result.requests.preemptions.tolist() == [0, 0, 1]
    # Two prompts and the rest of the loaded one; it is preempted when a block is full, so only one token is left then.
    assert result.prefill_tokens == 22 + 3 + 2


def test_generated_blocks_take_room_in_a_tier():
    load = same_prompt(0, 1000, isl=9, osl=8)
    # Four full blocks are written, two of them generated; the prompt's are the older ones.
    assert run(load, tier(7, capacity=2)).requests.cached_tokens.tolist() == [0, 0]
    assert run(load, tier(7, capacity=4)).requests.cached_tokens.tolist() == [0, 8]


def test_who_loads_waits_and_holds_the_blocks_of_all_its_tokens():
    # 30 tokens, of which 20 are loaded and each step may compute one more.
    load = Workload.build(
        arrival_ps=[0, 5000], isl_tokens=[30, 30], osl_tokens=[1, 1], block_hashes=[range(5)] * 2, hash_block_tokens=4
    )
    config = msgspec.structs.replace(CONFIG, kv_tiers=(tier(100),), long_prefill_threshold_tokens=1)
    result = simulate(config, COST, load, grid=Grid(step_ps=5250, points=2))
    assert result.timeline is not None
    assert (result.timeline.waiting[1], result.timeline.running[1], result.timeline.kv_used_blocks[1]) == (1, 0, 8)


def test_no_load_begins_before_all_tokens_have_room():
    # Who decodes holds at least 5 of 11 blocks; 8 are wanted, of which the load and the first chunk would need 6.
    load = Workload.build(
        arrival_ps=[0, 1200, 1800],
        isl_tokens=[30, 16, 30],
        osl_tokens=[1, 11, 1],
        block_hashes=[range(5), [], range(5)],
        hash_block_tokens=4,
    )
    out = run(load, tier(1), kv_blocks=12, reserve_full_isl=False, long_prefill_threshold_tokens=4).requests
    assert out.first_token_ps[2] == out.last_token_ps[1] + 5 + 140 + 140 + 120


def test_a_load_begins_without_budget_for_the_rest():
    load = Workload.build(
        arrival_ps=[0, 1000, 1000],
        isl_tokens=[26, 24, 26],
        osl_tokens=[1, 1, 1],
        block_hashes=[range(5), [], range(5)],
        hash_block_tokens=4,
    )
    out = run(load, tier(10), enable_chunked_prefill=False, max_num_batched_tokens=26).requests
    assert out.first_token_ps[1:].tolist() == [1340, 1340 + 160]


def test_who_was_passed_keeps_his_place():
    # Both loads are through at once, and each step has room for two tokens beside the decode.
    load = Workload.build(
        arrival_ps=[0, 0, 3000, 3000],
        isl_tokens=[22, 3, 22, 22],
        osl_tokens=[1, 60, 1, 1],
        block_hashes=[range(5), [], range(5), range(5)],
        hash_block_tokens=4,
    )
    out = run(load, tier(1), max_num_batched_tokens=3).requests
    assert out.first_token_ps[3] == out.first_token_ps[2] + 120


def test_an_idle_engine_is_woken_by_who_need_not_wait():
    load = Workload.build(
        arrival_ps=[0, 1000, 1001],
        isl_tokens=[22, 22, 3],
        osl_tokens=[1, 1, 1],
        block_hashes=[range(5), range(5), []],
        hash_block_tokens=4,
    )
    engine = ClusterEngine(msgspec.structs.replace(CONFIG, kv_tiers=(tier(100),)), COST)
    out = simulate_cluster(ClusterJob(engines=(engine,), workload=load, routing="least_outstanding")).requests
    assert out.first_token_ps.tolist() == [320, 1500 + 120, 1001 + 130]


@pytest.mark.parametrize("split", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}])
def test_a_rate_is_that_of_all_devices_together(split):
    model = MODEL | {"num_hidden_layers": 2}
    out = run(same_prompt(0, 1000), tier(7), model_config=model, **split).requests
    assert out.first_token_ps[1] == 1000 + 5 * 14 + 120


def test_a_client_may_leave_while_his_prompt_is_loaded():
    load = Workload.build(
        arrival_ps=[0, 1000, 9000],
        isl_tokens=[22, 22, 22],
        osl_tokens=[1, 1, 1],
        timeout_ps=[0, 200, 0],
        block_hashes=[range(5)] * 3,
        hash_block_tokens=4,
    )
    config = msgspec.structs.replace(CONFIG, kv_tiers=(tier(100),), kv_blocks=7)
    result = simulate(config, COST, load, grid=Grid(step_ps=5000, points=2))
    assert result.requests.status.tolist() == [Status.FINISHED, Status.TIMED_OUT, Status.FINISHED]
    assert result.timeline is not None
    assert result.timeline.kv_used_blocks[1] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_tiers": (KvTier(kind="disk", capacity_blocks=1, load_bytes_per_s=0.0),)}, r"kv_tiers\[0\].*must be > 0"),
        ({"kv_tiers": (tier(1),), "model_config": {}}, "kv_tiers need model_config"),
    ],
)
def test_a_tier_that_cannot_work_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        simulate(msgspec.structs.replace(CONFIG, **changes), COST, same_prompt(0))
