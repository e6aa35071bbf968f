"""The nodes and tensor shapes of an ONNX file, read straight from its protobuf bytes; weights are skipped over.

Field numbers are those of onnx.proto3 (github.com/onnx/onnx, onnx/onnx.proto). Knows no operator.
Law: a file ends as an `OnnxModel` or as one `ConfigError`; bytes that are no protobuf never end in another error.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import ConfigError
from twin.graph.onnx_graph import OnnxModel, OnnxNode

# Message fields: ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, ValueInfoProto.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_OUTPUT = 1, 5, 12
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 3, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT = 1, 3
TENSOR_DIMS, TENSOR_DATA_TYPE, TENSOR_NAME = 1, 2, 8
VALUE_NAME = 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DATA_TYPES = {1: "fp32", 2: "int8", 3: "int8", 10: "fp16", 16: "bf16", 17: "fp8", 19: "fp8"}
"""TensorProto.DataType against data types with a speed; others hold no weights of matrix products."""


def read_onnx(path: Path) -> OnnxModel:
    """Nodes, weight shapes and outputs of the graph in an ONNX file. Raises ConfigError."""
    try:
        return _model(memoryview(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"ONNX file {path} cannot be read ({error}); give a model exported to ONNX") from error


def _model(content: memoryview) -> OnnxModel:
    nodes: list[OnnxNode] = []
    weights: dict[str, tuple[tuple[int, ...], str]] = {}
    outputs: list[str] = []
    for graph in _parts(content, MODEL_GRAPH):
        for number, part in _fields(graph):
            if not isinstance(part, memoryview):
                continue
            if number == GRAPH_NODE:
                nodes.append(_node(part))
            elif number == GRAPH_INITIALIZER:
                name, dims, data_type = _tensor(part)
                if data_type in DATA_TYPES:
                    weights[name] = dims, DATA_TYPES[data_type]
            elif number == GRAPH_OUTPUT:
                outputs += [_text(name) for name in _parts(part, VALUE_NAME)]
    if not nodes:
        raise ValueError("no graph with nodes in it")
    return OnnxModel(nodes, weights, outputs)


def _node(part: memoryview) -> OnnxNode:
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_NAME: [], NODE_OP_TYPE: []}
    attributes: dict[str, int] = {}
    for number, value in _fields(part):
        if not isinstance(value, memoryview):
            continue
        if number in texts:
            texts[number].append(_text(value))
        elif number == NODE_ATTRIBUTE:
            whole = [inner for key, inner in _fields(value) if key == ATTRIBUTE_INT and isinstance(inner, int)]
            name = [_text(inner) for inner in _parts(value, ATTRIBUTE_NAME)]
            if whole and name:
                attributes[name[-1]] = whole[-1]
    op_type, name_of_node = ("".join(texts[key][-1:]) for key in (NODE_OP_TYPE, NODE_NAME))
    return OnnxNode(op_type, name_of_node, tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]), attributes)


def _tensor(part: memoryview) -> tuple[str, tuple[int, ...], int]:
    name, dims, data_type = "", [], 0
    for number, value in _fields(part):
        if number == TENSOR_DIMS:
            dims += [value] if isinstance(value, int) else list(_packed(value))
        elif number == TENSOR_DATA_TYPE and isinstance(value, int):
            data_type = value
        elif number == TENSOR_NAME and isinstance(value, memoryview):
            name = _text(value)
    return name, tuple(dims), data_type


def _parts(content: memoryview, wanted: int) -> Iterator[memoryview]:
    return (value for number, value in _fields(content) if number == wanted and isinstance(value, memoryview))


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, whole number or bytes) of one protobuf message; fixed-width fields come as their bytes."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            size, at = _varint(content, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise ValueError(f"byte {at} is no protobuf field")
        if at + size > len(content):
            raise ValueError(f"it ends {at + size - len(content)} bytes early")
        yield key >> 3, content[at : at + size]
        at += size


def _packed(content: memoryview) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        yield value


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"byte {at} ends a number early")


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8")
