"""Spans of vLLM and SGLang to request records. Holds no state: what belongs together is given together.

One vLLM `llm_request` span tells a whole request: frontend arrival, TTFT and E2E on the wall clock, queue, prefill
and decode durations on the engine's monotonic clock. The two clocks meet where both saw the same tokens: engine stamps
are placed as late as the frontend's own stamps allow, never by subtracting one clock from the other.
SGLang has a root span per request (attribute `rid`) and stage spans of its scheduler in the same trace.

Laws: a failed, aborted or empty answer gives no latency; engine stamps never precede arrival or follow the frontend's.
References: vLLM docs, OpenTelemetry; SGLang docs, production request tracing; OTel GenAI conventions, old and new.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pipelines.ingest.otlp import NS_MAX, Attributes, Span, Value
from pipelines.ingest.span_mapping import SpanMapping
from schemas.base import EARLIEST_US, LATEST_US, MAX_TOKENS
from schemas.codec import SchemaError
from schemas.requests import RequestAborted, RequestFinished, RequestRecord, RequestRejected
from schemas.topics import OTLP_SPANS

VLLM_REQUEST: Final = "llm_request"
SGLANG_SCOPE: Final = "sglang server"
MAX_NAME: Final = 512

ISL_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OSL_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
CACHED_KEYS = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cached_tokens",
    "gen_ai.usage.input_tokens.cached",
)
ID_KEYS = ("gen_ai.request.id", "rid", "gen_ai.response.id")
TTFT_KEYS = ("gen_ai.latency.time_to_first_token", "gen_ai.response.time_to_first_chunk")
E2E_KEYS = ("gen_ai.latency.e2e",)
QUEUE_KEYS = ("gen_ai.latency.time_in_queue",)
PREFILL_KEYS = ("gen_ai.latency.time_in_model_prefill",)
DECODE_KEYS = ("gen_ai.latency.time_in_model_decode",)
FINISH_KEYS = ("gen_ai.response.finish_reasons",)
STATUS_KEYS = ("http.response.status_code", "http.status_code")
OTHER_KEYS = ("error.type", *STATUS_KEYS)
_ALL_KEYS = (ISL_KEYS, OSL_KEYS, CACHED_KEYS, ID_KEYS, TTFT_KEYS, E2E_KEYS, QUEUE_KEYS, PREFILL_KEYS, DECODE_KEYS)
WANTED: Final = frozenset(key for keys in (*_ALL_KEYS, FINISH_KEYS, OTHER_KEYS) for key in keys)

_COMPLETION_ID = re.compile(r"cmpl-(.+)-(\d+)(?:-[0-9a-f]{8})?")
_CHAT_ID = re.compile(r"chatcmpl-(.+?)(?:-[0-9a-f]{8})?")
_NOT_FINISHED = ("abort", "error")
_STAGES = {"prefill_waiting": "queue", "prefill_forward": "prefill", "decode_forward": "decode"}
_REFUSED_STATUS = (429, 503)
_MAX_LATENCY_S = 7 * 24 * 3600.0


def is_request(span: Span) -> bool:
    """True for a span that tells a whole request."""
    return span.name == VLLM_REQUEST or ("rid" in span.attributes and "gen_ai.latency.e2e" in span.attributes)


def is_stage(span: Span) -> bool:
    """True for a scheduler stage of SGLang, which belongs to the request span of its trace."""
    return span.name in _STAGES and span.scope == SGLANG_SCOPE


def refused_by_gateway(span: Span) -> bool:
    """True for a gateway's span that ended in 429 or 503: the request never reached an engine."""
    return any(span.attributes.get(key) in _REFUSED_STATUS for key in STATUS_KEYS)


def rejected_record(span: Span, mapping: SpanMapping) -> RequestRejected:
    """A refusal from the gateway's span. Raises SchemaError if its times or names cannot be."""
    deployment, engine = _place(span, mapping)
    if span.end_ns < span.start_ns:
        raise _error("negative_duration", f"ends {span.start_ns - span.end_ns} ns before it starts", "endTimeUnixNano")
    status = next(span.attributes[key] for key in STATUS_KEYS if key in span.attributes)
    return RequestRejected(
        deployment=deployment,
        request_id=(span.trace_id or span.span_id or "unknown")[:MAX_NAME],
        at_us=_us(span.end_ns, "endTimeUnixNano"),
        engine=engine,
        arrived_us=_us(span.start_ns, "startTimeUnixNano"),
        http_status=int(status),
    )


def request_id(text: str) -> str:
    """The id the client gave, out of the one the server made of it.

    >>> request_id("cmpl-r000000-0"), request_id("chatcmpl-7f-0a1b2c3d"), request_id("cmpl-a-2"), request_id("x")
    ('r000000', '7f', 'a-2', 'x')
    """
    if match := _COMPLETION_ID.fullmatch(text):
        return match[1] if match[2] == "0" else f"{match[1]}-{match[2]}"
    if match := _CHAT_ID.fullmatch(text):
        return match[1]
    return text


def request_record(
    span: Span, mapping: SpanMapping, stages: Sequence[Span] = (), frontend: Span | None = None
) -> RequestRecord:
    """The end of a request from its request span, the stages of its trace and its gateway's span.

    Raises SchemaError (`missing_field`, `bad_type`, `out_of_range`, `timestamp_unit`, `negative_duration`) if it is
    not possible to say what the span means.
    """
    attributes = span.attributes
    deployment, engine = _place(span, mapping)
    name = next((attributes[key] for key in ID_KEYS if key in attributes), span.trace_id)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise _error("bad_type", f"request id {name!r}; expected 1 to {MAX_NAME} characters", ID_KEYS[0])
    if span.end_ns < span.start_ns:
        raise _error("negative_duration", f"ends {span.start_ns - span.end_ns} ns before it starts", "endTimeUnixNano")
    times = _times(span, stages)
    came = span if frontend is None else frontend
    arrived_us = _us(min(came.start_ns, span.start_ns), "startTimeUnixNano")
    first_token_us = None if times.first_token_ns is None else _us(times.first_token_ns, TTFT_KEYS[0])
    ended_us = max(_us(times.last_token_ns, "endTimeUnixNano"), first_token_us or 0)
    isl_tokens = _tokens(attributes, ISL_KEYS)
    osl_tokens = _tokens(attributes, OSL_KEYS) or 0
    reasons = str(attributes.get(FINISH_KEYS[0], ""))
    if osl_tokens == 0 or span.failed or any(word in reasons for word in _NOT_FINISHED):
        return RequestAborted(
            deployment=deployment,
            request_id=request_id(name),
            at_us=_us(span.end_ns, "endTimeUnixNano"),
            engine=engine,
            arrived_us=arrived_us,
            isl_tokens=isl_tokens,
            osl_tokens=osl_tokens,
            first_token_us=first_token_us if osl_tokens else None,
            reason=reasons or str(attributes.get("error.type", "")) or "no_output",
        )
    if isl_tokens is None:
        raise _error("missing_field", f"no prompt tokens; expected one of {', '.join(ISL_KEYS)}", ISL_KEYS[0])
    return RequestFinished(
        deployment=deployment,
        request_id=request_id(name),
        at_us=ended_us,
        engine=engine,
        arrived_us=arrived_us,
        isl_tokens=isl_tokens,
        osl_tokens=osl_tokens,
        first_token_us=first_token_us,
        engine_queued_us=times.engine_us(times.queued_ns),
        engine_scheduled_us=times.engine_us(times.scheduled_ns),
        engine_first_token_us=times.engine_us(times.engine_first_ns),
        engine_last_token_us=times.engine_us(times.engine_last_ns),
        cached_tokens=_tokens(attributes, CACHED_KEYS),
    )


def _place(span: Span, mapping: SpanMapping) -> tuple[str, str]:
    deployment, engine = mapping.place(span.attributes, span.resource, span.scope)
    if len(deployment) > MAX_NAME or len(engine) > MAX_NAME:
        raise _error("out_of_range", f"deployment or engine name over {MAX_NAME} characters", "resource")
    return deployment, engine


@dataclass(frozen=True, slots=True)
class _Times:
    """Nanoseconds since the epoch; None where the source does not tell."""

    last_token_ns: int
    first_token_ns: int | None = None
    queued_ns: int | None = None
    scheduled_ns: int | None = None
    engine_first_ns: int | None = None
    engine_last_ns: int | None = None

    def engine_us(self, stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns // 1000


def _times(span: Span, stages: Sequence[Span]) -> _Times:
    attributes = span.attributes
    e2e_ns = _duration_ns(attributes, E2E_KEYS)
    ttft_ns = _duration_ns(attributes, TTFT_KEYS)
    last_ns = span.end_ns if e2e_ns is None else span.start_ns + e2e_ns
    first_ns = None if ttft_ns is None or span.start_ns + ttft_ns > last_ns else span.start_ns + ttft_ns
    if staged := _staged(span, stages, first_ns, last_ns):
        return staged
    queue_ns, prefill_ns, decode_ns = (
        _duration_ns(attributes, keys) for keys in (QUEUE_KEYS, PREFILL_KEYS, DECODE_KEYS)
    )
    if span.name != VLLM_REQUEST or first_ns is None or queue_ns is None or prefill_ns is None or decode_ns is None:
        return _Times(last_ns, first_ns)
    # Both clocks saw the first and the last token, the frontend a little later: the tighter of the two places them.
    engine_first_ns = min(first_ns, last_ns - decode_ns)
    queued_ns = engine_first_ns - prefill_ns - queue_ns
    if queued_ns < span.start_ns:
        return _Times(last_ns, first_ns)
    return _Times(last_ns, first_ns, queued_ns, queued_ns + queue_ns, engine_first_ns, engine_first_ns + decode_ns)


def _staged(span: Span, stages: Sequence[Span], first_ns: int | None, last_ns: int) -> _Times | None:
    """Engine stamps from SGLang's stage spans; all processes of a host write them on one wall clock."""
    by_name: dict[str, Span] = {}
    for stage in sorted(stages, key=lambda found: (found.start_ns, found.span_id)):
        by_name.setdefault(_STAGES[stage.name], stage)
    queue, prefill = by_name.get("queue"), by_name.get("prefill")
    if queue is None or prefill is None:
        return None
    decode = by_name.get("decode")
    stamps = [queue.start_ns, prefill.start_ns, prefill.end_ns, prefill.end_ns if decode is None else decode.end_ns]
    if any(later < earlier for earlier, later in zip([span.start_ns, *stamps], stamps, strict=False)):
        return None
    return _Times(last_ns, first_ns, *stamps)


def _duration_ns(attributes: Attributes, keys: tuple[str, ...]) -> int | None:
    """A latency attribute, seconds; None if absent or impossible: a stamp of 0.0 makes it negative or endless."""
    for key in keys:
        value = attributes.get(key)
        if value is None:
            continue
        seconds = _number(value, key, "seconds")
        return round(seconds * 1e9) if 0.0 <= seconds <= _MAX_LATENCY_S else None
    return None


def _tokens(attributes: Attributes, keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = attributes.get(key)
        if value is None:
            continue
        count = _number(value, key, "a whole number of tokens")
        if not 0 <= count <= MAX_TOKENS:
            raise _error("out_of_range", f"{count}; expected 0 to {MAX_TOKENS} tokens", key)
        if count != int(count):
            raise _error("bad_type", f"{count}; expected a whole number of tokens", key)
        return int(count)
    return None


def _number(value: Value, key: str, expected: str) -> float:
    """A finite number of less than 64 bits; integers may come in any length."""
    if isinstance(value, bool | str):
        raise _error("bad_type", f"{str(value)[:40]!r}; expected {expected}", key)
    if isinstance(value, int) and abs(value) > NS_MAX:
        raise _error("out_of_range", f"{str(value)[:40]}; expected {expected}", key)
    if not math.isfinite(value):
        raise _error("non_finite", f"{value}; expected {expected}", key)
    return value


def _us(stamp_ns: int, where: str) -> int:
    stamp_us = stamp_ns // 1000
    if not EARLIEST_US <= stamp_us <= LATEST_US:
        raise _error("timestamp_unit", f"{stamp_ns}; expected nanoseconds since the epoch", where)
    return stamp_us


def _error(reason: str, detail: str, where: str) -> SchemaError:
    return SchemaError(reason, detail, OTLP_SPANS.name, where)
