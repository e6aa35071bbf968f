"""Good records, mutated at random: nothing raises, hangs or vanishes, whatever door they knock at.

Mutations are drawn from a seed; the plain run tries a few hundred, the slow one ten thousand.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.raw_stage import RawStage
from pipelines.runtime import Incoming, Runtime
from schemas.codec import encode
from schemas.engines import EngineConfig
from schemas.requests import RequestAborted, RequestArrived, RequestFinished
from schemas.steps import EngineStats, Step, StepBatch, StepRow
from schemas.topics import DLQ, ENGINES, OTLP_METRICS, OTLP_SPANS, REQUESTS, STEPS
from twin.settings import CoreSettings

AT_US = 1_796_052_001_416_172
SETTINGS = CoreSettings(steps_expected=False, period_s=3600.0)
PLAIN, MANY = 300, 10_000
LONGEST_S = 0.1
NASTY = (
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1", b"true", b"null", b'""', b"[]", b"{}", b"99999999999999999999",
    b"1.5", b"1e19", b'"\\ud800"', b'"\xff"', b"0", b"-0.0", b"[[[[[[", b"\x00", b'"2024-01-01"', b"9" * 400,
)  # fmt: skip

FINISHED = RequestFinished(
    deployment="d", request_id="r1", at_us=AT_US, arrived_us=AT_US - 900_000, isl_tokens=30, osl_tokens=4,
    first_token_us=AT_US - 500_000, engine_queued_us=AT_US - 890_000, block_hashes=(1, 2),
)  # fmt: skip
STEPS_OF_ONE = tuple(
    Step(
        step=n, start_us=AT_US + n * 9_000, duration_us=8_000, decode_requests=1, rows=(StepRow("r1", "decode", 1, 31),)
    )
    for n in range(3)
)
NATIVE: tuple[tuple[str, bytes], ...] = (
    (REQUESTS.name, encode(FINISHED)),
    (REQUESTS.name, encode(RequestArrived(deployment="d", request_id="r2", at_us=AT_US, isl_tokens=5))),
    (REQUESTS.name, encode(RequestAborted(deployment="d", request_id="r3", at_us=AT_US, arrived_us=AT_US - 5))),
    (STEPS.name, encode(StepBatch(deployment="d", engine="0", steps=STEPS_OF_ONE))),
    (STEPS.name, encode(EngineStats(deployment="d", engine="0", at_us=AT_US, running=3, kv_used_ratio=0.5))),
    (
        ENGINES.name,
        encode(
            EngineConfig(
                deployment="d", engine="0", at_us=AT_US, block_size_tokens=16, kv_blocks=100, max_num_seqs=8,
                max_num_batched_tokens=256,
            )
        ),
    ),
)  # fmt: skip


def _attribute(key: str, value: dict[str, object]) -> dict[str, object]:
    return {"key": key, "value": value}


SPAN = {
    "traceId": "0" * 32, "spanId": "1" * 16, "name": "llm_request",
    "startTimeUnixNano": "1796052001000000000", "endTimeUnixNano": "1796052002000000000",
    "attributes": [
        _attribute("gen_ai.usage.prompt_tokens", {"intValue": "9"}),
        _attribute("gen_ai.usage.completion_tokens", {"intValue": "3"}),
        _attribute("gen_ai.latency.e2e", {"doubleValue": 0.9}),
        _attribute("gen_ai.request.id", {"stringValue": "cmpl-r1-0"}),
    ],
}  # fmt: skip
SPANS = json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "vllm"}, "spans": [SPAN, SPAN]}]}]}).encode()
POINT = {"timeUnixNano": "1796052001000000000", "asDouble": 3.0}
METRICS = json.dumps(
    {
        "resourceMetrics": [
            {"scopeMetrics": [{"metrics": [{"name": "vllm:num_requests_running", "gauge": {"dataPoints": [POINT]}}]}]}
        ]
    }
).encode()

FILES: dict[str, bytes] = {
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50,3,1\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Chat\n",
    "mooncake": b'{"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n' * 2,
    "ragpulse": b'{"timestamp": "82", "input_length": 31, "output_length": 19, "hash_ids": {}, "session_id": "a"}\n',
    "aibrix": b"prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time\n"
    b"21073.0,100.0,2.5,1.25,2,1,1747440159.25,1747440163.0\n",
    "llmservingsim": b'{"request_id":"b","input_toks":10,"output_toks":5,"arrival_time":1787267980.0,"queued_ts":5.0,'
    b'"scheduled_ts":5.5,"first_token_ts":5.7,"last_token_ts":6.0}\n',
    "dynamo_fpm": b'{"version":1,"worker_id":"w","counter_id":7,"wall_time":0.01,"observed_at_unix_ms":1796052001000,'
    b'"scheduled_requests":{"num_decode_requests":2,"sum_decode_kv_tokens":128},"queued_requests":{}}\n',
    "vllm_step_log": b"INFO 05-11 13:24:28 [scheduler.py:514] Timestamp: 100.25. Scheduler time: 8.2e-05 seconds. x\n"
    * 2,
    "metrics_pages": b'{"t":5.0,"port":8100,"lines":["vllm:num_requests_running{engine=\\"0\\"} 3.0"]}\n',
    "otlp_spans": SPANS + b"\n",
    "native": encode(FINISHED) + b"\n",
}
HEADERLESS = {name for name in FILES if name not in ("azure", "burstgpt", "aibrix")}


def mutate(value: bytes, draw: random.Random) -> bytes:
    """One to three random changes: bytes flipped, cut, doubled or put in, a value swapped for a nasty one."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(value) + 1)
        upto = min(len(value), at + draw.randint(0, 12))
        kind = draw.randrange(6)
        if kind == 0 and at < len(value):
            value = value[:at] + bytes([draw.randrange(256)]) + value[at + 1 :]
        elif kind == 1:
            value = value[:at] + value[upto:]
        elif kind == 2:
            value = value[:at] + value[at:upto] * 2 + value[upto:]
        elif kind == 3:
            value = value[:at] + draw.randbytes(draw.randint(1, 6)) + value[at:]
        elif kind == 4:
            value = value[:at]
        else:
            value = _swap_value(value, draw)
    return value


def _swap_value(value: bytes, draw: random.Random) -> bytes:
    colons = [place for place, byte in enumerate(value) if byte in b":,"]
    if not colons:
        return value
    at = draw.choice(colons) + 1
    upto = min((found for end in b",}]\n" if (found := value.find(bytes([end]), at)) >= 0), default=len(value))
    return value[:at] + draw.choice(NASTY) + value[upto:]


def native_door(cases: int) -> None:
    """Every mutated message ends in the books of a runtime, and good ones between them still come through."""
    runtime = Runtime(lambda _: SETTINGS, partitions=1)
    offsets: dict[str, int] = {}
    for seed in range(cases):
        draw = random.Random(seed)
        topic, good = draw.choice(NATIVE)
        value = mutate(good, draw)
        offset = offsets[topic] = offsets.get(topic, -1) + 1
        before = runtime.balance()
        started = time.process_time()
        todo = runtime.handle(Incoming(topic, 0, offset, b"d", value))
        assert time.process_time() - started < LONGEST_S, (seed, value)
        after = runtime.balance()
        assert after["in"] > before["in"], (seed, value)
        assert sum(many for name, many in after.items() if name != "in") == after["in"]
        letters = [write.value for write in todo.writes if write.topic == DLQ.name]
        assert all(letter in (value, b"") or letter[:1] == b"{" for letter in letters), (seed, value)
        if after["dead_letter"] > before["dead_letter"]:
            assert value in letters, (seed, value)


def raw_door(cases: int) -> None:
    """Every span of a mutated message is used, held, ignored or refused; a message that cannot be read is refused."""
    for seed in range(cases):
        draw = random.Random(seed)
        topic, good = draw.choice(((OTLP_SPANS.name, SPANS), (OTLP_METRICS.name, METRICS)))
        value = mutate(good, draw)
        stage = RawStage()
        started = time.process_time()
        ingested = stage.handle(topic, value)
        assert time.process_time() - started < LONGEST_S, (seed, value)
        if topic == OTLP_SPANS.name and all(index is not None for index, _ in ingested.refused):
            counts = stage.counts
            taken = counts.get("used", 0) + counts.get("orphan", 0) + counts.get("ignored", 0) + stage.held_spans
            assert taken + len(ingested.refused) == ingested.units, (seed, value)
        for event in ingested.events:
            encode(event.record)


def file_door(cases: int, folder: Path) -> None:
    """Every row of a mutated file is accepted or refused, or the file is refused in one line."""
    for seed in range(cases):
        draw = random.Random(seed)
        name = draw.choice(sorted(FILES))
        value = mutate(FILES[name], draw)
        path = folder / f"{name}.txt"
        path.write_bytes(value)
        started = time.process_time()
        try:
            (report,) = import_files(name, [path], check=True).files
        except ConfigError:  # one line, as every error of its kind
            continue
        assert time.process_time() - started < 5 * LONGEST_S, (seed, value)
        rows = value.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        rows = [row for row in rows if row.strip()]
        if name != "otlp_spans":
            assert report.rows_in == max(0, len(rows) - (name not in HEADERLESS)), (seed, value)


DOORS: dict[str, Callable[[int, Path], None]] = {
    "native": lambda cases, _: native_door(cases),
    "raw": lambda cases, _: raw_door(cases),
    "file": file_door,
}


@pytest.mark.parametrize("door", DOORS)
def test_mutated_records_neither_raise_nor_hang_nor_vanish(door: str, tmp_path: Path) -> None:
    DOORS[door](PLAIN, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_ten_thousand_mutated_records_neither_raise_nor_hang_nor_vanish(door: str, tmp_path: Path) -> None:
    DOORS[door](MANY, tmp_path)
