"""OTLP traces, JSON and protobuf, flattened to spans with the attributes that matter. Does not know engines.

Encoding is told by the first byte: `{` is JSON, anything else protobuf. Attributes outside `wanted` are dropped at
once; resource and scope attributes are kept whole, they come once per batch.

Laws: no bytes whatever make `flatten` raise anything but `SchemaError`; every span of a message is returned or refused
by its index (position in the message, resources and scopes in order); both encodings give equal spans.
References: opentelemetry-proto 1.x, trace/v1 and common/v1; OTLP/JSON: ids in hex, 64-bit integers as string or number.
"""

import importlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from types import ModuleType
from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from pipelines.errors import ConfigError
from schemas.codec import MAX_MESSAGE_BYTES, SchemaError, schema_error
from schemas.topics import OTLP_SPANS

Value = str | int | float | bool
Attributes = dict[str, Value]

NS_MAX = 2**63 - 1
STRANGER = ""
"""Stands for every name of an attribute that is not known."""
MAX_KNOWN_NAMES = 256
MAX_NAME = 256
STRANGERS_TO_LEARN = 2_000
"""To learn names costs as much as this many strangers do."""
MET_OFTEN = 20
MAX_READERS = 8
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


class _Key(Enum):
    """Base of the names of attributes that a `_JsonReader` knows; `told` of a member is the name if it is wanted.

    A name that is known costs neither a new text nor its hash, which is a tenth of the work.
    """

    told: str | None
    strangers: list[str]

    @classmethod
    def _missing_(cls, value: object) -> Any:
        if len(cls.strangers) < STRANGERS_TO_LEARN and len(str(value)) <= MAX_NAME:
            cls.strangers.append(str(value))
        return cls(STRANGER)


K = TypeVar("K")


class _SpanAttribute(Struct, Generic[K], frozen=True, gc=False):
    key: K
    value: _AnyValue = _AnyValue()


class _Status(Struct, frozen=True, gc=False):
    code: int | str = 0


class _JsonSpan(Struct, Generic[K], frozen=True, gc=False, kw_only=True, rename="camel"):
    """Fields in the order in which exporters write them, which reads faster."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str
    start_time_unix_nano: _Nanoseconds
    end_time_unix_nano: _Nanoseconds
    attributes: list[_SpanAttribute[K]] = []
    status: _Status = _Status()


class _Resource(Struct, frozen=True):
    attributes: list[KeyValue] = []


class _Scope(Struct, frozen=True):
    name: str = ""


class _ScopeSpans(Struct, Generic[K], frozen=True, rename="camel"):
    spans: list[_JsonSpan[K]] = []
    scope: _Scope = _Scope()


class _ResourceSpans(Struct, Generic[K], frozen=True, rename="camel"):
    scope_spans: list[_ScopeSpans[K]] = []
    resource: _Resource = _Resource()


class _Request(Struct, Generic[K], frozen=True, rename="camel"):
    resource_spans: list[_ResourceSpans[K]]


class _RawScopeSpans(Struct, frozen=True, rename="camel"):
    spans: list[msgspec.Raw] = []
    scope: _Scope = _Scope()


class _RawResourceSpans(Struct, frozen=True, rename="camel"):
    scope_spans: list[_RawScopeSpans] = []
    resource: _Resource = _Resource()


class _RawRequest(Struct, frozen=True, rename="camel"):
    resource_spans: list[_RawResourceSpans]


# Lax decoding reads 64-bit integers from strings, as OTLP/JSON writes them; booleans stay refused where numbers belong.
_RAW_REQUEST = msgspec.json.Decoder(_RawRequest, strict=False)
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
    return _json_reader(wanted).flatten(value) if is_json(value) else protobuf_reader().flatten(value, wanted)


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


class _JsonReader:
    """Decodes spans, with the wanted names of attributes and those met so far known; results do not depend on these."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._known = {STRANGER} | wanted
        self._strangers: list[str] = []
        self._learn()

    def _learn(self) -> None:
        """Know the names that were met often, as long as there is room."""
        often = sorted(name for name, times in Counter(self._strangers).items() if times >= MET_OFTEN)
        self._known |= set(often[: max(MAX_KNOWN_NAMES - len(self._known), 0)])
        self._strangers.clear()
        keys: Any = _Key
        request, span = cast(Any, _Request), cast(Any, _JsonSpan)
        key = keys("Key", {f"NAME_{place}": name for place, name in enumerate(sorted(self._known))})
        key.strangers = self._strangers
        for member in key:
            member.told = member.value if member.value in self._wanted - {STRANGER} else None
        self._request = msgspec.json.Decoder(request[key], strict=False)
        self._span = msgspec.json.Decoder(span[key], strict=False)

    def flatten(self, value: bytes) -> Flattened:
        """See the function of the module."""
        try:
            request = self._request.decode(value)
        except _DECODING_ERRORS as error:
            return self._flatten_singly(value, error)
        if len(self._strangers) >= STRANGERS_TO_LEARN and len(self._known) < MAX_KNOWN_NAMES:
            self._learn()
        spans: list[Span] = []
        for group in request.resource_spans:
            resource = plain_attributes(group.resource.attributes)
            for scope_group in group.scope_spans:
                scope = scope_group.scope.name
                spans += [_from_json(span, resource, scope) for span in scope_group.spans]
        return Flattened(tuple(spans))

    def _flatten_singly(self, value: bytes, whole: Exception) -> Flattened:
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
                        span = _from_json(self._span.decode(raw), resource, scope_group.scope.name)
                    except _DECODING_ERRORS as error:
                        index = len(spans) + len(refused)
                        refused.append((index, _span_error(bytes(raw), error)))
                    else:
                        spans.append(span)
        return Flattened(tuple(spans), tuple(refused))


_json_reader = lru_cache(maxsize=MAX_READERS)(_JsonReader)


def _span_error(raw: bytes, error: Exception) -> SchemaError:
    found = schema_error(OTLP_SPANS.name, raw, error)
    if found.reason == "out_of_range" and found.where.endswith("UnixNano"):
        return SchemaError("int_out_of_range", found.detail, found.topic, found.where)
    return found


def _from_json(span: _JsonSpan[Any], resource: Attributes, scope: str) -> Span:
    attributes: Attributes = {}
    for pair in span.attributes:
        key = pair.key.told
        if key is not None:
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
