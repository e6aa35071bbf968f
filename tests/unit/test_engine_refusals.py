"""What no engine could run to its end is refused before time 0: the field, what was expected, what to change."""

import msgspec
import pytest

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost
from twin.engine.run import simulate, simulate_many
from twin.engine.types import CarriedRequest, EngineState, Job, Workload

CONFIG = EngineConfig(
    deployment="d",
    engine="e7",
    at_us=1_700_000_000_000_000,
    block_size_tokens=16,
    kv_blocks=65,
    max_num_seqs=4,
    max_num_batched_tokens=128,
)
COST = FrozenStepCost.uniform(fixed_ps=10**9)
LOAD = Workload.build(arrival_ps=[0, 0], isl_tokens=[10, 100], osl_tokens=[5, 5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_blocks": 1}, r"engine 'e7' has no usable KV block: kv_blocks 1, reserved_blocks 1; raise kv_blocks"),
        ({"kv_blocks": 7}, r"request 1 needs 7 KV blocks but engine 'e7' has 6; .* raise kv_blocks"),
        ({"max_model_len_tokens": 104}, r"request 1 has 105 tokens, max_model_len_tokens is 104"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 103}, r"chunked prefill is off"),
        ({"max_num_seqs": 0}, r"engine 'e7': max_num_seqs must be >= 1, got 0"),
        ({"block_size_tokens": 0}, r"block_size_tokens must be >= 1"),
        ({"watermark_ratio": 1.0}, r"watermark_ratio must be in 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        simulate(msgspec.structs.replace(CONFIG, **changes), COST, LOAD)


def test_the_largest_request_that_fits_is_run():
    result = simulate(msgspec.structs.replace(CONFIG, kv_blocks=8, max_model_len_tokens=105), COST, LOAD)
    assert result.requests.generated_tokens.tolist() == [5, 5]


def test_a_bad_job_stops_all_before_the_first_runs():
    good, bad = Job(CONFIG, COST, LOAD), Job(msgspec.structs.replace(CONFIG, kv_blocks=2), COST, LOAD)
    with pytest.raises(ValueError, match="KV blocks"):
        simulate_many([good, bad])


def test_costs_beyond_int64_are_refused():
    with pytest.raises(ValueError, match="coefficient"):
        simulate(CONFIG, FrozenStepCost.uniform(fixed_ps=2**50), LOAD)
    long = Workload.build(arrival_ps=[0], isl_tokens=[1], osl_tokens=[1_000_000])
    roomy = msgspec.structs.replace(CONFIG, kv_blocks=100_000)
    with pytest.raises(ValueError, match="could last 13 days"):
        simulate(roomy, FrozenStepCost.uniform(fixed_ps=2 * 10**12), long)


@pytest.mark.parametrize(("hash_tokens", "fits"), [(16, True), (8, True), (48, True), (24, False)])
def test_hash_blocks_must_divide_or_be_divided(hash_tokens, fits):
    load = Workload.build(
        arrival_ps=[0], isl_tokens=[100], osl_tokens=[2], block_hashes=[[1, 2]], hash_block_tokens=hash_tokens
    )
    if fits:
        assert simulate(CONFIG, COST, load).steps > 0
        return
    with pytest.raises(ValueError, match="multiple or a divisor of block_size_tokens 16, got 24"):
        simulate(CONFIG, COST, load)


def running(count, computed):
    one = CarriedRequest(isl_tokens=computed + 1, osl_tokens=5, arrival_ps=0, computed_tokens=computed)
    return EngineState(running=(one,) * count)


@pytest.mark.parametrize("engine", ["plain", "simpy", "kernel"])
def test_a_state_that_does_not_fit_is_refused(engine):
    with pytest.raises(ValueError, match=r"state\.running holds 5 requests, max_num_seqs is 4"):
        simulate(CONFIG, COST, LOAD, running(5, 16), engine=engine)
    with pytest.raises(ValueError, match=r"state\.running\[2\] needs 25 KV blocks and 14 are left"):
        simulate(CONFIG, COST, LOAD, running(3, 400), engine=engine)
    assert simulate(CONFIG, COST, LOAD, running(2, 400), engine=engine).steps > 0
