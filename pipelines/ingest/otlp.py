"""OTLP traces, JSON and protobuf, flattened to spans with the attributes that matter. Does not know engines.

Encoding is told by the first byte: `{` is JSON, anything else protobuf. Attributes outside `wanted` are dropped at
once; resource and scope attributes are kept whole, they come once per batch.

Laws: no bytes whatever make `flatten` raise anything but `SchemaError`; every span of a message is returned or refused
by its index (position in the message, resources and scopes in order); both encodings give equal spans.
References: opentelemetry-proto 1.x, trace/v1 and common/v1; OTLP/JSON: ids in hex, 64-bit integers as string or number.
"""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pipelines.errors import ConfigError
from schemas.codec import MAX_MESSAGE_BYTES, SchemaError, schema_error
from schemas.topics import OTLP_SPANS

Value = str | int | float | bool
Attributes = dict[str, Value]

NS_MAX = 2**63 - 1
_Nanoseconds = Annotated[int, Meta(ge=0, le=NS_MAX)]
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")


class Span(Struct, gc=False):
    """One span, flat. Times are nanoseconds since the epoch; ids are hex; `failed` is the span's error status."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: Attributes
    resource: Attributes
    scope: str


@dataclass(frozen=True, slots=True)
class Flattened:
    """A message: its spans, and per refused index why."""

    spans: tuple[Span, ...]
    refused: tuple[tuple[int, SchemaError], ...] = ()

    @property
    def units(self) -> int:
        """Spans in the message."""
        return len(self.spans) + len(self.refused)


class _AnyValue(Struct, frozen=True, gc=False):
    stringValue: str | None = None  # noqa: N815 - OTLP's spelling
    doubleValue: float | None = None  # noqa: N815
    intValue: int | None = None  # noqa: N815
    boolValue: bool | None = None  # noqa: N815


class KeyValue(Struct, frozen=True, gc=False):
    """One attribute as OTLP/JSON writes it."""

    key: str
    value: _AnyValue = _AnyValue()


class _Status(Struct, frozen=True, gc=False):
    code: int | str = 0


class _JsonSpan(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Fields in the order in which exporters write them, which reads faster."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str
    start_time_unix_nano: _Nanoseconds
    end_time_unix_nano: _Nanoseconds
    attributes: list[KeyValue] = []
    status: _Status = _Status()


class _Resource(Struct, frozen=True):
    attributes: list[KeyValue] = []


class _Scope(Struct, frozen=True):
    name: str = ""


class _ScopeSpans(Struct, frozen=True, rename="camel"):
    spans: list[_JsonSpan] = []
    scope: _Scope = _Scope()


class _ResourceSpans(Struct, frozen=True, rename="camel"):
    scope_spans: list[_ScopeSpans] = []
    resource: _Resource = _Resource()


class _Request(Struct, frozen=True, rename="camel"):
    resource_spans: list[_ResourceSpans]


class _RawScopeSpans(Struct, frozen=True, rename="camel"):
    spans: list[msgspec.Raw] = []
    scope: _Scope = _Scope()


class _RawResourceSpans(Struct, frozen=True, rename="camel"):
    scope_spans: list[_RawScopeSpans] = []
    resource: _Resource = _Resource()


class _RawRequest(Struct, frozen=True, rename="camel"):
    resource_spans: list[_RawResourceSpans]


# Lax decoding reads 64-bit integers from strings, as OTLP/JSON writes them; booleans stay refused where numbers belong.
_REQUEST = msgspec.json.Decoder(_Request, strict=False)
_RAW_REQUEST = msgspec.json.Decoder(_RawRequest, strict=False)
_SPAN = msgspec.json.Decoder(_JsonSpan, strict=False)
_DECODING_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def flatten(value: bytes, wanted: frozenset[str]) -> Flattened:
    """Spans of one export request, JSON or protobuf.

    Raises SchemaError with `reason` as `schemas.codec.decode` has it, or `not_protobuf`.
    Raises ConfigError if a protobuf message comes and the package that reads it is not installed.
    """
    if not value:
        raise SchemaError("empty", "no bytes", OTLP_SPANS.name)
    if len(value) > MAX_MESSAGE_BYTES:
        raise SchemaError("too_large", f"{len(value)} bytes, at most {MAX_MESSAGE_BYTES}", OTLP_SPANS.name)
    return _flatten_json(value, wanted) if is_json(value) else protobuf_reader().flatten(value, wanted)


@cache
def protobuf_reader() -> ModuleType:
    """The module that reads protobuf; imported on first use, as its package is optional.

    Raises ConfigError if the package is not installed.
    """
    try:
        return importlib.import_module("pipelines.ingest.otlp_protobuf")
    except ImportError as error:
        raise ConfigError(
            f"OTLP protobuf needs a package that is not here ({error}); install twincast[otlp]"
        ) from error


def is_json(value: bytes) -> bool:
    """True if the message starts like a JSON object; no OTLP protobuf message does."""
    return value[:1] == b"{" or value.lstrip()[:1] == b"{"


def _flatten_json(value: bytes, wanted: frozenset[str]) -> Flattened:
    try:
        request = _REQUEST.decode(value)
    except _DECODING_ERRORS as error:
        return _flatten_json_singly(value, wanted, error)
    spans: list[Span] = []
    for group in request.resource_spans:
        resource = plain_attributes(group.resource.attributes)
        for scope_group in group.scope_spans:
            scope = scope_group.scope.name
            spans += [_from_json(span, wanted, resource, scope) for span in scope_group.spans]
    return Flattened(tuple(spans))


def _flatten_json_singly(value: bytes, wanted: frozenset[str], whole: Exception) -> Flattened:
    """The message holds something wrong: read span by span, so that the good ones apply."""
    try:
        request = _RAW_REQUEST.decode(value)
    except _DECODING_ERRORS:
        raise schema_error(OTLP_SPANS.name, value, whole) from None
    spans: list[Span] = []
    refused: list[tuple[int, SchemaError]] = []
    for group in request.resource_spans:
        resource = plain_attributes(group.resource.attributes)
        for scope_group in group.scope_spans:
            for raw in scope_group.spans:
                try:
                    span = _from_json(_SPAN.decode(raw), wanted, resource, scope_group.scope.name)
                except _DECODING_ERRORS as error:
                    index = len(spans) + len(refused)
                    refused.append((index, _span_error(bytes(raw), error)))
                else:
                    spans.append(span)
    return Flattened(tuple(spans), tuple(refused))


def _span_error(raw: bytes, error: Exception) -> SchemaError:
    found = schema_error(OTLP_SPANS.name, raw, error)
    if found.reason == "out_of_range" and found.where.endswith("UnixNano"):
        return SchemaError("int_out_of_range", found.detail, found.topic, found.where)
    return found


def _from_json(span: _JsonSpan, wanted: frozenset[str], resource: Attributes, scope: str) -> Span:
    attributes: Attributes = {}
    for pair in span.attributes:
        key = pair.key
        if key in wanted:
            value = pair.value
            number = value.doubleValue
            if number is not None:
                attributes[key] = number
            elif value.intValue is not None:
                attributes[key] = value.intValue
            elif value.stringValue is not None:
                attributes[key] = value.stringValue
            elif value.boolValue is not None:
                attributes[key] = value.boolValue
    code = span.status.code
    return Span(
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        code != 0 and code in _ERROR_CODES,
        attributes,
        resource,
        scope,
    )


def plain_attributes(pairs: Iterable[KeyValue]) -> Attributes:
    """Scalar attributes of a JSON KeyValue list; arrays and maps are left out."""
    values: Attributes = {}
    for pair in pairs:
        value = pair.value
        for found in (value.stringValue, value.intValue, value.doubleValue, value.boolValue):
            if found is not None:
                values[pair.key] = found
                break
    return values
