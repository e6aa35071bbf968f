"""Service level objectives (`twincast.slos.v1`, compacted)."""

from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import EventTime, Name, Quantile, Record, Wire

Metric = Literal["ttft_s", "tpot_s", "e2e_s"]


class SloTarget(Wire, frozen=True, kw_only=True):
    """`quantile` of `metric` must stay at or under `limit_s` seconds for `traffic_class` (empty: all traffic)."""

    metric: Metric
    quantile: Quantile
    limit_s: Annotated[float, Meta(gt=0.0, le=1e6)]
    traffic_class: str = ""


class Slos(Record, frozen=True, kw_only=True, tag_field="record", tag="slos"):
    """All targets of one deployment; a newer record replaces the older one."""

    deployment: Name
    at_us: EventTime
    targets: tuple[SloTarget, ...]
