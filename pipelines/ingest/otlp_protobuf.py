"""OTLP in protobuf: the half of `otlp` and `otlp_metrics` that needs an optional package. Same laws."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pipelines.ingest.otlp import NS_MAX, Attributes, Flattened, Span
from pipelines.ingest.prometheus import Sample
from schemas.codec import SchemaError
from schemas.topics import OTLP_METRICS, OTLP_SPANS

_STATUS_ERROR = 2
_SCALARS = ("double_value", "int_value", "string_value", "bool_value")


def flatten(value: bytes, wanted: frozenset[str]) -> Flattened:
    """Spans of one export request. Raises SchemaError `not_protobuf` if it is none."""
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(value)
    except DecodeError as error:
        raise SchemaError(
            "not_protobuf", f"{error}; expected JSON or an OTLP export request", OTLP_SPANS.name
        ) from None
    if not request.resource_spans:
        raise SchemaError("not_protobuf", "no resource spans in it; expected an OTLP export request", OTLP_SPANS.name)
    spans: list[Span] = []
    refused: list[tuple[int, SchemaError]] = []
    for group in request.resource_spans:
        resource = protobuf_attributes(group.resource.attributes)
        for scope_group in group.scope_spans:
            scope = scope_group.scope.name
            for span in scope_group.spans:
                if span.start_time_unix_nano <= NS_MAX and span.end_time_unix_nano <= NS_MAX:
                    spans.append(_from_protobuf(span, wanted, resource, scope))
                else:
                    refused.append((len(spans) + len(refused), _bad_times(span)))
    return Flattened(tuple(spans), tuple(refused))


def _bad_times(span: Any) -> SchemaError:
    detail = f"start {span.start_time_unix_nano}, end {span.end_time_unix_nano}; expected nanoseconds below 2^63"
    return SchemaError("int_out_of_range", detail, OTLP_SPANS.name, "$.startTimeUnixNano")


def _from_protobuf(span: Any, wanted: frozenset[str], resource: Attributes, scope: str) -> Span:
    attributes: Attributes = {}
    for pair in span.attributes:
        key = pair.key
        if key in wanted:
            value = pair.value
            # Reading an unset member of a oneof gives its zero, which is falsy: the common case needs no look-up.
            found = value.double_value or value.int_value or value.string_value
            if not found:
                kind = value.WhichOneof("value")
                if kind not in _SCALARS:
                    continue
                found = getattr(value, kind)
            attributes[key] = found
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == _STATUS_ERROR,
        attributes,
        resource,
        scope,
    )


def metric_points(value: bytes) -> Iterator[tuple[Attributes, int, Sample]]:
    """Number data points: resource attributes, nanoseconds, sample. Raises SchemaError `not_protobuf` if it is none."""
    request = ExportMetricsServiceRequest()
    try:
        request.ParseFromString(value)
    except DecodeError as error:
        detail = f"{error}; expected JSON or an OTLP export request"
        raise SchemaError("not_protobuf", detail, OTLP_METRICS.name) from None
    if not request.resource_metrics:
        raise SchemaError("not_protobuf", "no metrics in it; expected an OTLP export request", OTLP_METRICS.name)
    for group in request.resource_metrics:
        resource = protobuf_attributes(group.resource.attributes)
        for scope in group.scope_metrics:
            for metric in scope.metrics:
                for point in (*metric.gauge.data_points, *metric.sum.data_points):
                    labels = {key: str(found) for key, found in protobuf_attributes(point.attributes).items()}
                    number = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
                    yield resource, point.time_unix_nano, Sample(metric.name, labels, float(number))


def protobuf_attributes(pairs: Any) -> Attributes:
    """Scalar attributes of a protobuf KeyValue list; arrays and maps are left out."""
    values: Attributes = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        if kind in _SCALARS:
            values[pair.key] = getattr(pair.value, kind)
    return values
