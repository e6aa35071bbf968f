"""`twincast simulate`: a recording compared with the twin, a trace on hardware nobody has run, and every bad input."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.ingest.recording import batched_steps, event_of, write_recording
from pipelines.samples import RAMP
from tests.made_known import DEPLOYMENT, engine, recorded, served, steps, traffic

LLAMA = {
    "model_type": "llama",
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 32000,
}
ENGINE = "block_size_tokens = 16\nmax_num_seqs = 8\nmax_num_batched_tokens = 512\n"
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{10 + i:02}.0000000,{100 + i},{5 + i}\n" for i in range(20)
)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What a service of known cost left behind: requests with the engine's stamps, and steps."""
    requests = traffic(150)
    served_by = engine()
    records = [served_by.config, *recorded(requests, served(requests, served_by))]
    batches = batched_steps(DEPLOYMENT, "e0", steps(900))
    return write_recording(tmp_path / "made", [event_of(record) for record in (*records, *batches)], "made", "test")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A trace, an engine file and a model, in one folder."""
    (tmp_path / "engine.toml").write_text(ENGINE, encoding="utf-8")
    (tmp_path / "model.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    (tmp_path / "costs.toml").write_text("[all]\ndecode_requests_us = [5000.0, 5100.0]\n", encoding="utf-8")
    return tmp_path


def account_of(path: Path, *arguments: str) -> dict[str, Any]:
    assert main(["simulate", *arguments, "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The only line of a command that must end with 2, say nothing on stdout and show no traceback."""
    assert main(list(arguments)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("twincast: ")
    assert told.err.count("\n") == 1
    return told.err


def test_a_recording_is_compared_with_the_twin(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = account_of(tmp_path / "out.json", str(recording))
    assert found["requests"] == 150
    assert found["basis"] == "engine"
    assert set(found["metrics"]) == {"ttft_s", "tpot_s", "e2e_s"}
    for cells in found["metrics"].values():
        assert set(cells) == {"p50", "p95", "p99"}
        for cell in cells.values():
            assert cell["twin"] == pytest.approx(cell["observed"], rel=0.1)
    assert found["preemptions"] == {"observed": 0, "twin": 0}
    assert all(type(count) is int for count in found["preemptions"].values())
    assert found["success_ratio"] == {"observed": 1.0, "twin": 1.0}
    assert set(found["saturated_ratio"]) == {"observed", "twin"}
    assert found["engine"] in ("kernel", "simpy")
    assert 0.0 < found["wall_s"] < 60.0
    text = capsys.readouterr().out
    assert "150 requests" in text
    assert "TTFT P95" in text


def test_simulators_agree_on_every_number(recording: Path, tmp_path: Path) -> None:
    found = []
    for name in ("kernel", "simpy", "plain"):
        account = account_of(tmp_path / f"{name}.json", str(recording), "--simulator", name)
        assert account["engine"] == name
        found.append(account["metrics"])
    assert found[0] == found[1] == found[2]


def test_saved_costs_give_the_same_as_learned_ones(recording: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    learned = account_of(tmp_path / "a.json", str(recording), "--speed", "constant", "--save-costs", str(costs))
    given = account_of(tmp_path / "b.json", str(recording), "--costs", str(costs))
    itself = ["--costs-from", str(recording)]
    other = account_of(tmp_path / "c.json", str(recording), *itself, "--speed", "constant")
    assert learned["metrics"] == given["metrics"] == other["metrics"]
    # Named as the origin of the costs or not, the source's own steps tell how fast its machine went.
    named = account_of(tmp_path / "d.json", str(recording), *itself)
    unnamed = account_of(tmp_path / "e.json", str(recording))
    assert (named["metrics"], named["speed"]) == (unnamed["metrics"], "recorded")


def test_rows_and_a_trace_are_written_whole(recording: Path, tmp_path: Path) -> None:
    rows, trace = tmp_path / "rows.jsonl", tmp_path / "trace.json"
    before = set(tmp_path.iterdir())
    assert main(["simulate", str(recording), "--rows", str(rows), "--perfetto", str(trace)]) == 0
    assert set(tmp_path.iterdir()) - before == {rows, trace}
    assert len(rows.read_text(encoding="utf-8").splitlines()) == 150
    events = json.loads(trace.read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" and event["name"].startswith("request ") for event in events) == 150
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"waiting", "running", "kv_used_blocks"}


def test_effects_rank_what_binds_first(recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    effects = account_of(tmp_path / "out.json", str(recording), "--effects")["effects"]
    assert {"role", "resource"} <= {effect["kind"] for effect in effects}
    gains = [
        max(-(effect[name]["mean"] if effect[name] else 0.0) for name in ("ttft_p95", "tpot_p95")) for effect in effects
    ]
    assert gains[0] > 0.02 > gains[-1]
    assert "Ten per cent cheaper" in capsys.readouterr().out


def test_another_setting_changes_what_comes_out(recording: Path, tmp_path: Path) -> None:
    one = account_of(tmp_path / "a.json", str(recording), "--set", "max_num_seqs=1")
    assert one["metrics"]["ttft_s"]["p95"]["twin"] > 2 * one["metrics"]["ttft_s"]["p95"]["observed"]


def test_a_trace_runs_on_hardware_that_nobody_has_run(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = account_of(
        files / "out.json",
        str(files / "trace.csv"),
        "--engine",
        str(files / "engine.toml"),
        "--hardware",
        "h100-sxm",
        "--model",
        str(files / "model.json"),
    )
    assert found["requests"] == 20
    assert all(set(cell) == {"twin"} for cells in found["metrics"].values() for cell in cells.values())
    assert all(math.isfinite(cell["twin"]) for cells in found["metrics"].values() for cell in cells.values())
    assert "error" not in capsys.readouterr().out


def slow_profile(folder: Path, kind: str) -> None:
    """A profile in which one kind of operator takes a millisecond whatever its shape."""
    (folder / "dense.csv").write_text(
        "layer,tokens,time_us\n" + "".join(f"{kind},{n},1000.0\n" for n in (1, 64, 512)), encoding="utf-8"
    )
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\n", encoding="utf-8")
    (folder / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n", encoding="utf-8")


def test_measured_operators_cost_what_they_were_measured_to_and_exactly_so_if_asked(files: Path) -> None:
    (files / "engine.toml").write_text(ENGINE + "kv_blocks = 400\n", encoding="utf-8")
    how = [str(files / "trace.csv"), "--engine", str(files / "engine.toml")]
    how += ["--hardware", "h100-sxm", "--model", str(files / "model.json")]
    roofline = account_of(files / "a.json", *how)
    (files / "profile").mkdir()
    slow_profile(files / "profile", "gate_up_proj")
    measured = account_of(files / "b.json", *how, "--operators", str(files / "profile"))
    exact = account_of(files / "c.json", *how, "--operators", str(files / "profile"), "--exact")
    tpot = [found["metrics"]["tpot_s"]["p50"]["twin"] for found in (roofline, measured, exact)]
    assert tpot[1] - tpot[0] == pytest.approx(4 * 1e-3, rel=0.2)
    assert tpot[2] == pytest.approx(tpot[1], rel=0.1)
    assert exact["fallback"] != ""


def test_an_unknown_operator_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "engine.toml").write_text(ENGINE + "kv_blocks = 400\n", encoding="utf-8")
    (files / "profile").mkdir()
    slow_profile(files / "profile", "warp_drive")
    how = ["--hardware", "h100-sxm", "--model", str(files / "model.json"), "--operators", str(files / "profile")]
    said = refused(capsys, "simulate", str(files / "trace.csv"), "--engine", str(files / "engine.toml"), *how)
    assert "--operators" in said
    assert "warp_drive" in said


@pytest.mark.slow
def test_the_sample_of_a_real_ramp_is_met(tmp_path: Path) -> None:
    if not RAMP.exists():
        pytest.skip(f"no sample recording at {RAMP}")
    found = account_of(tmp_path / "out.json", str(RAMP))
    assert found["metrics"]["tpot_s"]["p95"]["twin"] == pytest.approx(
        found["metrics"]["tpot_s"]["p95"]["observed"], rel=0.1
    )
    assert found["preemptions"]["twin"] > 0


def test_speed_as_recorded_needs_the_recording_s_own_costs(
    recording: Path, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constant = account_of(tmp_path / "a.json", str(recording), "--speed", "constant")
    followed = account_of(tmp_path / "b.json", str(recording))
    assert (constant["speed"], followed["speed"]) == ("constant", "recorded")
    assert followed["metrics"] != constant["metrics"]
    capsys.readouterr()
    said = refused(capsys, "simulate", str(recording), "--costs", str(files / "costs.toml"), "--speed", "recorded")
    assert "--speed recorded" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "kv_blocks=0"], "kv_blocks"),
        (["--set", "kv_blocks=9"], "KV blocks but engine 'e0' has 8"),
        (["--set", "kv_block=9"], "did you mean kv_blocks?"),
        (["--set", "watermark_ratio=nan"], "watermark_ratio"),
        (["--hardware", "{negative}"], "memory_bandwidth_bytes_per_s"),
        (["--hardware", "h100-sxm"], "--model"),
        (["--hardware", "abacus"], "abacus"),
        (["--costs", "{absent}"], "absent"),
        (["--costs", "{costs}", "--hardware", "h100-sxm"], "two origins"),
        (["--model", "{model}"], "--hardware"),
        (["--operators", "{absent}"], "--hardware"),
        (["--exact"], "--exact needs --hardware"),
        (["--hardware", "h100-sxm", "--model", "{engine}"], "model"),
        (["--engine", "{zero}"], "kv_blocks: Expected `int` >= 1"),
        (["--deployment", "other"], "other"),
        (["--routing", "recorded", "--engine", "{pair}"], "engine 'e0', which is none of a, b"),
        (["--rows", "rows.txt"], ".csv or .jsonl"),
        (["--save-costs", "-"], "only --json goes to stdout"),
        (["--save-costs", "{model}", "--rows", "{model}"], "both name"),
        (["--set", "role=prefill"], "none has 'decode'"),
        (["--set", "max_num_seqs=100000000"], "max_num_seqs: Expected `int` <= 65536"),
    ],
)
def test_bad_input_is_one_line_naming_the_field_before_anything_is_written(
    recording: Path, files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    pair = "".join(f"[[engine]]\nengine = '{name}'\nkv_blocks = 90\n{ENGINE}" for name in "ab")
    texts = {
        "negative": 'base = "h100-sxm"\n[device]\nmemory_bandwidth_bytes_per_s = -1.0\n',
        "zero": ENGINE + "kv_blocks = 0\n",
        "pair": pair,
    }
    for name, text in texts.items():
        (files / f"{name}.toml").write_text(text, encoding="utf-8")
    places = {name: str(files / f"{name}.toml") for name in (*texts, "costs", "engine", "absent")}
    places["model"] = str(files / "model.json")
    before = sorted(files.rglob("*"))
    words = [word.format(**places) for word in arguments]
    out = ["--json", str(files / "out.json"), "--perfetto", str(files / "trace.json")]
    assert said in refused(capsys, "simulate", str(recording), *words, *out)
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", TRACE + "NaN,5,5\n", "row 22 field TIMESTAMP"),
        ("a.csv", TRACE.replace(",101,", ",NaN,"), "row 3 field ContextTokens: non_finite"),
        (
            "a.jsonl",
            '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": []}\n',
            "field timestamp: non",
        ),
        ("a.csv", TRACE.splitlines()[0] + "\n", "holds no requests to simulate"),
        ("a.csv", "", "empty"),
        ("a.txt", "hello\n", "no known format"),
    ],
)
def test_a_bad_row_stops_everything_by_file_row_and_field(
    files: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    (files / name).write_text(text, encoding="utf-8")
    (files / "engine.toml").write_text(ENGINE + "kv_blocks = 400\n", encoding="utf-8")
    how = ["--engine", str(files / "engine.toml"), "--costs", str(files / "costs.toml")]
    found = refused(capsys, "simulate", str(files / name), *how)
    assert str(files / name) in found
    assert said in found


def test_more_kv_than_fits_beside_the_model_is_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--engine", str(files / "engine.toml"), "--model", str(files / "model.json"), "--hardware"]
    for kv_blocks, hardware, said in (
        (400, "rtx-4090", ""),
        (9_000_000, "rtx-4090", "note: kv_blocks 9,000,000: about"),
        (400, "tiny.toml", "note: engine '0': the model needs"),
    ):
        (files / "engine.toml").write_text(ENGINE + f"kv_blocks = {kv_blocks}\n", encoding="utf-8")
        (files / "tiny.toml").write_text('base = "rtx-4090"\n[device]\nmemory_bytes = 1e9\n', encoding="utf-8")
        named = str(files / hardware) if hardware.endswith(".toml") else hardware
        assert main(["simulate", str(files / "trace.csv"), *how, named]) == 0
        out = capsys.readouterr().out
        assert said in out
        assert ("fit beside" in out or "the model needs" in out) == bool(said)


def test_bad_rows_may_be_left_out_and_are_counted(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "trace.csv").write_text(TRACE + "NaN,5,5\n", encoding="utf-8")
    (files / "engine.toml").write_text(ENGINE + "kv_blocks = 400\n", encoding="utf-8")
    how = ["--engine", str(files / "engine.toml"), "--costs", str(files / "costs.toml"), "--skip-refused"]
    assert main(["simulate", str(files / "trace.csv"), *how]) == 0
    assert "1 of 21 rows left out (1 bad_type)" in capsys.readouterr().out


def test_a_record_with_a_nan_time_is_refused_by_field(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = '{"event":"arrived","deployment":"d","request_id":"r","at_us":NaN,"isl_tokens":5}\n'
    (files / "nan.jsonl").write_text(line, encoding="utf-8")
    said = refused(capsys, "simulate", str(files / "nan.jsonl"), "--costs", str(files / "costs.toml"))
    assert "row 1 field at_us: non_finite" in said
