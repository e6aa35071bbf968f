"""Alerts (`twincast.alerts.v1`): drift and risk, one per cause, from suspected over firing to resolved."""

from typing import Literal

from schemas.base import EventTime, Name, Record
from schemas.lineage import Offset

AlertKind = Literal["cost_drift", "traffic_drift", "forecast_drift", "slo_risk"]
AlertState = Literal["suspected", "firing", "resolved"]


class Alert(Record, frozen=True, kw_only=True, tag_field="record", tag="alert"):
    """One transition of one alert; `alert_id` stays the same from suspected to resolved.

    `onset_us` is when the change is estimated to have begun, `effect_ratio` how large it is (1.0: no change).
    """

    deployment: Name
    at_us: EventTime
    alert_id: Name
    kind: AlertKind
    state: AlertState
    cause: str
    onset_us: EventTime
    effect_ratio: float | None = None
    engine: str = ""
    evidence: str = ""
    lead_s: float | None = None
    exemplars: tuple[str, ...] = ()
    offsets: tuple[Offset, ...] = ()
