"""Everything of an incident in one place, as data: what was observed, forecast, alerted, proposed; how to repeat it.

Draws and writes nothing. Law: a case depends on the records, the window and the settings alone.
"""

from dataclasses import dataclass, field

from pipelines.incident.findings import Breach, Foresight
from pipelines.incident.observing import Requests
from pipelines.incident.remedies import Remedy
from schemas.alerts import Alert
from schemas.forecasts import Bottleneck, Forecast
from schemas.lineage import Lineage
from schemas.scores import Score
from schemas.slos import SloTarget
from twin.metrics import FloatArray


@dataclass(frozen=True, slots=True)
class Phase:
    """The ranking of bottlenecks at one moment: `before`, `during` or `after` the breach."""

    name: str
    at_us: int
    bottlenecks: tuple[Bottleneck, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a topic's partition that hold the window; `last_offset` is included."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One incident. Arrays are per second of the window; `breaches` are all, `breach` is the longest: the
    one that the case is about."""

    source: str
    digest: str
    deployment: str
    from_us: int
    to_us: int
    targets: tuple[SloTarget, ...]
    requests: Requests
    waiting: FloatArray
    running: FloatArray
    kv_ratio: FloatArray
    forecasts: tuple[Forecast, ...]
    scores: tuple[Score, ...]
    alerts: tuple[Alert, ...]
    proposals: tuple[tuple[int, str], ...]
    authority: tuple[tuple[int, str], ...]
    breach: Breach | None
    breaches: tuple[Breach, ...]
    foresight: Foresight | None
    phases: tuple[Phase, ...]
    remedies_us: int | None
    remedies: tuple[Remedy, ...]
    spans: tuple[Span, ...]
    lineage: Lineage | None
    commands: tuple[str, ...] = field(default_factory=tuple)
