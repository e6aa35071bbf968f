"""With all requests waiting at once the ceiling follows from costs alone; device time is shared out without a rest."""

import msgspec
import numpy as np
import pytest

from tests.made_jobs import AS_OF_US
from tests.made_known import engine, finished, served, traffic
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.known.chips import chip_use
from twin.known.full_load import full_load, repeated
from twin.known.requests import KnownRequests, known_requests
from twin.known.run import run_known
from twin.known.variants import with_traffic

MS = 1_000_000_000


def same(count: int, isl: int = 16, osl: int = 21) -> KnownRequests:
    return known_requests([finished(i, i, isl_tokens=isl, osl_tokens=osl) for i in range(count)], AS_OF_US)


def test_the_ceiling_of_equal_requests_is_batch_over_steps() -> None:
    steady = engine(FrozenStepCost.uniform(fixed_ps=10 * MS), max_num_seqs=8, max_num_batched_tokens=1000)
    found = full_load([steady], same(100))
    assert found.requests_per_s == pytest.approx(8 / (21 * 0.010), rel=0.02)
    assert np.nanmax(found.tpot_s) == pytest.approx(0.010)
    assert found.tokens_per_min_per_chip == pytest.approx(found.requests_per_s * 21 * 60.0, rel=0.02)


def test_the_ceiling_depends_on_order_and_sizes_and_not_on_when_requests_came() -> None:
    requests = traffic()
    faster = with_traffic(requests, {"rate_factor": 7.0}, 16)
    assert full_load([engine()], requests).requests_per_s == full_load([engine()], faster).requests_per_s


def test_doubling_every_cost_halves_the_ceiling() -> None:
    requests = traffic()
    one, two = engine(), engine(engine().cost.scaled(2.0))
    ratio = full_load([one], requests).requests_per_s / full_load([two], requests).requests_per_s
    assert ratio == pytest.approx(2.0, rel=1e-9)


def test_two_engines_do_twice_as_much_on_twice_the_chips() -> None:
    requests = traffic(400)
    one = full_load([engine()], requests)
    two = full_load([engine(), engine(engine="e1")], requests)
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s, rel=0.06)
    assert two.chips.chips == 2
    assert two.tokens_per_min_per_chip == pytest.approx(one.tokens_per_min_per_chip, rel=0.06)


def test_an_admission_limit_does_not_hide_the_ceiling() -> None:
    requests = traffic()
    limited = engine(max_queued_requests=4)
    assert full_load([limited], requests).requests_per_s == full_load([engine()], requests).requests_per_s


def test_prefill_and_decode_add_up_to_the_busy_time_of_all_devices() -> None:
    requests = traffic()
    split = engine(tensor_parallel=2, pipeline_parallel=2)
    run = served(requests, split)
    used = chip_use(run, requests.isl_tokens)
    assert used.chips == 4
    assert used.prefill_chip_s + used.decode_chip_s == pytest.approx(4 * run.results[0].busy_ps / PS_PER_S)
    assert used.prompt_tokens == requests.isl_tokens.sum()
    assert used.output_tokens == requests.osl_tokens.sum()
    assert 0.0 < used.prefill_chip_s < used.decode_chip_s


def test_costs_of_prefill_tokens_alone_are_all_prefill() -> None:
    requests = traffic(60)
    only = engine(FrozenStepCost.uniform(fixed_ps=1, prefill_token_ps=MS))
    used = chip_use(served(requests, only), requests.isl_tokens)
    assert used.decode_chip_s < 1e-6
    assert used.prefill_chip_s_per_1000_tokens == pytest.approx(1.0, rel=1e-6)


def test_repeated_requests_share_what_they_shared_and_nothing_more() -> None:
    shared = {"block_hashes": (1, 2), "hash_block_tokens": 16, "isl_tokens": 40}
    records = [finished(i, i, **{**shared, "block_hashes": (1, 2, 50 + i), "isl_tokens": 60}) for i in range(4)]
    requests = known_requests(records, AS_OF_US)
    again = repeated(requests, 3)
    assert len(again) == 12
    caching = engine(enable_prefix_caching=True)
    late = np.arange(12) * 100.0
    cached = run_known([caching], again, arrived_s=late).cached_tokens
    assert cached.tolist() == [0] + [32] * 11


def test_a_run_does_not_change_its_requests() -> None:
    requests = traffic(80)
    before = msgspec.json.encode([requests.arrived_s.tolist(), requests.osl_tokens.tolist()])
    full_load([engine()], requests)
    assert msgspec.json.encode([requests.arrived_s.tolist(), requests.osl_tokens.tolist()]) == before
