"""Rows of every input format, made here, and imports of them for tests."""

import json
from pathlib import Path
from typing import Any

from pipelines.ingest.importing import ImportReport, import_files
from pipelines.ingest.recording import InputRecord, read_recording
from pipelines.ingest.rows import Source

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
