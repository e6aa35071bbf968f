"""Operator profiles: curves and grids pass through what was measured, and carry over; bad files are refused whole."""

from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.operator_tables import read_llmservingsim, read_vidur_mlp, read_vidur_send_recv
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.cost.tables import AttentionGrids, Curve, Grid, Measured, MeasuredCosts, two_shapes
from twin.graph.build import Parallelism, operator_graph
from twin.graph.model import model_from_config
from twin.graph.timeline import step_s
from twin.hardware.presets import preset

TINY = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 4000,
}
GRAPH = operator_graph(model_from_config(TINY))
ROOFLINE = Roofline(preset("a100-80g-sxm"))
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "cost_tables"
PROFILE = SHARED / "llmservingsim/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1"


def prefill(tokens: int) -> StepShape:
    return StepShape(1, tokens, tokens * (tokens + 1) // 2)


def slow_profile(factor: float, offset_s: float) -> list[Measured]:
    """A machine that is `factor` times the roofline and `offset_s` late, measured at two shapes per kind."""
    rows = []
    for kind in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "act_fn"):
        for tokens in (1, 4096):
            seconds = ROOFLINE.operator_s(GRAPH.operators[kind], prefill(tokens))
            rows.append(Measured(kind, prefill(tokens), factor * seconds + offset_s))
    return rows


def test_a_curve_passes_through_its_points_and_never_falls() -> None:
    curve = Curve.through([(4.0, 9.0), (1.0, 2.0), (2.0, 5.0), (3.0, 4.0), (2.0, 7.0)])
    # The three rows of the dip share their mean: neither the peak before it nor the valley is taken for true.
    assert [curve.at(x) for x in (1.0, 2.0, 3.0, 4.0)] == [2.0, 16 / 3, 16 / 3, 9.0]
    assert curve.at(5.0) == pytest.approx(9.0 + (9.0 - 16 / 3))
    assert curve.at(0.01) == 1.0


def test_one_shape_is_scaled() -> None:
    assert Curve.through([(2.0, 3.0)]).at(4.0) == 6.0


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)], [(1.0, float("nan"))], [(1.0, -2.0)]])
def test_a_curve_without_sense_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match=r"at least one measured shape|finite and > 0"):
        Curve.through(points)


def test_two_shapes_are_the_ends_or_a_margin_from_them() -> None:
    points = [(float(x), 10.0 + x) for x in (5, 1, 3, 2, 4, 9, 7, 8, 6, 10, 11)]
    curve, used = two_shapes(points)
    assert [points[i][0] for i in used] == [1.0, 11.0]
    assert curve.at(6.5) == 16.5
    assert [points[i][0] for i in two_shapes(points, margin_ratio=0.1)[1]] == [2.0, 10.0]
    with pytest.raises(ValueError, match="two shapes need two or more points"):
        two_shapes(points[:1])


def test_two_shapes_find_a_machine_that_is_late_and_slower() -> None:
    costs = MeasuredCosts.of(slow_profile(1.5, 4e-6), GRAPH, ROOFLINE)
    for kind in ("qkv_proj", "act_fn", "down_proj"):
        for tokens in (3, 200, 2000, 9000):
            expected = 1.5 * ROOFLINE.operator_s(GRAPH.operators[kind], prefill(tokens)) + 4e-6
            assert costs.operator_s(GRAPH.operators[kind], prefill(tokens)) == pytest.approx(expected, rel=1e-9)


def test_measured_costs_carry_over_to_another_model_without_measuring_it() -> None:
    costs = MeasuredCosts.of(slow_profile(2.0, 0.0), GRAPH, ROOFLINE)
    other = operator_graph(
        model_from_config({**TINY, "hidden_size": 2048, "num_hidden_layers": 5}), Parallelism(tensor=2)
    )
    for kind in ("qkv_proj", "gate_up_proj"):
        operator = other.operators[kind]
        assert costs.operator_s(operator, prefill(100)) == pytest.approx(
            2 * ROOFLINE.operator_s(operator, prefill(100))
        )
    assert step_s(other, costs, prefill(100)) > 0.0


def test_kinds_that_were_not_measured_are_left_to_the_roofline() -> None:
    costs = MeasuredCosts.of(slow_profile(2.0, 0.0), GRAPH, ROOFLINE)
    lm_head = GRAPH.operators["lm_head"]
    assert costs.operator_s(lm_head, prefill(7)) == ROOFLINE.operator_s(lm_head, prefill(7))
    assert costs.launch_s(lm_head) == ROOFLINE.launch_s(lm_head) > 0.0
    assert costs.launch_s(GRAPH.operators["qkv_proj"]) == 0.0


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="operator 'warp_drive' is not in the graph; expected one of act_fn"):
        MeasuredCosts.of([Measured("warp_drive", prefill(1), 1e-6)], GRAPH, ROOFLINE)


def test_a_grid_is_exact_where_the_values_are_multilinear() -> None:
    points = [(x, y) for x in (1.0, 2.0, 8.0) for y in (0.0, 10.0)]
    grid = Grid.of(points, [3 * x + y + x * y for x, y in points])
    assert grid is not None
    assert grid.at((5.0, 4.0)) == pytest.approx(3 * 5 + 4 + 5 * 4)
    assert grid.at((16.0, 20.0)) == pytest.approx(3 * 16 + 20 + 16 * 20)
    assert grid.at((0.0, -5.0)) == grid.at((1.0, 0.0))
    assert Grid.of(points[:-1], [1.0] * 5) is None


def attention_rows() -> list[Measured]:
    rows = []
    for chunk in (0, 16, 64):
        for before in (0, 100) if chunk else (0,):
            for sequences in (0, 1, 8):
                for context in (32, 256) if sequences else (0,):
                    if chunk or sequences:
                        pairs = chunk * before + chunk * (chunk + 1) // 2
                        shape = StepShape(int(chunk > 0), chunk, pairs, sequences, sequences * context)
                        rows.append(Measured("attention", shape, 1e-6 * (1 + pairs + sequences * context)))
    return rows


def test_attention_passes_through_every_measured_row() -> None:
    rows = attention_rows()
    grids = AttentionGrids.of(rows)
    assert grids is not None
    for row in rows:
        assert grids.at(row.shape) == pytest.approx(row.seconds)
    assert AttentionGrids.of(rows[:-1]) is None


def test_many_chunks_count_as_one_of_equal_work() -> None:
    grids = AttentionGrids.of(attention_rows())
    assert grids is not None
    four = StepShape(prefill_requests=4, prefill_tokens=64, prefill_attention_pairs=4 * 136)
    assert grids.at(StepShape(1, 64, 2080)) > grids.at(four) > grids.at(StepShape(1, 16, 136))


FILES = {
    "dense.csv": "layer,tokens,time_us\r\nqkv_proj,1,5.0\r\nqkv_proj,8,6.5\r\n",
    "per_sequence.csv": "layer,sequences,time_us\r\nlm_head,2,100.0\r\n",
    "attention.csv": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\r\n16,4,2,10,9.5\r\n",
}


def profile(directory: Path, **changed: str) -> Path:
    for name, text in FILES.items():
        (directory / name).write_text(changed.get(name.removesuffix(".csv"), text), encoding="utf-8")
    return directory


def test_a_profile_becomes_rows(tmp_path: Path) -> None:
    rows = read_llmservingsim(profile(tmp_path))
    assert [row.kind for row in rows] == ["qkv_proj", "qkv_proj", "lm_head", "attention"]
    assert rows[1] == Measured("qkv_proj", prefill(8), 6.5e-6)
    assert rows[2].shape == StepShape(decode_requests=2)
    assert rows[3].shape == StepShape(1, 16, 16 * 4 + 136, 2, 20)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("layer,tokens\r\nqkv_proj,1\r\n", "line 2: column time_us is missing"),
        ("layer,tokens,time_us\r\nqkv_proj,1,nan\r\n", "line 2: time_us must be a finite number > 0, got 'nan'"),
        ("layer,tokens,time_us\r\nqkv_proj,1,1\r\nqkv_proj,-2,1\r\n", "line 3: tokens must be a whole number"),
    ],
)
def test_a_bad_profile_is_refused_with_file_line_and_column(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        read_llmservingsim(profile(tmp_path, dense=text))
    assert "dense.csv" in str(refused.value)


def test_an_absent_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dense.csv cannot be read"):
        read_llmservingsim(tmp_path)


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is absent")
def test_public_profiles_read_whole() -> None:
    rows = read_llmservingsim(PROFILE)
    assert len(rows) == 1368 + 80 + 8643
    grids = AttentionGrids.of(row for row in rows if row.kind == "attention")
    assert grids is not None
    attention = [row for row in rows if row.kind == "attention"]
    assert all(grids.at(row.shape) == pytest.approx(row.seconds) for row in attention[::50])
    assert len(read_vidur_mlp(SHARED / "vidur/a100/meta-llama/Llama-2-7b-hf/mlp.csv")) == 40
    links = read_vidur_send_recv(SHARED / "vidur/network/a100_pairwise_nvlink/send_recv.csv")
    assert {nodes: len(rows) for nodes, rows in links.items()} == {1: 994, 2: 994}
