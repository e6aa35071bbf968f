"""An ONNX decoder as an operator graph of one device. Reads no file: nodes and tensor shapes come in as plain data.

Matrix products with a stored weight, fused attention, norms and elementwise operators cost time; operators that only
arrange data do not. Attention must be fused (GroupQueryAttention, MultiHeadAttention, Attention), as serving exports
have it. Does not split a model over devices: its `config.json` does.
Law: an operator that is neither costed nor known to be free is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twin.cost.taxonomy import SpanClass
from twin.graph.attention import AttentionTiles, Heads
from twin.graph.layers import INPUTS, PREPARE, SYNC
from twin.graph.operators import Amount, Node, Operator, OperatorGraph
from twin.hardware.topology import DTYPE_BYTES

_ARRANGING = """
Cast CastLike Concat Constant ConstantOfShape Equal Expand Flatten Gather GatherElements GatherND Greater Identity Less
Not Range ReduceMax ReduceSum Reshape ScatterND Shape Size Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where
"""
_ELEMENTWISE = """
Add BiasGelu Clip Cos Div Erf Exp FastGelu Gelu LayerNormalization Max Min Mul Neg Pow QuickGelu RMSNormalization
Reciprocal ReduceMean Relu RotaryEmbedding Sigmoid SimplifiedLayerNormalization Sin SkipLayerNormalization
SkipSimplifiedLayerNormalization Softmax Sqrt Sub Swish Tanh
"""
ARRANGING = frozenset(_ARRANGING.split())
"""Operators that move no activations worth counting."""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators that read and write each activation once."""
ATTENTION = {"GroupQueryAttention": "num_heads", "MultiHeadAttention": "num_heads", "Attention": "q_num_heads"}
"""Fused attention, and the attribute that counts its query heads."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One node: tensor names in and out, and its whole-number attributes."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """Nodes in topological order; `weights` maps stored tensors to (dimensions, data type); `outputs` of the graph."""

    nodes: Sequence[OnnxNode]
    weights: Mapping[str, tuple[tuple[int, ...], str]]
    outputs: Sequence[str]


def graph_from_onnx(model: OnnxModel) -> OperatorGraph:
    """The graph of one step. Raises ValueError that names the node which cannot be costed."""
    building = _Building(model)
    for node in model.nodes:
        building.add(node)
    return building.finish()


class _Building:
    """Follows tensors through the nodes: their last dimension, and the graph nodes they wait for."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.nodes = [Node("prepare", PREPARE), Node("inputs", INPUTS, (0,))]
        self.width: dict[str, int] = {}
        self.waits: dict[str, tuple[int, ...]] = {}
        self.kv_bytes = 0.0
        self.held: dict[str, float] = {}

    def add(self, node: OnnxNode) -> None:
        """Cost one node, or pass its tensors on."""
        waits = tuple(sorted({i for tensor in node.inputs for i in self.waits.get(tensor, ())})) or (1,)
        operator, width = self._operator(node)
        if operator is not None:
            self.nodes.append(Node(node.name or node.op_type, operator, waits))
            waits = (len(self.nodes) - 1,)
        for tensor in node.outputs:
            self.waits[tensor] = waits
            self.width[tensor] = width

    def finish(self) -> OperatorGraph:
        """Close the step with the host's wait. Raises ValueError if nothing was computed."""
        if not any(node.operator.weight_bytes for node in self.nodes):
            raise ValueError("ONNX graph: no matrix product with a stored weight in it; give the decoder's graph")
        self.nodes.append(Node("sync", SYNC, (len(self.nodes) - 1,)))
        return OperatorGraph(tuple(self.nodes), kv_bytes_per_token=self.kv_bytes, weight_bytes=sum(self.held.values()))

    def _operator(self, node: OnnxNode) -> tuple[Operator | None, int]:
        """(operator or None where free, last dimension of the result)."""
        width = max((self.width.get(tensor, 0) for tensor in node.inputs), default=0)
        if node.op_type in ("MatMul", "Gemm", "MatMulNBits"):
            return self._matrix(node)
        if node.op_type in ATTENTION:
            return self._attention(node)
        if node.op_type == "Gather" and len(self._weight(node, 0)) == 2:
            width = self._weight(node, 0)[1]
            self._hold(node.inputs[0])
            return _elementwise("embedding", width, self._element_bytes(node.inputs[0])), width
        if node.op_type in ARRANGING:
            return None, width
        if node.op_type in ELEMENTWISE:
            return (_elementwise(node.op_type, width, 2.0) if width else None), width
        raise ValueError(
            f"ONNX graph: operator {node.op_type!r} of node {node.name!r} is not known; "
            "export with standard operators and fused attention"
        )

    def _matrix(self, node: OnnxNode) -> tuple[Operator, int]:
        dims = self._weight(node, 1)
        if node.op_type == "MatMulNBits":
            rows, columns = node.attributes.get("K", 0), node.attributes.get("N", 0)
            weight_bytes, dtype = rows * columns * node.attributes.get("bits", 4) / 8, "fp16"
        elif len(dims) == 2:
            rows, columns = reversed(dims) if node.attributes.get("transB") else dims
            dtype = self.model.weights[node.inputs[1]][1]
            weight_bytes = rows * columns * DTYPE_BYTES[dtype]
        else:
            raise ValueError(
                f"ONNX graph: {node.op_type} {node.name!r} has no stored weight of two dimensions; "
                "attention must be fused into GroupQueryAttention, MultiHeadAttention or Attention"
            )
        if rows < 1 or columns < 1:
            raise ValueError(
                f"ONNX graph: {node.op_type} {node.name!r} must have K and N >= 1, got {rows} and {columns}"
            )
        self.held[node.inputs[1]] = weight_bytes
        is_head = any(tensor in self.model.outputs for tensor in node.outputs)
        flops, moved = 2.0 * rows * columns, (rows + columns) * DTYPE_BYTES[dtype]
        operator = Operator(
            kind="lm_head" if is_head else "matmul",
            span_class=SpanClass.COMPUTE,
            dtype=dtype,
            flops=Amount(per_sequence=flops) if is_head else Amount(per_token=flops),
            weight_bytes=weight_bytes,
            moved_bytes=Amount(per_sequence=moved) if is_head else Amount(per_token=moved),
        )
        return operator, columns

    def _attention(self, node: OnnxNode) -> tuple[Operator, int]:
        query = node.attributes.get(ATTENTION[node.op_type], 0)
        kv = node.attributes.get("kv_num_heads", query)
        width = self.width.get(node.inputs[0], 0) if node.inputs else 0
        packed_heads = query if len(node.inputs) > 1 and node.inputs[1] else query + 2 * kv
        if query < 1 or kv < 1 or query % kv or width < packed_heads or width % packed_heads:
            raise ValueError(
                f"ONNX graph: {node.op_type} {node.name!r} has {query} query and {kv} KV heads on an input of width "
                f"{width}; expected whole heads"
            )
        dim = width // packed_heads
        heads = Heads(query=query, kv=kv, key_dim=dim, value_dim=dim)
        tiles = AttentionTiles(prefill=heads, decode=heads, kv_bytes_per_token=4.0 * kv * dim)
        self.kv_bytes += tiles.kv_bytes_per_token
        operator = Operator(
            kind="attention",
            span_class=SpanClass.ATTENTION,
            dtype="fp16",
            flops=Amount(per_prefill_pair=heads.flops_per_pair, per_decode_context_token=heads.flops_per_pair),
            moved_bytes=Amount(per_token=4.0 * query * dim),
            attention=tiles,
        )
        return operator, query * dim

    def _weight(self, node: OnnxNode, position: int) -> tuple[int, ...]:
        if len(node.inputs) <= position:
            return ()
        return self.model.weights.get(node.inputs[position], ((), ""))[0]

    def _element_bytes(self, tensor: str) -> float:
        return DTYPE_BYTES[self.model.weights[tensor][1]]

    def _hold(self, tensor: str) -> None:
        dims, dtype = self.model.weights[tensor]
        self.held[tensor] = dims[0] * dims[1] * DTYPE_BYTES[dtype]


def _elementwise(kind: str, width: int, element_bytes: float) -> Operator:
    return Operator(
        kind=kind,
        span_class=SpanClass.ELEMENTWISE,
        flops=Amount(per_token=float(width)),
        moved_bytes=Amount(per_token=2.0 * width * element_bytes),
    )
