"""Public request traces: what a row becomes. Refusals that all formats share stand in `test_ingest_formats`."""

import json
from pathlib import Path

import pytest
from made_inputs import AZURE, BURST_3, MOONCAKE, QWEN, RAG, imported, only

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.recording import read_recording
from pipelines.ingest.rows import RELATIVE_T0_US, Source
from schemas.requests import RequestAborted, RequestArrived, RequestFinished


def test_azure_has_lengths_and_no_latency(tmp_path: Path) -> None:
    records = imported(tmp_path, "a.csv", AZURE)
    ends = [record for record in records if isinstance(record, RequestFinished)]
    assert [(end.isl_tokens, end.osl_tokens, end.timed) for end in ends] == [(374, 44, False), (396, 109, False)]
    assert ends[0].arrived_us == 1_700_158_546_680_590
    assert all(end.first_token_us is None for end in ends)


@pytest.mark.parametrize(
    "stamp", ["2024-05-10 02:00:00.009930+02:00", "2024-05-10T00:00:00.00993Z", "2024-05-10 00:00:00.0099300"]
)
def test_one_instant_however_it_is_written(tmp_path: Path, stamp: str) -> None:
    records = imported(tmp_path, "a.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamp},1,1\n")
    assert only(records, RequestArrived).at_us == 1_715_299_200_009_930


def test_a_fraction_that_vanishes_is_a_whole_second(tmp_path: Path) -> None:
    records = imported(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,1,1\n")
    assert only(records, RequestArrived).at_us == 1_715_299_200_000_000


def test_naive_times_take_the_declared_zone(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00,1,1\n"
    records = imported(tmp_path, "a.csv", text, Source(zone="+02:00"))
    assert only(records, RequestArrived).at_us == 1_715_299_200_000_000
    with pytest.raises(ConfigError, match="Mars"):
        Source(zone="Mars/Olympus")


def test_burstgpt_takes_elapsed_time_and_calls_no_answer_a_failure(tmp_path: Path) -> None:
    records = imported(tmp_path, "b.csv", BURST_3)
    finished = only(records, RequestFinished)
    assert finished.at_us - finished.arrived_us == 43_000_000
    assert (finished.deployment, finished.traffic_class) == ("GPT-4", "Conversation log")
    assert only(records, RequestAborted).osl_tokens == 0


def test_prompt_blocks_keep_their_names_and_size(tmp_path: Path) -> None:
    mooncake = only(imported(tmp_path, "m.jsonl", MOONCAKE), RequestArrived)
    assert (mooncake.block_hashes, mooncake.hash_block_tokens) == ((0, 1, 2), 512)
    assert mooncake.at_us == RELATIVE_T0_US + 3_000_000
    other = tmp_path / "qwen"
    other.mkdir()
    qwen = only(imported(other, "q.jsonl", QWEN), RequestArrived)
    assert (qwen.hash_block_tokens, qwen.at_us) == (16, RELATIVE_T0_US + 500_000)


def test_coarse_ticks_are_marked_and_gaps_not_judged(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000 * (k // 5) + k % 2, "input_length": 9, "output_length": 1, "hash_ids": []}
        for k in range(200)
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = import_files(None, [path], out=tmp_path / "out")
    assert report.statistics[0].tick_us == 3_000_000
    assert report.statistics[0].gap_cv is None
    assert read_recording(tmp_path / "out").tick_us == 3_000_000
    assert any("tick every 3 s" in note for note in report.notes)


def test_seconds_may_be_text_where_the_source_writes_them_so(tmp_path: Path) -> None:
    arrived = only(imported(tmp_path, "r.jsonl", RAG), RequestArrived)
    assert (arrived.at_us, arrived.session_id) == (RELATIVE_T0_US + 82_000_000, "abc")


def servegen(tmp_path: Path, rows: str) -> Path:
    path = tmp_path / "chunk-1-trace.csv"
    path.write_text(rows)
    lengths = {"0": {"input_tokens": "{50: 0.5, 60: 0.5}", "output_tokens": "{2: 1.0}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(lengths, indent=1))
    return path


@pytest.mark.parametrize(("law", "cv"), [("Gamma", 2.0), ("Weibull", 2.0), ("Gamma", 0.5), ("", 1.0)])
def test_drawn_requests_have_the_rate_and_burstiness_of_their_window(tmp_path: Path, law: str, cv: float) -> None:
    path = servegen(tmp_path, f"0,10.0,{cv},{law},1,1\n600,10.0,{cv},{law},1,1\n1200,5,1,Gamma,1,1\n")
    report = import_files(None, [path], check=True, source=Source(limit_s=1200.0))
    (statistics,) = report.statistics
    assert report.files[0].refused == {"not_selected": 1}
    assert statistics.rate_per_s == pytest.approx(10.0, rel=0.1)
    assert statistics.gap_cv == pytest.approx(cv, rel=0.12)
    assert statistics.isl_tokens is not None
    assert statistics.isl_tokens.mean == pytest.approx(55.0, abs=0.5)


def test_the_same_seed_draws_the_same_requests_and_another_seed_others(tmp_path: Path) -> None:
    path = servegen(tmp_path, "0,2.0,1,Gamma,1,1\n600,0,,,,\n")
    one, again, other = (import_files(None, [path], check=True, source=Source(seed=seed)) for seed in (0, 0, 1))
    assert one.statistics == again.statistics != other.statistics
    assert one.files[0].rows_out == 2


@pytest.mark.parametrize(
    "law",
    [
        "__import__('os').system('true')", "{99999999999999999999: 1.0}", "{-5: 1.0}", "{18: 0.5, 18: 0.5", "18: 1.0",
        "{18: nan}", "{1: 1e999}", "{1: 0.0}", "{1: 0.5; 2: 0.5}",
    ],
)  # fmt: skip
def test_laws_are_read_whole_or_refused_and_never_evaluated(tmp_path: Path, law: str) -> None:
    path = servegen(tmp_path, "0,20.0,1,Gamma,1,1\n")
    evil = {"0": {"input_tokens": law, "output_tokens": "{2: 1.0}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(evil))
    with pytest.raises(ConfigError, match="input_tokens"):
        import_files(None, [path], check=True)
