"""OTLP at the door: both encodings, both generations of names, and what real pipelines met."""

import base64
import json
import random
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipelines.errors import ConfigError
from pipelines.ingest.join import SpanJoiner
from pipelines.ingest.otlp import MAX_KNOWN_NAMES, STRANGERS_TO_LEARN, Span, _json_reader, flatten
from pipelines.ingest.otlp_metrics import engine_stats_of
from pipelines.ingest.span_mapping import Rule, SpanMapping, read_mapping
from pipelines.ingest.spans import WANTED, request_record
from schemas.codec import SchemaError
from schemas.requests import RequestAborted, RequestFinished, RequestRejected

START_NS = 1_796_052_001_433_707_008
MAPPING = SpanMapping((Rule((("service.name", "vllm-8100"),), "tiny", "0"),))
ATTRIBUTES: dict[str, Any] = {
    "gen_ai.latency.time_to_first_token": 0.0543,
    "gen_ai.latency.e2e": 0.2226,
    "gen_ai.latency.time_in_queue": 0.001,
    "gen_ai.latency.time_in_model_prefill": 0.0515,
    "gen_ai.latency.time_in_model_decode": 0.1684,
    "gen_ai.usage.prompt_tokens": 228,
    "gen_ai.usage.completion_tokens": 18,
    "gen_ai.request.id": "cmpl-r000000-0",
    "gen_ai.request.max_tokens": 18,
}


def any_value(value: Any, numbers_as_text: bool = True) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value) if numbers_as_text else value}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def json_span(attributes: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    given = ATTRIBUTES if attributes is None else attributes
    span = {
        "traceId": "0" * 31 + "1", "spanId": "0" * 15 + "1", "name": "llm_request", "kind": 2,
        "startTimeUnixNano": str(START_NS), "endTimeUnixNano": str(START_NS + 222_600_000),
        "attributes": [{"key": key, "value": any_value(value)} for key, value in given.items()],
        "status": {},
    }  # fmt: skip
    return span | changes


def message(*spans: dict[str, Any], scope: str = "vllm.tracing.otel", service: str = "vllm-8100") -> dict[str, Any]:
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": scope}, "spans": list(spans)}]}]}


def encoded(*spans: dict[str, Any]) -> bytes:
    return json.dumps(message(*spans)).encode()


def protobuf(document: dict[str, Any]) -> bytes:
    document = json.loads(json.dumps(document))
    for group in document["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return bytes(json_format.ParseDict(document, ExportTraceServiceRequest()).SerializeToString())


def one_span(value: bytes) -> Span:
    (span,) = flatten(value, WANTED).spans
    return span


def record_of(attributes: dict[str, Any], **changes: Any) -> Any:
    return request_record(one_span(encoded(json_span(attributes, **changes))), MAPPING)


def test_both_encodings_give_equal_spans() -> None:
    document = message(json_span(), json_span({**ATTRIBUTES, "gen_ai.usage.completion_tokens": 0}))
    assert flatten(json.dumps(document).encode(), WANTED) == flatten(protobuf(document), WANTED)


def test_names_met_before_change_nothing_and_are_bounded() -> None:
    """Names that are wanted, strange, long, empty and, in the end, more than are kept."""
    wanted = frozenset({"first", "last", "x" * 300})
    for turn in range(12):
        strange = [f"{turn}/{place}" for place in range(28)] + ["", "STRANGER", "y" * 300]
        given = {"first": 1, **dict.fromkeys(strange, "no"), "x" * 300: 2.5, "last": True}
        spans = [*[json_span(given)] * 80, json_span({"last": "text"})]
        for _ in range(2):
            found = flatten(json.dumps(message(*spans)).encode(), wanted)
            told = [span.attributes for span in found.spans]
            assert told == [{"first": 1, "x" * 300: 2.5, "last": True}] * 80 + [{"last": "text"}]
        broken = json.dumps(message(*spans, json_span({"first": 3}, traceId=7))).encode()
        assert [span.attributes for span in flatten(broken, wanted).spans] == [s.attributes for s in found.spans]
    reader = _json_reader(wanted)
    assert len(reader._known) == MAX_KNOWN_NAMES
    assert len(reader._strangers) <= STRANGERS_TO_LEARN


def test_a_vllm_span_is_a_finished_request() -> None:
    record = record_of(ATTRIBUTES)
    assert isinstance(record, RequestFinished)
    assert (record.deployment, record.engine, record.request_id) == ("tiny", "0", "r000000")
    assert (record.isl_tokens, record.osl_tokens) == (228, 18)
    assert record.arrived_us == START_NS // 1000
    assert record.first_token_us == (START_NS + 54_300_000) // 1000


def test_engine_durations_are_kept_and_placed_inside_what_the_frontend_saw() -> None:
    record = record_of(ATTRIBUTES)
    stamps = (record.arrived_us, record.engine_queued_us, record.engine_scheduled_us, record.engine_first_token_us)
    assert list(stamps) == sorted(stamps)
    assert record.engine_scheduled_us - record.engine_queued_us == pytest.approx(1_000, abs=1)
    assert record.engine_first_token_us - record.engine_scheduled_us == pytest.approx(51_500, abs=1)
    assert record.engine_last_token_us - record.engine_first_token_us == pytest.approx(168_400, abs=1)
    assert record.engine_last_token_us <= record.at_us
    assert record.engine_first_token_us <= record.first_token_us


def test_durations_that_do_not_fit_between_the_frontend_stamps_give_no_engine_stamps() -> None:
    record = record_of(ATTRIBUTES | {"gen_ai.latency.time_in_model_prefill": 9.0})
    assert record.engine_queued_us is None
    assert record.first_token_us is not None


def test_current_attribute_names_mean_the_same_as_deprecated_ones() -> None:
    renamed = {
        "gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens",
        "gen_ai.usage.completion_tokens": "gen_ai.usage.output_tokens",
    }
    current = {renamed.get(key, key): value for key, value in ATTRIBUTES.items()}
    assert record_of(current) == record_of(ATTRIBUTES)


def test_the_requested_maximum_is_never_read() -> None:
    assert record_of(ATTRIBUTES | {"gen_ai.request.max_tokens": 4096}) == record_of(ATTRIBUTES)


def test_integers_as_text_and_as_numbers_give_identical_records() -> None:
    as_numbers = json_span(attributes={})
    as_numbers["attributes"] = [{"key": key, "value": any_value(value, False)} for key, value in ATTRIBUTES.items()]
    as_numbers["startTimeUnixNano"] = int(as_numbers["startTimeUnixNano"])
    assert one_span(encoded(as_numbers)) == one_span(encoded(json_span()))


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"", "empty"),
        (b"{", "truncated"),
        (b'{"resourceSpans": 5}', "bad_type"),
        (b"\xff\xfe\x00", "not_protobuf"),
        (b"[1, 2]", "not_protobuf"),
        (b"\x00\x00\x00\x00\x07" + encoded(json_span()), "not_protobuf"),
        (encoded(json_span())[:-30], "truncated"),
        (b'{"resourceSpans":[' * 3000, "not_json"),
    ],
)
def test_unreadable_messages_are_refused_with_a_reason(broken: bytes, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        flatten(broken, WANTED)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"startTimeUnixNano": "99999999999999999999"}, "int_out_of_range"),
        ({"endTimeUnixNano": True}, "bad_type"),
        ({"name": 5}, "bad_type"),
        ({"status": []}, "bad_type"),
    ],
)
def test_good_spans_of_a_partly_bad_message_apply(change: dict[str, Any], reason: str) -> None:
    good = json_span()
    found = flatten(encoded(good, json_span(**change), good), WANTED)
    assert [index for index, _ in found.refused] == [1]
    assert found.refused[0][1].reason == reason
    assert found.spans == (one_span(encoded(good)),) * 2
    assert found.units == 3


def test_invalid_utf8_is_named() -> None:
    found = flatten(encoded(json_span()).replace(b"cmpl-r", b"cmpl-\xff"), WANTED)
    assert [(index, error.reason) for index, error in found.refused] == [(0, "invalid_utf8")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gen_ai.latency.time_to_first_token": float("nan")}, "non_finite"),
        ({"gen_ai.usage.completion_tokens": True}, "bad_type"),
        ({"gen_ai.usage.completion_tokens": "many"}, "bad_type"),
        ({"gen_ai.usage.prompt_tokens": 10**12}, "out_of_range"),
        ({"gen_ai.usage.prompt_tokens": -1}, "out_of_range"),
        ({"gen_ai.request.id": 7}, "bad_type"),
    ],
)
def test_impossible_attributes_are_refused(change: dict[str, Any], reason: str) -> None:
    span = one_span(encoded(json_span()))
    span.attributes = span.attributes | change
    with pytest.raises(SchemaError) as caught:
        request_record(span, MAPPING)
    assert caught.value.reason == reason


def test_an_end_before_the_start_is_refused_and_never_zero() -> None:
    with pytest.raises(SchemaError) as caught:
        record_of(ATTRIBUTES, endTimeUnixNano=str(START_NS - 1))
    assert caught.value.reason == "negative_duration"


def test_seconds_where_nanoseconds_belong_are_refused() -> None:
    with pytest.raises(SchemaError) as caught:
        record_of(ATTRIBUTES, startTimeUnixNano="1796052001", endTimeUnixNano="1796052002")
    assert caught.value.reason == "timestamp_unit"


def test_a_stamp_of_zero_is_missing_and_the_request_aborted() -> None:
    aborted = {
        "gen_ai.latency.time_in_queue": 0.2,
        "gen_ai.latency.time_in_model_prefill": 0.0 - 812345.4,
        "gen_ai.latency.time_in_model_decode": 812346.0,
        "gen_ai.usage.completion_tokens": 0,
    }
    record = record_of(ATTRIBUTES | aborted)
    assert isinstance(record, RequestAborted)
    assert record.first_token_us is None
    assert record.arrived_us == START_NS // 1000


def test_an_answer_without_tokens_gives_no_latency() -> None:
    record = record_of(
        ATTRIBUTES | {"gen_ai.usage.completion_tokens": 0, "gen_ai.latency.time_to_first_token": 60.0},
        endTimeUnixNano=str(START_NS + 60_000_000_000),
    )
    assert isinstance(record, RequestAborted)
    assert record.first_token_us is None
    assert record.osl_tokens == 0
    assert record.at_us - record.arrived_us == 60_000_000


def test_a_failed_span_is_aborted_whatever_it_counts() -> None:
    assert isinstance(record_of(ATTRIBUTES, status={"code": "STATUS_CODE_ERROR"}), RequestAborted)
    assert isinstance(record_of(ATTRIBUTES, status={"code": 2}), RequestAborted)


def sglang_spans() -> list[Span]:
    """One request of SGLang: its root span and the scheduler's stages, in one trace."""
    root_attributes = {
        "rid": "q1",
        "gen_ai.latency.e2e": 0.3,
        "gen_ai.latency.time_to_first_token": 0.1,
        "gen_ai.usage.prompt_tokens": 50,
        "gen_ai.usage.completion_tokens": 9,
        "gen_ai.usage.cached_tokens": 16,
    }
    spans = [json_span(root_attributes, name="Req q1", endTimeUnixNano=str(START_NS + 300_000_000))]
    stages = (("prefill_waiting", 5, 20), ("prefill_forward", 20, 90), ("decode_forward", 90, 290))
    for place, (name, start_ms, end_ms) in enumerate(stages):
        times = {
            "startTimeUnixNano": str(START_NS + start_ms * 1_000_000),
            "endTimeUnixNano": str(START_NS + end_ms * 1_000_000),
        }
        spans.append(json_span({}, name=name, spanId=f"{place + 2:016x}", **times))
    return list(flatten(json.dumps(message(*spans, scope="sglang server", service="sgl")).encode(), WANTED).spans)


def later_span(seconds: float) -> Span:
    """A span of another trace that only moves event time."""
    stamp = str(START_NS + round(seconds * 1e9))
    return one_span(
        encoded(json_span({}, name="other", traceId="f" * 32, startTimeUnixNano=stamp, endTimeUnixNano=stamp))
    )


def test_sglang_stages_join_their_request_in_any_order() -> None:
    spans = sglang_spans()
    seen = set()
    for seed in range(24):
        random.Random(seed).shuffle(spans)
        joiner = SpanJoiner(SpanMapping())
        records = joiner.add(spans[:2]).records + joiner.add(spans[2:]).records + joiner.add([later_span(10)]).records
        (record,) = records
        assert isinstance(record, RequestFinished)
        seen.add(record)
        assert (record.request_id, record.isl_tokens, record.osl_tokens, record.cached_tokens) == ("q1", 50, 9, 16)
        assert record.engine_scheduled_us == (START_NS + 20_000_000) // 1000
        assert record.engine_last_token_us == (START_NS + 290_000_000) // 1000
        assert joiner.counts == {"used": 4, "ignored": 1}
    assert len(seen) == 1


def test_a_stage_thirty_seconds_early_waits_and_one_without_request_is_an_orphan() -> None:
    *_, root_last = sorted(sglang_spans(), key=lambda span: span.name == "Req q1")
    stages = [span for span in sglang_spans() if span.name != "Req q1"]
    joiner = SpanJoiner(SpanMapping())
    assert joiner.add(stages).records == []
    assert joiner.add([later_span(30)]).records == []
    assert joiner.held_spans == 3
    (record,) = joiner.add([root_last]).records + joiner.add([later_span(36)]).records + joiner.flush().records
    assert record.engine_scheduled_us is not None
    lonely = SpanJoiner(SpanMapping())
    lonely.add(stages)
    assert lonely.add([later_span(59), later_span(62)]).records == []
    assert (lonely.counts["orphan"], lonely.held_spans) == (3, 0)


def test_memory_of_the_join_is_bounded_and_every_span_is_accounted_for() -> None:
    joiner = SpanJoiner(SpanMapping(), max_traces=10)
    stage = sglang_spans()[1]
    for place in range(100):
        stage = one_span(
            json.dumps(
                message(json_span({}, name="prefill_waiting", traceId=f"{place:032x}"), scope="sglang server")
            ).encode()
        )
        joiner.add([stage])
        assert joiner.held_spans <= 10
    joiner.flush()
    assert joiner.counts == {"orphan": 100}


def test_one_span_from_the_future_settles_nothing() -> None:
    joiner = SpanJoiner(SpanMapping())
    joiner.add(sglang_spans()[:1])
    assert joiner.add([later_span(86_400)]).records == []
    assert joiner.held_spans == 1


def test_a_gateway_tells_arrival_and_refusals() -> None:
    mapping = SpanMapping(frontend_span="POST", timeout_s=5.0)
    early = str(START_NS - 3_000_000)
    gateway = one_span(encoded(json_span({"http.response.status_code": 200}, name="POST", startTimeUnixNano=early)))
    for order in ([gateway, one_span(encoded(json_span()))], [one_span(encoded(json_span())), gateway]):
        (record,) = SpanJoiner(mapping).add([*order, later_span(6)]).records
        assert isinstance(record, RequestFinished)
        assert record.arrived_us == (START_NS - 3_000_000) // 1000
    refused = one_span(encoded(json_span({"http.response.status_code": 503}, name="POST")))
    (rejected,) = SpanJoiner(mapping, orphan_s=5.0).add([refused, later_span(6)]).records
    assert isinstance(rejected, RequestRejected)
    assert rejected.http_status == 503


def metrics_message(time_ns: int, value: dict[str, Any]) -> dict[str, Any]:
    labels = [{"key": "engine", "value": {"stringValue": "0"}}, {"key": "model_name", "value": {"stringValue": "tiny"}}]
    point = {"attributes": labels, "timeUnixNano": str(time_ns), **value}
    metrics = [
        {"name": "vllm:num_requests_running", "gauge": {"dataPoints": [point]}},
        {"name": "vllm:prompt_tokens_total", "sum": {"dataPoints": [point | {"asDouble": 700.0}], "isMonotonic": True}},
        {"name": "vllm:e2e_request_latency_seconds", "histogram": {"dataPoints": []}},
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "vllm-8100"}}]}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}


def test_metrics_in_both_encodings_give_the_engine_counts() -> None:
    document = metrics_message(START_NS, {"asDouble": 3.0})
    (from_json,) = engine_stats_of(json.dumps(document).encode(), MAPPING)
    raw = json_format.ParseDict(document, ExportMetricsServiceRequest()).SerializeToString()
    assert engine_stats_of(raw, MAPPING) == (from_json,)
    assert (from_json.deployment, from_json.engine, from_json.running) == ("tiny", "0", 3)
    assert from_json.prompt_tokens_total == 700
    assert from_json.at_us == START_NS // 1000


def test_metrics_in_seconds_or_broken_are_refused() -> None:
    for value, reason in (
        (json.dumps(metrics_message(1_796_052_001, {"asInt": "3"})).encode(), "timestamp_unit"),
        (b"", "empty"),
        (b"\xff\xff", "not_protobuf"),
        (b'{"resourceMetrics": [5]}', "bad_type"),
    ):
        with pytest.raises(SchemaError) as caught:
            engine_stats_of(value, MAPPING)
        assert caught.value.reason == reason


def test_a_mapping_file_is_read_and_its_errors_are_named(tmp_path: Any) -> None:
    path = tmp_path / "spans.toml"
    path.write_text('[[engine]]\nmatch = { "service.name" = "vllm-8100" }\ndeployment = "tiny"\nengine = "0"\n')
    assert read_mapping(path) == MAPPING
    for text in ("x = ", "[[engine]]\nfoo = 1\n", "[frontend]\ntimeout_s = -1\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"spans\.toml"):
            read_mapping(path)
