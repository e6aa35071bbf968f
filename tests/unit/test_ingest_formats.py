"""Every input format on rows made here: what a row becomes, what is refused and why, and that rows never vanish."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.ingest.importing import ImportReport, import_files
from pipelines.ingest.recording import InputRecord, read_recording
from pipelines.ingest.registry import FORMATS
from pipelines.ingest.report_text import report_lines
from pipelines.ingest.rows import RELATIVE_T0_US, Source, read_head
from schemas.engines import EngineConfig
from schemas.requests import RequestAborted, RequestArrived, RequestFinished
from schemas.steps import EngineStats, StepBatch

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109"
)
BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
)
BURST_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "10.0,s1,43,GPT-4,906,446,1352,Conversation log\n20.0,s2,2,GPT-4,906,0,906,API log\n"
)
MOONCAKE = '{"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
QWEN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 30, "output_length": 4, '
    '"type": "text", "turn": 1, "hash_ids": [3, 4]}\n'
)
RAG = (
    '{"timestamp": "82", "input_length": 3112, "output_length": 192, '
    '"hash_ids": {"sys_prompt": [1]}, "session_id": "abc"}\n'
)
AIBRIX = (
    "prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time\n"
    "21073.0,100.0,2.5,1.25,2,1,1747440159.25,1747440163.0\n"
)
LLMPERF = json.dumps(
    [
        {"error_code": None, "error_msg": "", "ttft_s": 0.3, "end_to_end_latency_s": 0.9, "number_input_tokens": 550,
         "number_output_tokens": 150},
        {"error_code": -100, "error_msg": "few", "ttft_s": 0.6, "end_to_end_latency_s": 5.0, "number_input_tokens": 550,
         "number_output_tokens": 102},
    ],
    indent=1,
)  # fmt: skip
AIPERF = json.dumps(
    {
        "metadata": {"x_request_id": "x1", "request_start_ns": 1_796_052_001_000_000_000, "was_cancelled": False},
        "metrics": {
            "time_to_first_token": {"value": 120.0, "unit": "ms"},
            "request_latency": {"value": 1.2, "unit": "s"},
            "input_sequence_length": {"value": 1024, "unit": "tokens"},
            "output_sequence_length": {"value": 128, "unit": "tokens"},
        },
        "error": None,
    }
)
SERVING = "".join(
    json.dumps(
        {"request_id": f"b{i}", "input_toks": 10, "output_toks": 5, "arrival_time": 1787267980.0 + i,
         "queued_ts": 500.0 + i + lag, "scheduled_ts": 500.5 + i,
         "first_token_ts": 500.7 + i, "last_token_ts": 501.0 + i}
    ) + "\n"
    for i, lag in ((0, 0.0), (1, 0.2))
)  # fmt: skip
REPLAY = json.dumps(
    {
        "0": {"event_id": 0, "out_len": 409, "in_len": 476, "sampled_in_num": 472, "first_chunk_time": 0.041,
              "total_chunk_time": 0.5, "record_time": 1000.5},
    }
)  # fmt: skip
STEP_LOG = (
    "INFO 05-11 13:24:27 [core.py:1] ready\n"
    "INFO 05-11 13:24:28 [scheduler.py:514] Timestamp: 100.25. Scheduler time: 8.2e-05 seconds. Unique adapters: 0.\n"
    "INFO 05-11 13:24:28 [scheduler.py:514] Timestamp: 100.5. Scheduler time: 0.0001 seconds. Unique adapters: 0.\n"
    "INFO 05-11 13:24:30 [loggers.py:111] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    "1.0 tokens/s, Running: 3 reqs, Waiting: 2 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%\n"
)
FPM = (
    '{"version": 1, "worker_id": "w", "dp_rank": 0, "counter_id": 7, "wall_time": 0.01, '
    '"observed_at_unix_ms": 1796052001000, "scheduled_requests": {"num_prefill_requests": 1, "sum_prefill_tokens": 96, '
    '"sum_prefill_kv_tokens": 32, "num_decode_requests": 2, "sum_decode_kv_tokens": 128}, '
    '"queued_requests": {"num_prefill_requests": 4}}\n'
    '{"version": 1, "worker_id": "w", "counter_id": 8, "wall_time": 0.0, "scheduled_requests": {}}\n'
)
PAGE = (
    "# HELP vllm:num_requests_running Number of requests\n# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
    'vllm:request_success_total{engine="0",finished_reason="stop"} 5\n'
    'vllm:request_success_total{engine="0",finished_reason="abort"} 2\nnot a metric\n'
)
SGLANG_PAGE = (
    '# HELP sglang:num_running_reqs The number\nsglang:num_running_reqs{model_name="m",tp_rank="0"} 4\n'
    'sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1\nsglang:token_usage{model_name="m"} 0.25\n'
)
SPAN = json.dumps(
    {
        "name": "llm_request", "trace_id": "0" * 32, "span_id": "1" * 16, "start_ns": 1_796_052_001_000_000_000,
        "end_ns": 1_796_052_002_000_000_000, "scope": "vllm.tracing.otel", "resource": {"service.name": "vllm-1"},
        "attrs": {"gen_ai.usage.prompt_tokens": 9,
                  "gen_ai.usage.completion_tokens": 3, "gen_ai.request.id": "cmpl-r1-0"},
    }
)  # fmt: skip

SAMPLES: dict[str, tuple[str, str]] = {
    "azure": ("a.csv", AZURE),
    "burstgpt": ("b.csv", BURST_1),
    "mooncake": ("m.jsonl", MOONCAKE),
    "qwen_bailian": ("q.jsonl", QWEN),
    "ragpulse": ("r.jsonl", RAG),
    "aibrix": ("x.csv", AIBRIX),
    "llmperf": ("l.json", LLMPERF),
    "aiperf": ("profile_export.jsonl", AIPERF),
    "llmservingsim": ("requests.jsonl", SERVING),
    "burstgpt_replay": ("detail_log.json", REPLAY),
    "vllm_step_log": ("server_out.log", STEP_LOG),
    "dynamo_fpm": ("fpm.jsonl", FPM),
    "metrics_text": ("page.txt", PAGE),
    "metrics_pages": ("prom.jsonl", json.dumps({"t": 5.0, "port": 8100, "lines": PAGE.splitlines()})),
    "otlp_spans": ("otel.jsonl", SPAN),
    "vllm_log": (
        "vllm_log.csv",
        "timestamp,prompt_throughput,generation_throughput,num_running,num_swapped,num_pending,gpu_kvcache_usage\n"
        "100.5,0,0,8,0,2,0.64\n",
    ),
    "vllm_timeseries": ("t.csv", "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n1.0,0,0,5,2,13.2\n"),
    "native": (
        "n.jsonl",
        '{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052001000000,"isl_tokens":5}\n',
    ),
}


def checked(tmp_path: Path, name: str, text: str, source: Source | None = None) -> ImportReport:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return import_files(None, [path], check=True, source=source)


def imported(tmp_path: Path, name: str, text: str, source: Source | None = None) -> list[InputRecord]:
    path = tmp_path / name
    path.write_bytes(text.encode())
    import_files(None, [path], out=tmp_path / "out", source=source)
    return [event.record for event in read_recording(tmp_path / "out")]


def only(records: list[InputRecord], kind: type[Any]) -> Any:
    (found,) = (record for record in records if isinstance(record, kind))
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_told_by_its_beginning_and_by_no_other(tmp_path: Path, name: str) -> None:
    file, text = SAMPLES[name]
    path = tmp_path / file
    path.write_bytes(text.encode())
    assert [known.name for known in FORMATS.values() if known.matches(read_head(path))] == [name]


@pytest.mark.parametrize("name", SAMPLES)
def test_an_import_reads_back_what_was_accepted(tmp_path: Path, name: str) -> None:
    file, text = SAMPLES[name]
    (tmp_path / file).write_bytes(text.encode())
    report = import_files(None, [tmp_path / file], out=tmp_path / "out")
    assert report.out is not None
    counts = read_recording(report.out).counts
    told = report.files[0].records
    assert {kind: many for kind, many in counts.items() if kind not in ("step", "steps")} == {
        kind: many for kind, many in told.items() if kind != "steps"
    }


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["azure", "mooncake", "aibrix"])
def test_line_ends_marks_and_packing_change_nothing(tmp_path: Path, name: str, ending: str, packed: bool) -> None:
    file, text = SAMPLES[name]
    plain = tmp_path / "plain"
    other = tmp_path / "other"
    plain.mkdir()
    other.mkdir()
    (plain / file).write_bytes(text.encode())
    data = b"\xef\xbb\xbf" + ending.join(text.splitlines()).encode()
    (other / file).write_bytes(gzip.compress(data) if packed else data)
    one, two = (import_files(None, [folder / file], out=folder / "out") for folder in (plain, other))
    assert one.files[0].rows_in == two.files[0].rows_in
    assert read_recording(plain / "out").events == read_recording(other / "out").events


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


def test_a_row_whose_times_contradict_is_refused(tmp_path: Path) -> None:
    report = checked(tmp_path, "x.csv", AIBRIX.replace("1747440163.0", "1747440190.0"))
    assert report.files[0].refused == {"contradiction": 1}
    assert report.files[0].examples[0].field == "finish_time"


def test_failures_give_no_latency_however_fine_their_numbers_look(tmp_path: Path) -> None:
    report = checked(tmp_path, "l.json", LLMPERF)
    (statistics,) = report.statistics
    assert (statistics.failures, statistics.ttft_s.count if statistics.ttft_s else 0) == (1, 1)
    assert statistics.rate_per_s is None


def test_aiperf_units_cancellation_and_warm_up(tmp_path: Path) -> None:
    finished = only(imported(tmp_path, "profile_export.jsonl", AIPERF), RequestFinished)
    assert finished.at_us - finished.arrived_us == 1_200_000
    assert finished.first_token_us - finished.arrived_us == 120_000
    row = json.loads(AIPERF)
    row["metadata"]["was_cancelled"] = True
    warm = json.loads(AIPERF)
    warm["metadata"]["benchmark_phase"] = "warmup"
    unit = json.loads(AIPERF)
    unit["metadata"]["x_request_id"] = "x2"
    unit["metrics"]["request_latency"]["unit"] = "fortnights"
    text = "\n".join(map(json.dumps, (row, warm, unit)))
    (file,) = checked(tmp_path, "p.jsonl", text).files
    assert file.records == {"aborted": 1, "arrived": 1}
    assert file.refused == {"unknown_unit": 1, "warmup": 1}


def test_two_clocks_are_aligned_by_all_rows_and_the_wait_survives(tmp_path: Path) -> None:
    records = imported(tmp_path, "requests.jsonl", SERVING)
    ends = [record for record in records if isinstance(record, RequestFinished)]
    waits = [end.engine_queued_us - end.arrived_us for end in ends if end.engine_queued_us]
    assert waits == [0, 200_000]


def test_characters_are_not_taken_for_tokens(tmp_path: Path) -> None:
    records = imported(tmp_path, "detail_log.json", REPLAY)
    (arrived,) = records
    assert isinstance(arrived, RequestArrived)
    assert (arrived.isl_tokens, arrived.at_us) == (472, RELATIVE_T0_US + 1_000_000_000)


def test_step_lines_give_times_and_statistics_give_counts(tmp_path: Path) -> None:
    report = checked(tmp_path, "server_out.log", STEP_LOG)
    assert (report.files[0].rows_in, report.files[0].refused) == (4, {"not_a_record": 1})
    records = imported(tmp_path, "server_out.log", STEP_LOG)
    steps = [step for record in records if isinstance(record, StepBatch) for step in record.steps]
    assert [step.duration_us for step in steps] == [250_000, 100]
    stats = only(records, EngineStats)
    assert (stats.running, stats.waiting, stats.kv_used_ratio) == (3, 2, 0.125)
    assert abs(steps[0].start_us - (stats.at_us - 2_000_000)) < 1_000_000


def test_forward_pass_metrics_are_steps_and_heartbeats_are_not(tmp_path: Path) -> None:
    report = checked(tmp_path, "fpm.jsonl", FPM)
    assert report.files[0].refused == {"heartbeat": 1}
    (step,) = only(imported(tmp_path, "fpm.jsonl", FPM), StepBatch).steps
    assert (step.prefill_tokens, step.prefill_context_tokens, step.decode_context_tokens) == (96, 32, 128)
    assert (step.step, step.waiting, step.duration_us, step.at_us) == (7, 4, 10_000, 1_796_052_001_000_000)


def test_metrics_pages_of_both_engines_give_counts(tmp_path: Path) -> None:
    stats = only(imported(tmp_path, "page.txt", PAGE), EngineStats)
    assert (stats.running, stats.finished_requests_total) == (3, 5)
    other = tmp_path / "sgl"
    other.mkdir()
    stats = only(imported(other, "page.txt", SGLANG_PAGE), EngineStats)
    assert (stats.running, stats.waiting, stats.kv_used_ratio) == (4, 1, 0.25)


def test_a_clock_that_counts_from_boot_is_placed_at_the_start(tmp_path: Path) -> None:
    stats = only(imported(tmp_path, *SAMPLES["vllm_log"]), EngineStats)
    assert stats.at_us == RELATIVE_T0_US + 100_500_000


def test_arrays_become_counts_row_by_row(tmp_path: Path) -> None:
    np.save(tmp_path / "real_time.npy", np.array([0.0, 2.0]))
    np.save(tmp_path / "real_num_running.npy", np.array([1, 3]))
    np.save(tmp_path / "real_gpu_cache_usage_perc.npy", np.array([0.5, 7.0]))
    report = import_files(None, [tmp_path / "real_time.npy"], out=tmp_path / "out")
    assert report.files[0].rows_out == 2
    one, two = (event.record for event in read_recording(tmp_path / "out"))
    assert isinstance(one, EngineStats)
    assert isinstance(two, EngineStats)
    assert (one.kv_used_ratio, two.running, two.kv_used_ratio) == (0.5, 3, None)


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "time.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="no array of numbers"):
        import_files(None, [tmp_path / "time.npy"], check=True)


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


def test_laws_are_read_and_never_evaluated(tmp_path: Path) -> None:
    path = servegen(tmp_path, "0,20.0,1,Gamma,1,1\n")
    evil = {"0": {"input_tokens": "__import__('os').system('true')", "output_tokens": "{2: 1.0}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(evil))
    with pytest.raises(ConfigError, match="input_tokens"):
        import_files(None, [path], check=True)


def test_settings_of_a_run_become_an_engine(tmp_path: Path) -> None:
    meta = {
        "model": "llama", "vllm_version": "0.19.0", "started_at": "2026-08-20T23:19:39.992496Z",
        "engine_kwargs": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "tensor_parallel_size": 1},
        "kv_cache": {"num_gpu_blocks": 2588, "block_size": 16, "enable_prefix_caching": True},
    }  # fmt: skip
    engine = only(imported(tmp_path, "meta.json", json.dumps(meta, indent=1)), EngineConfig)
    assert (engine.kv_blocks, engine.block_size_tokens, engine.max_num_seqs) == (2588, 16, 256)
    del meta["kv_cache"]
    (tmp_path / "bad.json").write_text(json.dumps(meta))
    assert import_files("vllm_meta", [tmp_path / "bad.json"], check=True).files[0].refused == {"missing_field": 1}


@pytest.mark.parametrize(
    ("file", "text", "reason", "field"),
    [
        ("a.csv", AZURE.replace(",374,", ",-1,"), "out_of_range", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",many,"), "bad_type", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",NaN,"), "non_finite", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",,"), "missing_field", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",37.5,"), "bad_type", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,44", ",374"), "columns", ""),
        ("a.csv", AZURE.replace("18:15:46", "18:75:46"), "bad_type", "TIMESTAMP"),
        ("m.jsonl", MOONCAKE.replace("1030", "true"), "bad_type", "input_length"),
        ("m.jsonl", MOONCAKE.replace("1030", '"1030"'), "bad_type", "input_length"),
        ("m.jsonl", MOONCAKE.replace("3000", "99999999999999999999"), "int_out_of_range", "timestamp"),
        ("m.jsonl", MOONCAKE.replace("[0, 1, 2]", "[0, true]"), "bad_type", "hash_ids"),
        ("m.jsonl", MOONCAKE + "{oops\n", "not_json", ""),
        ("m.jsonl", MOONCAKE + '{"timestamp": NaN}\n', "non_finite", "timestamp"),
        ("m.jsonl", MOONCAKE + '{"timestamp": 1}\n', "missing_field", "input_length"),
        ("m.jsonl", MOONCAKE + "5\n", "bad_type", ""),
        ("r.jsonl", RAG.replace('"82"', '"soon"'), "bad_type", "timestamp"),
        ("x.csv", AIBRIX.replace("2.5,1.25", "-2.5,1.25"), "negative_duration", "ttft"),
        ("x.csv", AIBRIX.replace("1747440159.25", "1747440159250"), "timestamp_unit", "launch_time"),
        ("requests.jsonl", SERVING.replace("500.7", "400.7"), "negative_duration", "first_token_ts"),
        ("fpm.jsonl", FPM.replace('"version": 1', '"version": 9'), "schema_version", "version"),
        ("otel.jsonl", SPAN.replace('"llm_request"', '"Load model"'), "no_request", "name"),
        ("n.jsonl", SAMPLES["native"][1].replace("1796052001000000", "1796052001"), "timestamp_unit", "$.at_us"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_by_name_and_the_others_stay(
    tmp_path: Path, file: str, text: str, reason: str, field: str
) -> None:
    report = checked(tmp_path, file, text)
    (one,) = report.files
    assert reason in one.refused
    example = next(example for example in one.examples if example.reason == reason)
    assert example.field == field
    assert example.row >= 1
    header = 1 if file.endswith(".csv") else 0
    assert one.rows_in == len([line for line in text.splitlines() if line.strip()]) - header


def test_invalid_utf8_is_a_row_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(AZURE.encode() + b"\r\n2023-11-16 18:15:51.0,\xff\xfe,9\r\n2023-11-16 18:15:52.0,7,9\r\n")
    report = import_files(None, [path], check=True)
    assert report.files[0].refused == {"invalid_utf8": 1}
    assert report.files[0].rows_out == 3


def test_a_request_told_twice_counts_once_and_told_in_two_ways_not_at_all(tmp_path: Path) -> None:
    line = AIPERF + "\n"
    other = AIPERF.replace('"value": 128', '"value": 129') + "\n"
    fine = AIPERF.replace('"x1"', '"x2"') + "\n"
    assert checked(tmp_path, "a.jsonl", line + line + fine).files[0].refused == {"duplicate": 1}
    conflict = checked(tmp_path, "b.jsonl", line + other + line + fine).files[0]
    assert conflict.refused == {"id_conflict": 3}
    assert conflict.records == {"arrived": 1, "finished": 1}


def test_time_running_backwards_is_told_with_its_row(tmp_path: Path) -> None:
    rows = "".join(MOONCAKE.replace("3000", str(t)) for t in (1000, 5000, 2000, 6000))
    (file,) = checked(tmp_path, "m.jsonl", rows).files
    assert file.rows_out == 4
    assert any("first row 3" in oddity for oddity in file.oddities)


def test_a_file_of_no_known_format_is_refused_row_by_row(tmp_path: Path) -> None:
    (file,) = checked(tmp_path, "x.txt", "one\ntwo\n").files
    assert (file.format, file.refused) == ("", {"unknown_format": 2})
    (empty,) = checked(tmp_path, "empty.txt", "").files
    assert empty.refused == {"empty": 1}


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [("nope", ["a.csv"], "unknown"), ("azure", ["missing.csv"], "missing"), ("mooncake", [], "no files"),
     ("azure", ["b.csv"], "no column"), ("recording", ["a.csv"], "folder")],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_clear_line(tmp_path: Path, name: str, files: list[str], words: str) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "b.csv").write_text(BURST_1)
    with pytest.raises(ConfigError, match=words):
        import_files(name, [tmp_path / file for file in files], check=True)


def test_checking_writes_nothing_and_writing_needs_a_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    import_files(None, [tmp_path / "a.csv"], out=tmp_path / "out", check=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no place"):
        import_files(None, [tmp_path / "a.csv"])


def test_a_recording_is_a_format_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    import_files(None, [tmp_path / "a.csv"], out=tmp_path / "one")
    report = import_files(None, [tmp_path / "one"], out=tmp_path / "two")
    assert report.files[0].format == "recording"
    assert read_recording(tmp_path / "two").events == read_recording(tmp_path / "one").events


def test_a_report_reads_as_text_and_hides_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE + "\n2023-11-16 18:15:51.0,-4,9\n")
    text = "\n".join(report_lines(import_files(None, [tmp_path / "a.csv"], out=tmp_path / "out")))
    assert "3 rows in, 2 out (2 arrived, 2 finished)" in text
    assert "a.csv row 4 field ContextTokens: out_of_range" in text
    assert "azure: 2 requests in 4.3 s" in text
    assert f"written: {tmp_path / 'out'}" in text
