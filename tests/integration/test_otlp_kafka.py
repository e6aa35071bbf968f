"""Spans posted over HTTP to a worker on a real Apache Kafka: they end as requests of the service, and as forecasts."""

import base64
import gzip
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from synthetic import service
from worker_process import Stage

from pipelines.broker.docker import free_port
from schemas.codec import decode
from schemas.requests import RequestFinished
from schemas.topics import DLQ, FORECASTS, OTLP_SPANS, REQUESTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
RECORDED = (
    Path(os.environ.get("TWINCAST_RECORDINGS", Path(__file__).parents[3] / "shared" / "recordings")) / "A_steady_s101"
)
SECONDS = 60.0
NS_PER_S = 10**9
SPANS_A_POST = 128
"""A steady service's exporter sends what ended in the last five seconds, fifty at most here."""


def recorded() -> list[dict[str, Any]]:
    """The spans of the first minute that a real vLLM ended, as OTLP/JSON, with times as they were."""
    with gzip.open(RECORDED / "otel.jsonl.gz", "rt") as lines:
        rows = sorted(map(json.loads, lines), key=lambda row: int(row["end_ns"]))
    requests = [row for row in rows if row["name"] == "llm_request"]
    until_ns = requests[0]["end_ns"] + round(SECONDS * NS_PER_S)
    return [
        span_of(
            row["name"], row["scope"], row["trace_id"], row["span_id"], row["start_ns"], row["end_ns"], row["attrs"]
        )
        for row in rows
        if row["end_ns"] < until_ns
    ]


def made() -> list[dict[str, Any]]:
    """Spans as vLLM would have sent them for the synthetic service."""
    spans = []
    for number, record in enumerate(service(SECONDS)):
        if isinstance(record, RequestFinished) and record.first_token_us is not None:
            attributes = {
                "gen_ai.latency.time_to_first_token": (record.first_token_us - record.arrived_us) / 1e6,
                "gen_ai.latency.e2e": (record.at_us - record.arrived_us) / 1e6,
                "gen_ai.usage.prompt_tokens": record.isl_tokens,
                "gen_ai.usage.completion_tokens": record.osl_tokens,
                "gen_ai.request.id": f"cmpl-{record.request_id}-0",
            }
            times_ns = record.arrived_us * 1000, record.at_us * 1000
            ids = f"{number + 1:032x}", f"{number + 1:016x}"
            spans.append(span_of("llm_request", "vllm.tracing.otel", *ids, *times_ns, attributes))
    return sorted(spans, key=lambda span: int(span["endTimeUnixNano"]))


def span_of(
    name: str, scope: str, trace_id: str, span_id: str, start_ns: int, end_ns: int, attributes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "scope": scope, "name": name, "traceId": trace_id, "spanId": span_id, "kind": 2,
        "startTimeUnixNano": str(start_ns), "endTimeUnixNano": str(end_ns),
        "attributes": [{"key": key, "value": any_value(value)} for key, value in attributes.items()],
    }  # fmt: skip


def any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool | str):
        return {"boolValue": value} if isinstance(value, bool) else {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def exports(spans: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Export requests in order, moved so that the last span ends now."""
    shift_ns = time.time_ns() - int(spans[-1]["endTimeUnixNano"])
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm-8100"}}]}
    for begin in range(0, len(spans), SPANS_A_POST):
        groups: dict[str, list[dict[str, Any]]] = {}
        for span in spans[begin : begin + SPANS_A_POST]:
            times = {name: str(int(span[name]) + shift_ns) for name in ("startTimeUnixNano", "endTimeUnixNano")}
            rest = {key: value for key, value in span.items() if key != "scope"}
            groups.setdefault(span["scope"], []).append(rest | times)
        scopes = [{"scope": {"name": scope}, "spans": inside} for scope, inside in groups.items()]
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": scopes}]}


def as_protobuf(export: dict[str, Any]) -> bytes:
    copy = json.loads(json.dumps(export))
    for scope in copy["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            for key in ("traceId", "spanId"):
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return bytes(json_format.ParseDict(copy, ExportTraceServiceRequest()).SerializeToString())


def post(port: int, body: bytes, kind: str, timeout_s: float = 30.0) -> None:
    """As an exporter does: try again until it is taken."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/traces", body, {"Content-Type": kind})
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                assert answer.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def finished(stage: Stage) -> dict[str, tuple[int, int]]:
    """Lengths by request, as they stand in the log; one that was written twice was written the same."""
    found: dict[str, tuple[int, int]] = {}
    for line in stage.records(REQUESTS.name):
        record = decode(REQUESTS.name, line.value or b"").record
        lengths = (record.isl_tokens, record.osl_tokens)
        assert found.setdefault(record.request_id, lengths) == lengths
    return found


def lengths_of(spans: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    found = {}
    for span in spans:
        told = {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}
        if span["name"] == "llm_request":
            name = told["gen_ai.request.id"].removeprefix("cmpl-").removesuffix("-0")
            found[name] = (int(told["gen_ai.usage.prompt_tokens"]), int(told["gen_ai.usage.completion_tokens"]))
    return found


@pytest.mark.parametrize("source", [made, recorded])
def test_spans_posted_over_http_end_as_requests_and_as_forecasts(
    source: Any, kafka_bootstrap: str, tmp_path: Path
) -> None:
    if source is recorded and not RECORDED.exists():
        pytest.skip(f"no recording at {RECORDED}")
    spans = source()
    port = free_port()
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        worker = stage.worker(0, "--otlp", str(port))
        worker.wait_ready()
        for number, export in enumerate(exports(spans)):
            body, kind = (
                (as_protobuf(export), "application/x-protobuf")
                if number % 2
                else (json.dumps(export).encode(), "application/json")
            )
            post(port, body, kind)
        expected = lengths_of(spans)
        worker.wait_for(lambda report: report["ingested"].get("used") == len(expected), "spans used")
        worker.wait_for(lambda report: report["balance"]["in"] >= len(expected), "requests in the core")
        worker.wait_for(lambda report: report["written"].get(FORECASTS.name, 0) >= 8 and report["idle"], "forecasts")
        assert worker.stop() == 0
        assert finished(stage) == expected
        ingested = worker.report["ingested"]
        assert ingested.get("ignored", 0) == len(spans) - len(expected)
        assert (ingested.get("orphan", 0), ingested.get("refused", 0), ingested["held"]) == (0, 0, 0)
        assert worker.report["balance"]["applied"] + worker.report["balance"]["held"] >= len(expected)
        assert worker.report["balance"]["late"] == 0
        assert stage.records(DLQ.name) == []
        forecasts = [decode(FORECASTS.name, line.value or b"").record for line in stage.records(FORECASTS.name)]
        assert {forecast.deployment for forecast in forecasts} == {"vllm-8100"}
        assert {forecast.input_level for forecast in forecasts} == {"S0"}


def test_killed_between_exports_it_loses_no_request_and_counts_none_twice(kafka_bootstrap: str, tmp_path: Path) -> None:
    spans = made()
    port = free_port()
    bodies = [json.dumps(export).encode() for export in exports(spans)]
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        first = stage.worker(0, "--otlp", str(port))
        first.wait_ready()
        post(port, bodies[0], "application/json")
        first.kill()
        second = stage.worker(0, "--otlp", str(port))
        for body in (*bodies[1:], bodies[-1]):  # the last one twice, as an exporter whose answer got lost would
            post(port, body, "application/json")
        expected = lengths_of(spans)
        second.wait_for(
            lambda report: (
                report["idle"]
                and report["balance"]["applied"] + report["balance"]["held"] - ticks(report) == len(expected)
                and report["balance"]["duplicate"] > 0
            ),
            "every request once",
        )
        assert second.stop() == 0
        assert finished(stage) == expected
        assert len(stage.records(OTLP_SPANS.name)) == len(bodies) + 1


def ticks(report: dict[str, Any]) -> int:
    """Records that only tell the time."""
    return int(report["written"].get("twincast.ticks.v1", 0))
