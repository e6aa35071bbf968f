"""OTLP metrics, JSON and protobuf, to engine counts. Knows no metric names (`engine_metrics` does), keeps no state.

The Collector's Prometheus receiver keeps vLLM's and SGLang's names, so a scraped page and an OTLP export give the same
counts. Histograms and summaries are skipped. Points of one resource and one instant become one record.

Laws: no bytes whatever make `engine_stats_of` raise anything but `SchemaError`; both encodings give equal records.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pipelines.ingest.engine_metrics import engine_stats
from pipelines.ingest.otlp import NS_MAX, Attributes, KeyValue, is_json, plain_attributes, protobuf_reader
from pipelines.ingest.prometheus import Sample
from pipelines.ingest.span_mapping import SpanMapping
from schemas.base import EARLIEST_US, LATEST_US
from schemas.codec import MAX_MESSAGE_BYTES, SchemaError, schema_error
from schemas.steps import EngineStats
from schemas.topics import OTLP_METRICS

_Nanoseconds = Annotated[int, Meta(ge=0, le=NS_MAX)]


class _Point(Struct, frozen=True, rename="camel"):
    time_unix_nano: _Nanoseconds
    as_double: float | None = None
    as_int: int | None = None
    attributes: list[KeyValue] = []


class _Points(Struct, frozen=True, rename="camel"):
    data_points: list[_Point] = []


class _Metric(Struct, frozen=True):
    name: str
    gauge: _Points = _Points()
    sum: _Points = _Points()


class _ScopeMetrics(Struct, frozen=True):
    metrics: list[_Metric] = []


class _Resource(Struct, frozen=True):
    attributes: list[KeyValue] = []


class _ResourceMetrics(Struct, frozen=True, rename="camel"):
    scope_metrics: list[_ScopeMetrics] = []
    resource: _Resource = _Resource()


class _Request(Struct, frozen=True, rename="camel"):
    resource_metrics: list[_ResourceMetrics]


_REQUEST = msgspec.json.Decoder(_Request, strict=False)


def engine_stats_of(value: bytes, mapping: SpanMapping) -> tuple[EngineStats, ...]:
    """Engine counts of one export request, ordered by time; empty if it holds none that we know.

    Raises SchemaError as `otlp.flatten` does, and `timestamp_unit` for a time that is not nanoseconds.
    """
    if not value:
        raise SchemaError("empty", "no bytes", OTLP_METRICS.name)
    if len(value) > MAX_MESSAGE_BYTES:
        raise SchemaError("too_large", f"{len(value)} bytes, at most {MAX_MESSAGE_BYTES}", OTLP_METRICS.name)
    points = _json_points(value) if is_json(value) else protobuf_reader().metric_points(value)
    groups: dict[tuple[str, str, int], list[Sample]] = {}
    for resource, time_ns, sample in points:
        deployment, engine = mapping.place({"gen_ai.request.model": sample.labels.get("model_name", "")}, resource, "")
        groups.setdefault((deployment, engine, time_ns // 1000), []).append(sample)
    records: list[EngineStats] = []
    for (deployment, engine, at_us), samples in groups.items():
        found = engine_stats(samples, deployment, engine, max(EARLIEST_US, min(at_us, LATEST_US)))
        if found and not EARLIEST_US <= at_us <= LATEST_US:
            raise SchemaError("timestamp_unit", f"{at_us} us; expected nanoseconds on the wire", OTLP_METRICS.name)
        records.extend(found)
    return tuple(sorted(records, key=lambda record: (record.at_us, record.deployment, record.engine)))


def _json_points(value: bytes) -> Iterator[tuple[Attributes, int, Sample]]:
    try:
        request = _REQUEST.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise schema_error(OTLP_METRICS.name, value, error) from None
    for group in request.resource_metrics:
        resource = plain_attributes(group.resource.attributes)
        for scope in group.scope_metrics:
            for metric in scope.metrics:
                for point in (*metric.gauge.data_points, *metric.sum.data_points):
                    number = point.as_int if point.as_double is None else point.as_double
                    if number is not None:
                        labels = {key: str(found) for key, found in plain_attributes(point.attributes).items()}
                        yield resource, point.time_unix_nano, Sample(metric.name, labels, float(number))
