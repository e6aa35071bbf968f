"""ONNX files: the same decoder costs what its config.json says; what cannot be costed is refused by name."""

import json
from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.model_file import read_graph
from pipelines.onnx_file import read_onnx
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import model_from_config
from twin.graph.onnx_graph import OnnxModel, OnnxNode, graph_from_onnx
from twin.graph.timeline import step_s
from twin.hardware.presets import preset

HIDDEN, HEADS, KV, DIM, INNER, VOCAB, LAYERS = 256, 4, 2, 64, 512, 1000, 2
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "torch_dtype": "float16",
}


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def part(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def node_bytes(node: OnnxNode) -> bytes:
    attributes = [part(5, part(1, name) + whole(3, value) + whole(20, 2)) for name, value in node.attributes.items()]
    names = [part(1, tensor) for tensor in node.inputs] + [part(2, tensor) for tensor in node.outputs]
    return b"".join([*names, part(3, node.name), part(4, node.op_type), *attributes])


def tensor_bytes(name: str, dims: tuple[int, ...]) -> bytes:
    return part(1, b"".join(map(varint, dims))) + whole(2, 10) + part(8, name) + part(9, bytes(6))


def file_bytes(model: OnnxModel) -> bytes:
    weights = [part(5, tensor_bytes(name, dims)) for name, (dims, _) in model.weights.items()]
    nodes = [part(1, node_bytes(node)) for node in model.nodes]
    return whole(1, 8) + part(2, "tests") + part(7, b"".join([*nodes, *weights, part(12, part(1, "logits"))]))


def decoder() -> OnnxModel:
    """A Llama-like decoder with fused attention, as serving exports have it."""
    nodes: list[OnnxNode] = []
    weights: dict[str, tuple[tuple[int, ...], str]] = {"table": ((VOCAB, HIDDEN), "fp16")}

    def add(op_type: str, inputs: list[str], output: str, **attributes: int) -> str:
        nodes.append(OnnxNode(op_type, f"{output}_node", tuple(inputs), (output,), attributes))
        return output

    def product(tensor: str, rows: int, columns: int, output: str) -> str:
        weights[f"{output}_w"] = (rows, columns), "fp16"
        return add("MatMul", [tensor, f"{output}_w"], output)

    last = add("Gather", ["table", "ids"], "x")
    for layer in range(LAYERS):
        normed = add("SimplifiedLayerNormalization", [last], f"n{layer}")
        packed = product(normed, HIDDEN, (HEADS + 2 * KV) * DIM, f"qkv{layer}")
        seen = add("GroupQueryAttention", [packed, "", ""], f"att{layer}", num_heads=HEADS, kv_num_heads=KV)
        last = add("Add", [last, product(seen, HEADS * DIM, HIDDEN, f"o{layer}")], f"r{layer}")
        normed = add("SimplifiedLayerNormalization", [last], f"m{layer}")
        both = product(normed, HIDDEN, 2 * INNER, f"gu{layer}")
        gate = add("Slice", [both], f"g{layer}")
        down = product(add("Mul", [gate, gate], f"a{layer}"), INNER, HIDDEN, f"d{layer}")
        last = add("Add", [last, down], f"s{layer}")
    product(last, HIDDEN, VOCAB, "logits")
    return OnnxModel(nodes, weights, ["logits"])


def test_a_file_reads_into_what_it_was_written_from(tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", decoder()
    path.write_bytes(file_bytes(model))
    read = read_onnx(path)
    assert list(read.nodes) == list(model.nodes)
    assert read.weights == model.weights
    assert list(read.outputs) == ["logits"]


def test_an_onnx_decoder_costs_what_its_config_says() -> None:
    onnx, config = graph_from_onnx(decoder()), operator_graph(model_from_config(CONFIG))
    assert onnx.weight_bytes == config.weight_bytes
    assert onnx.kv_bytes_per_token == config.kv_bytes_per_token
    shape = StepShape(2, 100, 3000, 5, 900)
    for amount in ("matrix", "attention"):
        kinds = [
            sum(
                n.operator.flops.of(shape)
                for n in graph.nodes
                if (n.operator.attention is None) == (amount == "matrix")
            )
            for graph in (onnx, config)
        ]
        assert kinds[0] == pytest.approx(kinds[1], rel=0.02)
    costs = Roofline(preset("h100-sxm"))
    assert step_s(onnx, costs, shape) == pytest.approx(step_s(config, costs, shape), rel=0.25)


def test_data_dependencies_pass_through_operators_that_only_arrange() -> None:
    graph = graph_from_onnx(decoder())
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    assert "g0_node" not in index
    assert graph.nodes[index["a0_node"]].after == (index["gu0_node"],)
    assert set(graph.nodes[index["r0_node"]].after) == {index["x_node"], index["o0_node"]}


def changed(position: int, node: OnnxNode) -> OnnxModel:
    model = decoder()
    nodes = list(model.nodes)
    nodes[position] = node
    return OnnxModel(nodes, model.weights, model.outputs)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (OnnxNode("WarpDrive", "w", ("x",), ("n0",)), "operator 'WarpDrive' of node 'w' is not known"),
        (OnnxNode("MatMul", "qk", ("x", "x"), ("n0",)), "MatMul 'qk' has no stored weight of two dimensions"),
        (OnnxNode("MatMulNBits", "q", ("x", "w"), ("n0",)), "MatMulNBits 'q' must have K and N >= 1, got 0 and 0"),
        (OnnxNode("GroupQueryAttention", "a", ("x",), ("n0",)), "GroupQueryAttention 'a' has 0 query and 0 KV heads"),
        (
            OnnxNode("GroupQueryAttention", "a", ("x", ""), ("n0",), {"num_heads": 3, "kv_num_heads": 3}),
            "3 query and 3 KV heads on an input of width 256",
        ),
    ],
)
def test_a_node_that_cannot_be_costed_is_refused_by_name(node: OnnxNode, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        graph_from_onnx(changed(1, node))


def test_a_graph_without_weights_is_refused() -> None:
    with pytest.raises(ValueError, match="no matrix product with a stored weight"):
        graph_from_onnx(OnnxModel([OnnxNode("Identity", "i", ("x",), ("y",))], {}, ["y"]))


def test_quantised_products_hold_fewer_bytes() -> None:
    node = OnnxNode("MatMulNBits", "q", ("x", "w"), ("n0",), {"K": HIDDEN, "N": HIDDEN, "bits": 4})
    graph = graph_from_onnx(changed(1, node))
    product = next(n.operator for n in graph.nodes if n.name == "q")
    assert product.weight_bytes == HIDDEN * HIDDEN / 2


@pytest.mark.parametrize("content", [b"", b"\xff" * 12, b"\x3a\x7f\x01", b"{}", b"\x08\x08", bytes(range(256))])
def test_bytes_that_are_no_model_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad.onnx cannot be read \(.+\); give a model exported to ONNX"):
        read_onnx(path)


def test_every_cut_of_a_file_is_refused_or_read(tmp_path: Path) -> None:
    whole_file, path = file_bytes(decoder()), tmp_path / "cut.onnx"
    for end in range(0, len(whole_file) - 1, 37):
        path.write_bytes(whole_file[:end])
        with pytest.raises(ConfigError):
            read_onnx(path)


def test_a_model_file_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "m.onnx").write_bytes(file_bytes(decoder()))
    by_directory, by_file = read_graph(tmp_path), read_graph(tmp_path / "config.json", Parallelism(tensor=2))
    assert by_directory == operator_graph(model_from_config(CONFIG))
    assert by_file.devices == 2
    with pytest.raises(ConfigError, match=r"tensor 3 must divide .* heads; split it otherwise"):
        read_graph(tmp_path, Parallelism(tensor=3))
    assert read_graph(tmp_path / "m.onnx") == graph_from_onnx(decoder())


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("config.json", "[1]", "model config must be an object"),
        ("config.json", "{", "config.json: "),
        ("config.json", '{"model_type": "mamba"}', "model_type 'mamba' is not known"),
        ("m.onnx", "{", "m.onnx cannot be read"),
        ("absent.json", None, "absent.json cannot be read"),
    ],
)
def test_a_bad_model_file_is_refused_with_its_path(tmp_path: Path, name: str, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=told):
        read_graph(tmp_path / name)


def test_an_onnx_file_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(file_bytes(decoder()))
    with pytest.raises(ConfigError, match="cannot be split over devices"):
        read_graph(tmp_path / "m.onnx", Parallelism(tensor=2))
