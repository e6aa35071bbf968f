"""Decode steps cost what the next captured batch size costs; nothing else changes."""

from dataclasses import replace

import msgspec
import pytest

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.cost.padding import padded_cost, padded_requests, padded_shape
from twin.cost.prior import engine_prior
from twin.cost.shape import StepShape
from twin.engine.run import simulate
from twin.engine.types import Workload
from twin.hardware.presets import preset

TABLE = RoleCost(tuple(range(100, 113)), prefill_token_ps=1, decode_context_token_ps=2)
COST = FrozenStepCost(TABLE, TABLE, TABLE)
SIZES = (8, 1, 4, 2)
ENGINE = EngineConfig(
    deployment="d",
    engine="e",
    at_us=1_796_052_000_000_000,
    block_size_tokens=16,
    kv_blocks=1000,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    model_config={
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "vocab_size": 32000,
    },
)


def decodes(n):
    return StepShape(decode_requests=n, decode_context_tokens=50)


def test_decodes_cost_what_the_next_captured_size_costs():
    cost = padded_cost(COST, SIZES)
    assert [cost.step_ps(decodes(n)) - 200 for n in range(1, 13)] == [*(1, 2, 4, 4, 8, 8, 8, 8), *(9, 10, 11, 12)]


def test_padding_never_makes_a_step_cheaper_and_twice_is_once():
    once = padded_cost(COST, SIZES)
    assert padded_cost(once, SIZES) == once
    assert all(once.step_ps(decodes(n)) >= COST.step_ps(decodes(n)) for n in range(1, 20))
    assert padded_cost(COST, ()) == COST


def test_prefills_and_mixed_steps_are_as_they_were():
    cost = padded_cost(COST, SIZES)
    assert (cost.prefill, cost.mixed) == (COST.prefill, COST.mixed)
    mixed = StepShape(1, 5, 15, 3, 50)
    assert padded_shape(mixed, SIZES) == mixed


@pytest.mark.parametrize("n", range(1, 13))
def test_a_padded_shape_costs_what_the_padded_cost_says(n):
    assert COST.step_ps(padded_shape(decodes(n), SIZES)) == padded_cost(COST, SIZES).step_ps(decodes(n))
    assert padded_shape(decodes(n), SIZES) == replace(decodes(n), decode_requests=padded_requests(n, SIZES))


def test_the_prior_of_an_engine_that_captures_graphs_is_a_staircase():
    hardware = preset("h100-sxm")
    smooth = engine_prior(ENGINE, hardware)
    stairs = engine_prior(msgspec.structs.replace(ENGINE, cudagraph_capture_sizes=(16, 64)), hardware)
    assert stairs.step_ps(decodes(1)) == stairs.step_ps(decodes(16)) == smooth.step_ps(decodes(16))
    assert stairs.step_ps(decodes(17)) == smooth.step_ps(decodes(64))


@pytest.mark.parametrize("engine", ["plain", "simpy", "kernel"])
def test_every_engine_pays_for_the_padding(engine):
    load = Workload.build(arrival_ps=[0, 0, 0], isl_tokens=[1, 1, 1], osl_tokens=[2, 2, 2])
    flat = FrozenStepCost.uniform(fixed_ps=100)
    cost = replace(flat, decode=RoleCost((100, 110, 120, 130, 140)))
    last = [
        simulate(ENGINE, each, load, engine=engine).requests.last_token_ps.tolist()
        for each in (cost, padded_cost(cost, SIZES))
    ]
    assert last == [[230] * 3, [240] * 3]
