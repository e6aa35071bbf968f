"""The prior: known numbers of known machines, effects of making one thing cheaper, refusals before anything runs."""

import dataclasses
from itertools import pairwise

import pytest

from schemas.engines import EngineConfig
from twin.cost.effects import Change, all_changes, carry_over, changed, rank
from twin.cost.freeze import OperatingRange, freeze
from twin.cost.frozen import PS_PER_S, FrozenStepCost
from twin.cost.prior import engine_graph, engine_prior, kv_capacity_tokens, prior_step_cost, step_seconds
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import Curve, MeasuredCosts
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import model_from_config
from twin.graph.timeline import step_s, timeline
from twin.hardware.presets import preset

LLAMA_8B: dict[str, str | int | float | bool | None] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
GRAPH = operator_graph(model_from_config(LLAMA_8B))
H100 = preset("h100-sxm")
WORK = OperatingRange(max_num_seqs=64, max_num_batched_tokens=2048)
DECODE = StepShape(decode_requests=32, decode_context_tokens=32 * 1000)


def engine(**changes: object) -> EngineConfig:
    fields = {
        "deployment": "d",
        "engine": "e",
        "at_us": 1_796_052_000_000_000,
        "block_size_tokens": 16,
        "kv_blocks": 1000,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "model_config": LLAMA_8B,
    }
    return EngineConfig(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_lone_decode_reads_all_weights_once() -> None:
    shape = StepShape(decode_requests=1, decode_context_tokens=1)
    device = dataclasses.replace(H100.device, memory_efficiency_ratio=1.0, launch_s=0.0)
    hardware = dataclasses.replace(H100, device=device, host=dataclasses.replace(H100.host, step_s=0.0))
    read = GRAPH.weight_bytes - 128256 * 4096 * 2
    assert step_s(GRAPH, Roofline(hardware), shape) == pytest.approx(read / 3.35e12, rel=0.03)


def test_a_long_prefill_is_bound_by_compute() -> None:
    tokens = 8192
    shape = StepShape(1, tokens, tokens * (tokens + 1) // 2)
    weights = (GRAPH.weight_bytes / 2 - 2 * 128256 * 4096) * 2 * tokens
    attention = 4 * 4096 * 32 * shape.prefill_attention_pairs
    ideal = (weights + attention) / (989.4e12 * 0.7)
    assert 1.0 < step_s(GRAPH, Roofline(H100), shape) / ideal < 1.15


def test_the_prior_follows_its_graph_exactly_in_decode_steps() -> None:
    cost = prior_step_cost(GRAPH, H100, WORK)
    for n, context in ((1, 100), (7, 700), (33, 1500), (64, 2000)):
        shape = StepShape(decode_requests=n, decode_context_tokens=n * context)
        assert cost.step_ps(shape) / PS_PER_S == pytest.approx(step_s(GRAPH, Roofline(H100), shape), rel=0.01)


def test_an_engine_record_is_enough_for_a_prior() -> None:
    one, two = (engine_prior(engine(tensor_parallel=n), H100) for n in (1, 2))
    assert one.step_ps(DECODE) > two.step_ps(DECODE) > one.step_ps(DECODE) / 2
    assert engine_graph(engine(pipeline_parallel=2)).devices == 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_config": {}}, "model_type None is not known"),
        ({"tensor_parallel": 5}, "tensor 5 must divide"),
        ({"model_config": {**LLAMA_8B, "quantization_config": "fp8"}}, None),
    ],
)
def test_an_engine_record_without_sense_is_refused_by_field(changes: dict[str, object], told: str | None) -> None:
    if told is None:
        with pytest.raises(ValueError, match="'a100-80g-sxm' has no peak_flops_per_s for 'fp8'"):
            engine_prior(engine(**changes), preset("a100-80g-sxm"))
        return
    with pytest.raises(ValueError, match=told):
        engine_prior(engine(**changes), H100)


def test_kv_capacity_is_what_is_left_of_memory() -> None:
    free = 0.9 * 80 * 2**30 - GRAPH.weight_bytes - 1.5e9
    assert kv_capacity_tokens(GRAPH, H100) == int(free / 131072)
    with pytest.raises(ValueError, match=r"needs 17.6 GB per device but cpu-core gives 7.7 GB; split it"):
        kv_capacity_tokens(GRAPH, preset("cpu-core"))
    with pytest.raises(ValueError, match="keeps no KV per token"):
        kv_capacity_tokens(dataclasses.replace(GRAPH, kv_bytes_per_token=0.0), H100)
    with pytest.raises(ValueError, match="memory_utilization_ratio"):
        kv_capacity_tokens(GRAPH, H100, memory_utilization_ratio=0.0)


def test_pipeline_stages_share_weights_and_cache() -> None:
    half = operator_graph(model_from_config(LLAMA_8B), Parallelism(pipeline=2))
    assert half.kv_bytes_per_token == GRAPH.kv_bytes_per_token / 2
    assert GRAPH.weight_bytes / 2 <= half.weight_bytes < 0.55 * GRAPH.weight_bytes
    assert {node.stage for node in half.nodes} == {0, 1}
    assert sum(node.operator.kind == "hop" for node in half.nodes) == 1


def test_a_decode_step_is_bound_by_memory_and_a_prefill_by_compute() -> None:
    costs = Roofline(H100)
    resources = [Change("resource", name) for name in ("compute", "memory_bandwidth", "links")]
    prefill = StepShape(1, 8192, 8192 * 8193 // 2)
    assert rank(GRAPH, costs, DECODE, resources)[0][0].name == "memory_bandwidth"
    assert rank(GRAPH, costs, prefill, resources)[0][0].name == "compute"
    others = {change.name: share for change, share in rank(GRAPH, costs, DECODE, resources)[1:]}
    assert others == {"compute": pytest.approx(0.0, abs=5e-3), "links": pytest.approx(0.0, abs=5e-3)}


def test_effects_of_all_classes_add_up_where_nothing_overlaps() -> None:
    classes = [change for change in all_changes(GRAPH) if change.what == "class" and "." not in change.name]
    saved = sum(share for _, share in rank(GRAPH, Roofline(H100), DECODE, classes))
    assert saved == pytest.approx(0.1)


def test_what_hides_has_no_effect_however_large_its_share() -> None:
    moe = {
        **LLAMA_8B,
        "model_type": "qwen2_moe",
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 1408,
    }
    graph = operator_graph(model_from_config(moe), Parallelism(expert=8))
    shape, costs = StepShape(1, 4096, 4096 * 4097 // 2), Roofline(H100)
    hidden, shown = (
        rank(graph, costs, shape, [Change("operator", kind)])[0][1] for kind in ("shared_gate_up_proj", "dispatch")
    )
    assert timeline(graph, costs, shape).overlap_s > 0.0
    assert hidden == pytest.approx(0.0, abs=1e-12)
    assert shown > 0.0


def test_changes_reach_measured_costs_through_their_roofline() -> None:
    costs = MeasuredCosts(Roofline(H100), {"qkv_proj": Curve.through([(1e-6, 2e-6), (1e-3, 2e-3)])})
    operator = GRAPH.operators["qkv_proj"]
    before = costs.operator_s(operator, DECODE)
    assert changed(costs, Change("resource", "memory_bandwidth")).operator_s(operator, DECODE) == pytest.approx(
        0.9 * before
    )
    assert changed(costs, Change("operator", "qkv_proj", 0.5)).operator_s(operator, DECODE) == before / 2


def test_learned_costs_take_over_the_change_and_keep_their_level() -> None:
    costs = Roofline(H100)
    learned = prior_step_cost(GRAPH, H100, WORK).scaled(1.7)
    before = step_seconds(GRAPH, costs)
    after = step_seconds(GRAPH, changed(costs, Change("class", "attention", 0.5)))
    moved = carry_over(learned, before, after, WORK)
    expected = learned.step_ps(DECODE) * after(DECODE) / before(DECODE)
    assert moved.step_ps(DECODE) == pytest.approx(expected, rel=0.01)
    same = carry_over(learned, before, before, WORK)
    assert same.step_ps(DECODE) == pytest.approx(learned.step_ps(DECODE), rel=0.01)


def test_costs_rise_with_every_count_after_any_change() -> None:
    for change in (Change("class", "compute"), Change("operator", "attention"), Change("resource", "host")):
        frozen: FrozenStepCost = freeze(step_seconds(GRAPH, changed(Roofline(H100), change)), WORK)
        costs = [frozen.step_ps(StepShape(decode_requests=n, decode_context_tokens=n * 500)) for n in range(1, 65)]
        assert all(b >= a > 0 for a, b in pairwise(costs))
