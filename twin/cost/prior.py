"""The prior: step costs and KV capacity of a model on hardware, before any data and for what nobody has run.

Wires graph, roofline and freezing together; holds no number of its own but vLLM's share of memory.
Law: the prior is a `FrozenStepCost` like any other, so whatever simulates learned costs simulates it.
"""

from collections.abc import Mapping

from schemas.engines import EngineConfig
from twin.cost.freeze import OperatingRange, StepSeconds, freeze
from twin.cost.frozen import FrozenStepCost
from twin.cost.padding import padded_cost
from twin.cost.roofline import OperatorCost, Roofline
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import model_from_config
from twin.graph.operators import OperatorGraph
from twin.graph.timeline import step_s
from twin.hardware.topology import Hardware

ACTIVATION_BYTES = 1.5e9
"""Assumed: what vLLM keeps for activations and captured graphs, beside weights and KV cache."""


def step_seconds(graph: OperatorGraph, costs: OperatorCost) -> StepSeconds:
    """The graph's own step time as a function of shape, seconds: what `freeze` approximates.

    With pipeline stages it is the way of one batch through all of them.
    """
    return lambda shape: step_s(graph, costs, shape)


def prior_step_cost(graph: OperatorGraph, hardware: Hardware, work: OperatingRange) -> FrozenStepCost:
    """Step costs from hardware and model alone; `graph` says how the model is split.

    How far the affine form is from the graph's own step time: `twin.cost.freeze.freeze_error_ratio`.
    Raises ValueError if the hardware lacks what the graph needs.
    """
    return freeze(step_seconds(graph, Roofline(hardware)), work)


def engine_graph(engine: EngineConfig, model_config: Mapping[str, object] | None = None) -> OperatorGraph:
    """The graph of an engine record; `model_config` where the record does not carry the model's `config.json`.

    Raises ValueError if the model is not known or cannot be split as the record says.
    """
    split = Parallelism(tensor=engine.tensor_parallel, pipeline=engine.pipeline_parallel, expert=engine.expert_parallel)
    model = model_from_config(model_config or engine.model_config)
    return operator_graph(model, split, async_scheduling=engine.async_scheduling)


def operating_range(engine: EngineConfig) -> OperatingRange:
    """Where an engine of this record works: its limits, and contexts up to half of its longest request."""
    longest = engine.max_model_len_tokens or 4096
    return OperatingRange(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        context_tokens=tuple(sorted({max(longest // 64, 1), max(longest // 8, 1), max(longest // 2, 1)})),
    )


def engine_prior(
    engine: EngineConfig, hardware: Hardware, model_config: Mapping[str, object] | None = None
) -> FrozenStepCost:
    """The prior of an engine record on this hardware. Raises ValueError as `engine_graph` and `prior_step_cost` do."""
    cost = prior_step_cost(engine_graph(engine, model_config), hardware, operating_range(engine))
    return padded_cost(cost, engine.cudagraph_capture_sizes)


def kv_capacity_tokens(graph: OperatorGraph, hardware: Hardware, *, memory_utilization_ratio: float = 0.9) -> int:
    """Tokens whose KV fits beside weights and activations on the fullest device; vLLM's default share of memory.

    Raises ValueError if the weights alone do not fit, or the model keeps no KV.
    """
    if not graph.kv_bytes_per_token:
        raise ValueError("the model's graph keeps no KV per token, so there is no telling how many fit")
    if not 0.0 < memory_utilization_ratio <= 1.0:
        raise ValueError(f"memory_utilization_ratio must be > 0 and <= 1, got {memory_utilization_ratio}")
    memory_bytes = hardware.device.memory_bytes * memory_utilization_ratio
    free_bytes = memory_bytes - graph.weight_bytes - ACTIVATION_BYTES
    if free_bytes <= 0:
        raise ValueError(
            f"the model needs {(graph.weight_bytes + ACTIVATION_BYTES) / 1e9:.1f} GB per device but {hardware.name} "
            f"gives {memory_bytes / 1e9:.1f} GB; split it over more devices"
        )
    return int(free_bytes / graph.kv_bytes_per_token)
