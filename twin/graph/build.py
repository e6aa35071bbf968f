"""From a model's shape to the operators of one step on one device, split by tensor, expert and pipeline parallelism.

Program order is that in which vLLM starts the kernels. Devices of one stage do the same work, so one stands for all.
Does not model sequence parallelism, speculative decoding or adapters.
Law: over all devices, the operators hold every weight and every FLOP of the model at least once.
"""

from dataclasses import dataclass

from twin.graph import layers
from twin.graph.model import ModelShape
from twin.graph.operators import Node, Operator, OperatorGraph
from twin.hardware.topology import DTYPE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Devices of an engine: `tensor` split every matrix, `pipeline` split the layers, `expert` share out the experts.

    `expert` is 1 where experts are split like other matrices. Where it is larger than `tensor`, `expert / tensor`
    engines share their experts by all-to-all exchange (vLLM: data parallel attention), each step being one engine's.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert"):
            if getattr(self, name) < 1:
                raise ValueError(f"parallelism: {name} must be >= 1, got {getattr(self, name)}")
        if self.expert > 1 and self.expert % self.tensor:
            raise ValueError(
                f"parallelism: expert {self.expert} must be 1 or a multiple of tensor {self.tensor}, as in vLLM"
            )

    def check(self, model: ModelShape) -> None:
        """Raise ValueError if `model` cannot be split like this."""
        if model.heads % self.tensor:
            raise ValueError(f"parallelism: tensor {self.tensor} must divide the model's {model.heads} attention heads")
        if self.pipeline > model.layers:
            raise ValueError(f"parallelism: pipeline {self.pipeline} must be at most the model's {model.layers} layers")
        if self.expert > 1 and (model.experts is None or model.experts.count % self.expert):
            count = model.experts.count if model.experts else 0
            raise ValueError(f"parallelism: expert {self.expert} must divide the model's {count} experts")


def operator_graph(
    model: ModelShape,
    parallelism: Parallelism = Parallelism(),
    *,
    kv_dtype: str | None = None,
    async_scheduling: bool = False,
) -> OperatorGraph:
    """The graph of one step of one engine.

    `kv_dtype` is that of the KV cache (default: the model's). With `async_scheduling` the host prepares the next step
    while the device works on this one. Raises ValueError if the model cannot be split as asked.
    """
    parallelism.check(model)
    if (kv_dtype or model.dtype) not in DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r} is not known; expected one of {', '.join(DTYPE_BYTES)}")
    split = layers.Split(
        model=model,
        tensor=parallelism.tensor,
        expert=parallelism.expert,
        kv_element_bytes=DTYPE_BYTES[kv_dtype or model.dtype],
    )
    program = _Program()
    ready = program.add("prepare", layers.PREPARE)
    inputs = program.add("inputs", layers.INPUTS, () if async_scheduling else (ready,))
    last = program.add("embedding", layers.embedding(split), (inputs,))
    per_stage = -(-model.layers // parallelism.pipeline)
    blocks = {
        moe: (layers.attention(split), layers.feed_forward(split, moe))
        for moe in {model.has_experts(index) for index in range(model.layers)}
    }
    for index in range(model.layers):
        if index and index % per_stage == 0:
            last = program.add(f"stage.{program.stage + 1}.hop", layers.hop(split), (last,))
            program.stage += 1
        attention, feed_forward = blocks[model.has_experts(index)]
        last = program.extend(f"layers.{index}.attn", attention, last)
        last = program.extend(f"layers.{index}.mlp", feed_forward, last)
    last = program.extend("head", layers.head(split), last)
    program.add("sync", layers.SYNC, () if async_scheduling else (last,))
    return OperatorGraph(
        nodes=tuple(program.nodes),
        kv_bytes_per_token=split.kv_bytes_per_token * per_stage,
        weight_bytes=_fullest(program.nodes, layers.embedding_bytes(split)),
        devices=parallelism.tensor * parallelism.pipeline,
    )


class _Program:
    """Nodes being laid down in order."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.stage = 0

    def add(self, name: str, operator: Operator, after: tuple[int, ...] = ()) -> int:
        self.nodes.append(Node(name, operator, after, self.stage))
        return len(self.nodes) - 1

    def extend(self, prefix: str, block: layers.Block, last: int) -> int:
        """Add a block; its operators name what they follow by position in the block, -1 being what came before."""
        start = len(self.nodes)
        for operator, after in block:
            self.add(f"{prefix}.{operator.kind}", operator, tuple(last if i < 0 else start + i for i in after))
        return len(self.nodes) - 1


def _fullest(nodes: list[Node], embedding_bytes: float) -> float:
    """Weight bytes of the fullest stage; the embedding is held by the first."""
    held: dict[int, float] = {0: embedding_bytes}
    for node in nodes:
        held[node.stage] = held.get(node.stage, 0.0) + node.operator.weight_bytes
    return max(held.values())
