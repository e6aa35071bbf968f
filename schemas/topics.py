"""THE table of topics: name, key, struct, policy. Nothing else in the project spells a topic's name."""

from dataclasses import dataclass
from typing import Any, Literal

from schemas.actions import Action, Withdrawal
from schemas.alerts import Alert
from schemas.changes import Change, Skipped, Tick
from schemas.engines import EngineConfig
from schemas.evidence import Evidence
from schemas.forecasts import Forecast
from schemas.requests import RequestRecord
from schemas.scores import ScoreRecord
from schemas.slos import Slos
from schemas.state import Snapshot
from schemas.steps import StepRecord

DAY_MS = 24 * 3600 * 1000
FOREVER_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. `type` is None where any bytes may come. `core` topics all have the same number of partitions.

    A producer of a core topic sets partition = murmur2(deployment) mod n, so that one worker sees a deployment whole,
    whatever the key.
    """

    name: str
    key: Literal["deployment", "deployment/engine", "none"]
    type: Any
    about: str
    core: bool = True
    policy: Literal["delete", "compact"] = "delete"
    retention_ms: int = 7 * DAY_MS


REQUESTS = Topic(
    name="twincast.requests.v1",
    key="deployment",
    type=RequestRecord,
    about="life-cycle events of requests",
)
STEPS = Topic(
    name="twincast.steps.v1",
    key="deployment",
    type=StepRecord,
    about="engine steps, many of one engine in a message; engine counts between them",
)
ENGINES = Topic(
    name="twincast.engines.v1",
    key="deployment/engine",
    type=EngineConfig,
    about="engine configurations",
    policy="compact",
    retention_ms=FOREVER_MS,
)
SLOS = Topic(
    name="twincast.slos.v1",
    key="deployment",
    type=Slos,
    about="service level objectives",
    policy="compact",
    retention_ms=FOREVER_MS,
)
CHANGES = Topic(
    name="twincast.changes.v1",
    key="deployment",
    type=Change,
    about="what was done to a deployment",
)
TICKS = Topic(
    name="twincast.ticks.v1",
    key="deployment",
    type=Tick | Skipped,
    about="time for silent services; skipped ticks",
)
FORECASTS = Topic(
    name="twincast.forecasts.v1",
    key="deployment",
    type=Forecast,
    about="coarse and fine forecasts",
)
SCORES = Topic(
    name="twincast.scores.v1",
    key="deployment",
    type=ScoreRecord,
    about="forecasts against what then happened",
)
ALERTS = Topic(
    name="twincast.alerts.v1",
    key="deployment",
    type=Alert,
    about="drift and risk: suspected, firing, resolved",
)
ACTIONS = Topic(
    name="twincast.actions.v1",
    key="deployment",
    type=Action | Withdrawal,
    about="proposed actions, and their withdrawal",
)
EVIDENCE = Topic(
    name="twincast.evidence.v1",
    key="deployment",
    type=Evidence,
    about="evidence chains: facts, class, hypothesis, sensitivity, grade",
)
STATE = Topic(
    name="twincast.state.v1",
    key="deployment",
    type=Snapshot,
    about="snapshots of the core with the input offsets they hold",
    policy="compact",
    retention_ms=FOREVER_MS,
)
DLQ = Topic(
    name="twincast.dlq.v1",
    key="none",
    type=None,
    about="refused records, byte-identical, with reason and position in headers",
    core=False,
    retention_ms=30 * DAY_MS,
)
OTLP_SPANS = Topic(
    name="otlp_spans",
    key="none",
    type=None,
    about="spans as the OpenTelemetry Collector's Kafka exporter writes them, JSON or protobuf",
    core=False,
)
OTLP_METRICS = Topic(
    name="otlp_metrics",
    key="none",
    type=None,
    about="metrics as the OpenTelemetry Collector's Kafka exporter writes them, JSON or protobuf",
    core=False,
)

INPUTS = (REQUESTS, STEPS, ENGINES, SLOS, CHANGES, TICKS)
RAW_INPUTS = (OTLP_SPANS, OTLP_METRICS)
OUTPUTS = (FORECASTS, SCORES, ALERTS, ACTIONS, EVIDENCE)
TOPICS = {topic.name: topic for topic in (*INPUTS, *RAW_INPUTS, *OUTPUTS, STATE, DLQ)}
