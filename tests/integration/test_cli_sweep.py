"""`twincast sweep`: the ceiling, who falls out when a limit tightens, what is not ranked and why, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.ingest.recording import batched_steps, event_of, write_recording
from tests.made_known import DEPLOYMENT, engine, recorded, served, steps, traffic


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    requests = traffic(150)
    served_by = engine()
    records = [served_by.config, *recorded(requests, served(requests, served_by))]
    batches = batched_steps(DEPLOYMENT, "e0", steps(900))
    return write_recording(tmp_path / "made", [event_of(record) for record in (*records, *batches)], "made", "test")


def swept(tmp_path: Path, recording: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "out.json"
    assert main(["sweep", str(recording), *arguments, "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_the_ceiling_lies_at_the_knee_and_is_that_of_a_full_batch(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = swept(tmp_path, recording, "--span", "60", "--replications", "2")
    ceiling = curve["ceiling_requests_per_s"]["mean"]
    assert curve["knee_requests_per_s"] == pytest.approx(ceiling, rel=0.15)
    completed = [row["throughput_requests_per_s"] for row in curve["curve"]]
    assert max(completed) == pytest.approx(ceiling, rel=0.1)
    assert "ceiling" in capsys.readouterr().out
    point = swept(tmp_path, recording, "--limit", "tpot_s:0.95:1", "--span", "60", "--replications", "2")["grid"][0]
    assert point["ceiling_requests_per_s"] == pytest.approx(ceiling, rel=0.1)


def test_where_no_rate_is_kept_up_with_there_is_no_knee(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = swept(tmp_path, recording, "--rates", "5000", "--span", "20", "--replications", "1")
    assert curve["knee_requests_per_s"] is None
    assert "no knee: none of these rates is kept up with" in capsys.readouterr().out


def test_tightening_the_tpot_limit_says_which_batch_sizes_fall_out(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--grid", "max_num_seqs=2,8,16", "--grid", "kv_blocks=2000"]
    free = swept(tmp_path, recording, *grid, "--limit", "tpot_s:0.95:9")
    full = [point["full_tpot_s"]["p95"] for point in free["grid"]]
    assert full == sorted(full)
    between = (full[1] + full[2]) / 2
    found = swept(tmp_path, recording, *grid, "--limit", f"tpot_s:0.95:{between}", "--limit", "tpot_s:0.95:9")
    assert [point["meets_all"] for point in found["grid"]] == [True, True, False]
    words = next(text for text in found["limits"] if "tightened" in text and text.startswith("Full batch"))
    assert "also falls out: max_num_seqs=16" in words
    assert "Stays: max_num_seqs=2" in words
    assert words in capsys.readouterr().out.replace("\n", " ")
    assert found["rankings"][0]["best_first"][0].startswith("max_num_seqs=8")


def test_the_grid_holds_the_same_limits_as_an_axis(recording: Path, tmp_path: Path) -> None:
    one = swept(tmp_path, recording, "--grid", "max_num_seqs=8", "--limit", "tpot_s:0.95:0.02")
    two = swept(tmp_path, recording, "--grid", "max_num_seqs=8", "--grid", "tpot_limit_s=0.02")
    assert one["limits"] == two["limits"]
    assert len(two["grid"]) == 1


def test_points_of_different_prompts_are_not_ranked_together(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = swept(tmp_path, recording, "--grid", "isl_factor=1,1.5", "--grid", "max_num_seqs=4,8")
    assert [len(ranking["best_first"]) for ranking in found["rankings"]] == [2, 2]
    assert "mean ISL" in found["not_ranked"]
    assert "not ranked against each other: mean ISL" in capsys.readouterr().out.replace("\n", " ")


def test_every_point_tells_chip_seconds_and_tokens_per_chip(recording: Path, tmp_path: Path) -> None:
    found = swept(tmp_path, recording, "--grid", "engines=1,2", "--grid", "prefix_hit_ratio=0,0.5")
    for point in found["grid"]:
        assert point["chips"] == point["settings"]["engines"]
        assert point["prefill_chip_s_per_1000_tokens"] > 0.0
        assert point["decode_chip_s_per_1000_tokens"] > 0.0
        assert point["tokens_per_min_per_chip"] > point["offered_tokens_per_min_per_chip"] > 0.0
    cold, warm = found["grid"][:2]
    assert warm["prefill_chip_s_per_1000_tokens"] < cold["prefill_chip_s_per_1000_tokens"]
    assert found["not_ranked"] == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--grid", "max_num_seq=8"], "did you mean max_num_seqs?"),
        (["--grid", "max_num_seqs=8,0"], "grid point max_num_seqs=0: max_num_seqs: Expected `int` >= 1"),
        (["--grid", "kv_blocks=400,9"], "grid point kv_blocks=9: request"),
        (["--grid", "isl_factor=nan"], "isl_factor must be a finite number > 0"),
        (["--grid", "isl_factor=1000"], "KV blocks but engine"),
        (["--grid", "engines"], "field=value,value"),
        (["--limit", "tpot_s:0.95:nan"], "limit_s must be > 0"),
        (["--limit", "tpot:0.95:1"], "metric must be one of"),
        (["--limit", "tpot_s:0.95:1:gold"], "class 'gold'"),
        (["--grid", "pd=1:1"], "grid point pd=1:1: prefill and decode engines need a KV link"),
        (["--grid", "pd=2", "--kv-link", "1"], "pd must be prefill:decode engines"),
        (["--kv-link", "fast"], "microseconds per token"),
        (["--rates", "1,x"], "--rates must be numbers"),
        (["--span", "1"], "--span must be 10 to 86400"),
        (["--replications", "0"], "--replications must be 1 to 1000"),
    ],
)
def test_bad_input_is_one_line_naming_the_field_before_anything_is_written(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["sweep", str(recording), *arguments, "--json", str(tmp_path / "out.json")]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_prefill_and_decode_splits_are_a_grid(recording: Path, tmp_path: Path) -> None:
    found = swept(tmp_path, recording, "--grid", "pd=1:1,1:2", "--kv-link", "1:200:0.1")
    assert [point["chips"] for point in found["grid"]] == [2, 3]
    assert [point["simulator"] for point in found["grid"]] == ["simpy", "simpy"]
    assert "P:D is 1:1, 1:2" in found["not_ranked"]
