"""Laws of the operator level: work is conserved by splitting, time is a monotone max-plus sum of it."""

import dataclasses
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.cost.effects import Change, all_changes, changed, scaled_hardware
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.graph.attention import AttentionTiles, Heads
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import ModelShape, model_from_config
from twin.graph.operators import Node, OperatorGraph
from twin.graph.timeline import step_s, timeline
from twin.hardware.presets import PRESETS, preset
from twin.hardware.topology import Host

DENSE = {
    "model_type": "qwen3",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 4000,
}
SPARSE = {
    "model_type": "deepseek_v3",
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 4000,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}
MODELS = [model_from_config(DENSE), model_from_config(SPARSE)]
GRAPHS = [
    *(operator_graph(model, Parallelism(tensor=tensor)) for model in MODELS for tensor in (1, 4)),
    operator_graph(MODELS[0], Parallelism(pipeline=2), async_scheduling=True),
    operator_graph(MODELS[1], Parallelism(expert=8)),
    operator_graph(MODELS[1], Parallelism(tensor=2, expert=8, pipeline=2)),
]
HARDWARE = [preset(name) for name in ("h100-sxm", "a100-80g-sxm", "gb300-nvl72")]
GRAPH, DEVICE = st.sampled_from(GRAPHS), st.sampled_from(HARDWARE)


def shape_of(requests: int, chunk: int, before: int, sequences: int, context: int) -> StepShape:
    pairs = requests * (chunk * before + chunk * (chunk + 1) // 2)
    return StepShape(requests, requests * chunk, pairs, sequences, sequences * context)


COUNTS = st.tuples(
    st.integers(0, 4), st.integers(1, 2000), st.integers(0, 4000), st.integers(0, 300), st.integers(1, 8000)
)
SHAPES = COUNTS.map(lambda counts: shape_of(*counts))


@settings(max_examples=80, deadline=None)
@given(GRAPH, DEVICE, COUNTS, st.integers(0, 4), st.integers(1, 500))
def test_a_larger_step_never_takes_less_time(
    graph: OperatorGraph, hardware: object, counts: tuple[int, ...], which: int, more: int
) -> None:
    larger = tuple(count + more * (i == which) for i, count in enumerate(counts))
    costs = Roofline(hardware)  # type: ignore[arg-type]
    assert step_s(graph, costs, shape_of(*larger)) >= step_s(graph, costs, shape_of(*counts))


@settings(max_examples=80, deadline=None)
@given(GRAPH, DEVICE, SHAPES)
def test_a_step_lies_between_its_longest_operator_and_the_sum_of_all(
    graph: OperatorGraph, hardware: object, shape: StepShape
) -> None:
    plan = timeline(graph, Roofline(hardware), shape)  # type: ignore[arg-type]
    assert max(span.end_s - span.start_s for span in plan.spans) <= plan.step_s <= plan.busy_s * (1 + 1e-12)
    assert plan.step_s == step_s(graph, Roofline(hardware), shape)  # type: ignore[arg-type]
    assert sum(plan.class_s().values()) == pytest.approx(plan.busy_s)


@settings(max_examples=80, deadline=None)
@given(GRAPH, DEVICE, SHAPES)
def test_dependencies_and_streams_are_kept_and_the_critical_path_is_unbroken(
    graph: OperatorGraph, hardware: object, shape: StepShape
) -> None:
    plan = timeline(graph, Roofline(hardware), shape)  # type: ignore[arg-type]
    busy_until: dict[tuple[int, str], float] = {}
    for node, span in zip(graph.nodes, plan.spans, strict=True):
        assert all(plan.spans[before].end_s <= span.start_s for before in node.after)
        stream = (node.stage, node.operator.stream)
        assert busy_until.get(stream, 0.0) <= span.start_s
        busy_until[stream] = span.end_s
    path = [plan.spans[i] for i in plan.critical]
    assert path[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in pairwise(path))
    assert path[-1].end_s == plan.step_s


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GRAPHS), DEVICE, SHAPES, st.data())
def test_cheaper_never_makes_a_step_longer(
    graph: OperatorGraph, hardware: object, shape: StepShape, data: st.DataObject
) -> None:
    costs = Roofline(hardware)  # type: ignore[arg-type]
    change = data.draw(st.sampled_from(list(all_changes(graph))))
    before, after = step_s(graph, costs, shape), step_s(graph, changed(costs, change), shape)
    assert before * change.factor * (1 - 1e-9) <= after <= before


@settings(max_examples=40, deadline=None)
@given(GRAPH, DEVICE, SHAPES, st.floats(0.1, 10.0))
def test_hardware_that_is_slower_in_everything_is_slower_by_that_much(
    graph: OperatorGraph, hardware: object, shape: StepShape, factor: float
) -> None:
    slower = hardware
    for resource in ("compute", "memory_bandwidth", "links", "launch", "host"):
        slower = scaled_hardware(slower, resource, factor)  # type: ignore[arg-type]
    before, after = (step_s(graph, Roofline(h), shape) for h in (hardware, slower))  # type: ignore[arg-type]
    assert after == pytest.approx(before * factor)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([2, 4, 8]), SHAPES)
def test_splitting_loses_no_flops_and_no_weights(model: ModelShape, tensor: int, shape: StepShape) -> None:
    whole, part = operator_graph(model), operator_graph(model, Parallelism(tensor=tensor))
    assert total_flops(part, shape) * tensor >= total_flops(whole, shape) * (1 - 1e-12)
    assert part.weight_bytes * tensor >= whole.weight_bytes * (1 - 1e-12)
    if model.experts:
        spread = operator_graph(model, Parallelism(expert=tensor))
        assert total_flops(spread, shape) >= total_flops(whole, shape) * (1 - 1e-12)


def total_flops(graph: OperatorGraph, shape: StepShape) -> float:
    return math.fsum(node.operator.flops.of(shape) for node in graph.nodes if node.operator.dtype is not None)


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.booleans(), st.sampled_from([1, 2, 8]))
def test_tiles_never_do_less_than_the_model_asks(shape: StepShape, packed: bool, kv: int) -> None:
    heads = Heads(query=8, kv=kv, key_dim=64, value_dim=32)
    tiles = AttentionTiles(prefill=heads, decode=heads, kv_bytes_per_token=2.0 * kv * 64)
    total, longest = tiles.tiled_flops(shape, packed=packed)
    asked = heads.flops_per_pair * (shape.prefill_attention_pairs + shape.decode_context_tokens)
    assert total >= asked * (1 - 1e-9)
    assert longest >= 0.0


@settings(max_examples=60, deadline=None)
@given(GRAPH, SHAPES)
def test_no_amount_is_negative_or_not_finite(graph: OperatorGraph, shape: StepShape) -> None:
    for operator in graph.operators.values():
        for amount in (operator.flops.of(shape), operator.bytes_moved(shape), operator.bytes_sent(shape)):
            assert math.isfinite(amount)
            assert amount >= 0.0


def test_one_stream_alone_is_the_sum_of_its_operators() -> None:
    graph = operator_graph(MODELS[0])
    shape = shape_of(1, 100, 0, 3, 50)
    plan = timeline(graph, Roofline(preset("h100-sxm")), shape)
    assert plan.step_s == pytest.approx(plan.busy_s)
    assert plan.overlap_s == pytest.approx(0.0, abs=1e-12)


def test_the_shared_expert_hides_behind_the_exchange() -> None:
    graph = operator_graph(MODELS[1], Parallelism(expert=8))
    plan = timeline(graph, Roofline(preset("h100-sxm")), shape_of(1, 4000, 0, 0, 1))
    kinds = [plan.spans[i].operator.kind for i in plan.critical]
    assert "dispatch" in kinds
    assert "shared_down_proj" not in kinds
    assert plan.overlap_s > 0.0


def test_async_scheduling_hides_the_host() -> None:
    hardware = dataclasses.replace(preset("h100-sxm"), host=Host(step_s=1e-4))
    shape = shape_of(0, 1, 0, 8, 100)
    waits, hides = (
        step_s(operator_graph(MODELS[0], async_scheduling=flag), Roofline(hardware), shape) for flag in (False, True)
    )
    assert waits - hides == pytest.approx(1e-4)


def test_a_cycle_is_refused() -> None:
    operator = GRAPHS[0].nodes[0].operator
    with pytest.raises(ValueError, match="must come after what it depends on"):
        OperatorGraph((Node("a", operator, (1,)), Node("b", operator, (0,))))


@pytest.mark.parametrize(
    ("model", "split", "told"),
    [
        (MODELS[0], {"tensor": 3}, "tensor 3 must divide the model's 8 attention heads"),
        (MODELS[0], {"pipeline": 5}, "pipeline 5 must be at most the model's 4 layers"),
        (MODELS[0], {"expert": 2}, "expert 2 must divide the model's 0 experts"),
        (MODELS[1], {"expert": 3}, "expert 3 must divide the model's 16 experts"),
        (MODELS[1], {"tensor": 4, "expert": 2}, "expert 2 must be 1 or a multiple of tensor 4"),
        (MODELS[1], {"tensor": 0}, "tensor must be >= 1"),
    ],
)
def test_a_split_that_cannot_be_is_refused(model: ModelShape, split: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        operator_graph(model, Parallelism(**split))


@pytest.mark.parametrize("bad", [("class", "speed"), ("resource", "gravity"), ("operator", "attention", 0.0)])
def test_a_change_of_nothing_known_is_refused(bad: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"is not known|must be a finite number > 0"):
        Change(*bad)  # type: ignore[arg-type]


def test_every_preset_runs_every_family() -> None:
    shape = shape_of(1, 64, 0, 4, 100)
    assert all(
        0.0 < step_s(operator_graph(model), Roofline(hardware), shape) < 60.0
        for model in MODELS
        for hardware in PRESETS.values()
    )


def test_a_short_chunk_has_too_few_tiles_for_all_cores() -> None:
    device = preset("a100-80g-sxm").device
    attention = GRAPHS[0].operators["attention"]
    seconds = [
        Roofline(preset("a100-80g-sxm")).compute_s(attention, shape_of(1, n, 8192, 0, 1)) for n in (16, 64, 4096)
    ]
    tile = attention.attention.prefill.tile_flops  # type: ignore[union-attr]
    assert seconds[1] == pytest.approx(tile * 8256 * device.cores / (312e12 * 0.7))
    assert seconds[0] == pytest.approx(seconds[1], rel=0.01)
    assert seconds[2] > 2 * seconds[1]


def test_a_lone_token_reads_only_the_experts_it_is_routed_to() -> None:
    experts = operator_graph(MODELS[1]).operators["experts"]
    one, many = (
        experts.bytes_moved(shape_of(0, 1, 0, n, 1)) - experts.moved_bytes.of(shape_of(0, 1, 0, n, 1)) for n in (1, 500)
    )
    assert one == pytest.approx(experts.weight_bytes * 2 / 16)
    assert many == pytest.approx(experts.weight_bytes)


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_tokens_of_a_step_wait_for_every_operator(graph: OperatorGraph) -> None:
    last = max(i for i, node in enumerate(graph.nodes) if node.operator.kind == "outputs")
    waited, todo = {last}, [last]
    while todo:
        for before in graph.nodes[todo.pop()].after:
            if before not in waited:
                waited.add(before)
                todo.append(before)
    hidden = {node.operator.kind for i, node in enumerate(graph.nodes) if i not in waited}
    assert hidden <= {"sync", "prepare"}
