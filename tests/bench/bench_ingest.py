"""How fast records come in, on one core: `python -m tests.bench.bench_ingest`.

Bytes to validated structs, OTLP bytes to flat spans and to requests, and messages of steps through a runtime into the
state. Each figure is the best of several rounds over messages made here, in CPU seconds of this process, so that a busy
neighbour matters less. Rates through a real broker stand in the worker's own benchmark.
"""

import base64
import json
import random
import time
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipelines.ingest.otlp import flatten
from pipelines.ingest.raw_stage import RawStage
from pipelines.ingest.span_mapping import SpanMapping
from pipelines.ingest.spans import WANTED
from pipelines.runtime import Incoming, Runtime
from schemas.changes import Tick
from schemas.codec import decode, encode
from schemas.requests import RequestFinished
from schemas.steps import Step, StepBatch, StepRow
from schemas.topics import OTLP_SPANS, REQUESTS, STEPS, TICKS
from twin.settings import CoreSettings

AT_US = 1_796_052_001_416_172
ROUNDS = 150
MANY = 1_000
SPANS = 512
STEPS_PER_MESSAGE = 50


def best_s(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """CPU seconds of the fastest round, after one to warm up."""
    work()
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def line(name: str, rate_per_s: float, bar_per_s: float, what: str) -> str:
    """One figure against its bar."""
    verdict = "" if rate_per_s >= bar_per_s else "  MISSED"
    return f"{name}: {rate_per_s:,.0f} {what} (bar: > {bar_per_s:,.0f}){verdict}"


def finished_records() -> list[bytes]:
    """Requests as a producer of ours writes them, about 362 bytes each."""
    draw = random.Random(1)
    records = []
    for place in range(MANY):
        at_us = AT_US + place * 100_000
        first_us = at_us - draw.randint(100_000, 900_000)
        records.append(
            encode(
                RequestFinished(
                    deployment="chat-large", request_id=f"r{place:06d}", at_us=at_us, engine="0",
                    arrived_us=first_us - 60_000, isl_tokens=draw.randint(10, 4000), osl_tokens=draw.randint(2, 900),
                    first_token_us=first_us, engine_queued_us=first_us - 59_000,
                    engine_scheduled_us=first_us - 50_000, engine_first_token_us=first_us - 1_000,
                    engine_last_token_us=at_us - 1_000, cached_tokens=0, preemptions=0,
                )
            )
        )  # fmt: skip
    return records


def spans_document() -> dict[str, Any]:
    """What vLLM's exporter sends: twelve attributes a span, one resource a batch."""
    draw = random.Random(2)
    spans = []
    for place in range(SPANS):
        ttft_s, decode_s = draw.uniform(0.02, 2.0), draw.uniform(0.1, 9.0)
        start_ns = AT_US * 1000 + place * 7_000_000
        attributes = {
            "gen_ai.latency.time_to_first_token": ttft_s, "gen_ai.latency.e2e": ttft_s + decode_s + 0.004,
            "gen_ai.latency.time_in_queue": ttft_s * 0.1, "gen_ai.usage.prompt_tokens": draw.randint(10, 4000),
            "gen_ai.usage.completion_tokens": draw.randint(2, 900),
            "gen_ai.latency.time_in_model_prefill": ttft_s * 0.8, "gen_ai.latency.time_in_model_decode": decode_s,
            "gen_ai.latency.time_in_model_inference": ttft_s + decode_s,
            "gen_ai.request.id": f"cmpl-r{place:06d}-0", "gen_ai.request.top_p": 1.0, "gen_ai.request.max_tokens": 900,
            "gen_ai.request.n": 1,
        }  # fmt: skip
        spans.append(
            {
                "traceId": f"{place:032x}", "spanId": f"{place + 1:016x}", "parentSpanId": f"{place + 2:016x}",
                "name": "llm_request", "kind": 2, "startTimeUnixNano": str(start_ns),
                "endTimeUnixNano": str(start_ns + round((ttft_s + decode_s + 0.004) * 1e9)),
                "attributes": [{"key": key, "value": any_value(value)} for key, value in attributes.items()],
                "status": {},
            }
        )  # fmt: skip
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm-8100"}}]}
    scope = {"scope": {"name": "vllm.tracing.otel"}, "spans": spans}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def any_value(value: object) -> dict[str, Any]:
    """OTLP/JSON's spelling of a scalar."""
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def as_protobuf(document: dict[str, Any]) -> bytes:
    """The same export in protobuf."""
    copy = json.loads(json.dumps(document))
    for span in copy["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return bytes(json_format.ParseDict(copy, ExportTraceServiceRequest()).SerializeToString())


def step_messages(many: int, steps: int, rows: int) -> list[bytes]:
    """Messages of an engine that decodes `rows` requests a step."""
    messages = []
    for message in range(many):
        batch = []
        for place in range(steps):
            number = message * steps + place
            batch.append(
                Step(
                    step=number, start_us=AT_US + number * 8_600, duration_us=8_500 + number % 7, decode_requests=rows,
                    decode_context_tokens=rows * 300 + number % 50, waiting=0, running=rows, kv_used_blocks=rows * 10,
                    rows=tuple(StepRow(f"r{row:06d}", "decode", 1, 300 + number % 50) for row in range(rows)),
                )
            )  # fmt: skip
        messages.append(encode(StepBatch(deployment="chat-large", engine="0", steps=tuple(batch))))
    return messages


def through_runtime(messages: list[bytes], steps: int) -> Callable[[], None]:
    """Feed all messages into a fresh runtime, and every 50 steps the time, so that steps are really applied.

    Costs are learned whenever a block of steps is full; no forecast falls due.
    """
    fed = [Incoming(STEPS.name, 0, offset, b"chat-large", value) for offset, value in enumerate(messages)]
    every = max(STEPS_PER_MESSAGE // steps, 1)
    for number, place in enumerate(range(len(messages), 0, -every)):
        at_us = decode(STEPS.name, messages[place - 1]).record.steps[-1].at_us
        tick = encode(Tick(deployment="chat-large", at_us=at_us))
        fed.insert(place, Incoming(TICKS.name, 0, len(messages) - number, b"chat-large", tick))

    def feed() -> None:
        runtime = Runtime(lambda _: CoreSettings(period_s=86_400.0), partitions=1)
        for message in fed:
            runtime.handle(message)
        if runtime.balance()["applied"] != len(messages) * steps + len(fed) - len(messages):
            raise RuntimeError(f"not everything was applied: {runtime.balance()}")

    return feed


def main() -> None:
    """Print one line per figure."""
    records = finished_records()
    size = sum(map(len, records)) // MANY
    name = REQUESTS.name
    seconds = best_s(lambda: [decode(name, record) for record in records])
    print(line("native_json", MANY / seconds, 1_000_000, f"records/s decoded and validated, {size} bytes each"))
    steps = step_messages(40, STEPS_PER_MESSAGE, rows=0)
    seconds = best_s(lambda: [decode(STEPS.name, message) for message in steps])
    print(line("native_json_batched", 40 * STEPS_PER_MESSAGE / seconds, 1_000_000, "step records/s, 50 a message"))
    document = spans_document()
    as_json = json.dumps(document, separators=(",", ":")).encode()
    raw = as_protobuf(document)
    wanted = WANTED | SpanMapping().keys
    seconds = best_s(lambda: flatten(as_json, wanted))
    print(line("otlp_json", SPANS / seconds, 250_000, f"spans/s flattened, {len(as_json) // SPANS} bytes each"))
    seconds = best_s(lambda: flatten(raw, wanted))
    print(line("otlp_protobuf", SPANS / seconds, 100_000, f"spans/s flattened, {len(raw) // SPANS} bytes each"))
    for kind, value in (("json", as_json), ("protobuf", raw)):
        seconds = best_s(lambda value=value: RawStage().handle(OTLP_SPANS.name, value))  # type: ignore[misc]
        print(f"otlp_{kind}_to_requests: {SPANS / seconds:,.0f} spans/s as finished requests (no bar)")
    for many, steps, what, bar in (
        (200, STEPS_PER_MESSAGE, "step records/s into the state, 50 a message", 150_000),
        (2_000, 1, "messages/s into the state, one step each", 10_000),
    ):
        messages = step_messages(many, steps, rows=0)
        seconds = best_s(through_runtime(messages, steps), rounds=9)
        print(line("runtime_batched" if steps > 1 else "runtime_single", many * steps / seconds, bar, what))


if __name__ == "__main__":
    main()
