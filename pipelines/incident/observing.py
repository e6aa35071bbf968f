"""What really happened in a window, folded from input messages: requests, queues, KV, who told how. Judges nothing.

Laws: a request counts by its arrival, in the window or up to `BEFORE_US` before it; what is not told is NaN, never 0.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.errors import ConfigError
from pipelines.runtime import Incoming
from schemas.codec import SchemaError, decode
from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished, RequestRecord, RequestRejected
from schemas.slos import Slos, SloTarget
from schemas.steps import EngineStats, StepBatch
from twin.metrics import FloatArray, IntArray, Latencies, latencies

US_PER_S = 1_000_000
BEFORE_US = 60 * US_PER_S
GRID_US = US_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """n requests in order of arrival: times in microseconds, latencies in seconds, +inf while not there at the end."""

    arrived_us: IntArray
    latencies: Latencies

    def __len__(self) -> int:
        return int(self.arrived_us.size)


@dataclass(slots=True)
class _Second:
    """The most that engines told within a second of event time."""

    waiting: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    kv_ratio: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Observation:
    """A fold over the messages of one deployment; `deployment` empty: of the only one there is."""

    from_us: int
    to_us: int
    deployment: str = ""
    named: bool = False
    targets: tuple[SloTarget, ...] = ()
    configs: dict[str, EngineConfig] = field(default_factory=dict)
    records: list[RequestRecord] = field(default_factory=list)
    newest_us: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """First and last offset of the window, per topic and partition."""
    _seconds: defaultdict[int, _Second] = field(default_factory=lambda: defaultdict(_Second))

    def take(self, message: Incoming, at_us: int) -> None:
        """Fold a message. Raises ConfigError where a second deployment appears and none was named."""
        try:
            record = decode(message.topic, message.value or b"").record
        except SchemaError:
            return
        if not self._is_ours(record.deployment):
            return
        if self.from_us <= at_us < self.to_us:
            place = (message.topic, message.partition)
            first, _ = self.offsets.get(place, (message.offset, 0))
            self.offsets[place] = (first, message.offset)
        self._fold(record)

    def _is_ours(self, deployment: str) -> bool:
        if not self.deployment:
            self.deployment = deployment
        if deployment != self.deployment and not self.named:
            raise ConfigError(
                f"several deployments are here: {self.deployment}, {deployment}; name one with --deployment"
            )
        return deployment == self.deployment

    def _fold(self, record: Any) -> None:
        if isinstance(record, RequestRecord):
            self.newest_us = max(self.newest_us, record.at_us)
            arrived_us = record.at_us if isinstance(record, RequestArrived) else record.arrived_us or record.at_us
            if self.from_us - BEFORE_US <= arrived_us < self.to_us:
                self.records.append(record)
        elif isinstance(record, StepBatch):
            self._on_steps(record)
        elif isinstance(record, EngineStats):
            self._tell(record.at_us, record.engine, record.waiting, record.running, record.kv_used_ratio)
        elif isinstance(record, EngineConfig):
            self.configs[record.engine] = record
        elif isinstance(record, Slos):
            self.targets = record.targets

    def _on_steps(self, batch: StepBatch) -> None:
        config = self.configs.get(batch.engine)
        usable = None if config is None else max(config.kv_blocks - config.reserved_blocks, 1)
        for step in batch.steps:
            ratio = None if usable is None or step.kv_used_blocks is None else step.kv_used_blocks / usable
            self._tell(step.at_us, batch.engine, step.waiting, step.running, ratio)

    def _tell(self, at_us: int, engine: str, waiting: int | None, running: int | None, kv_ratio: float | None) -> None:
        if not self.from_us <= at_us < self.to_us:
            return
        second = self._seconds[(at_us - self.from_us) // GRID_US]
        if waiting is not None:
            second.waiting[engine] = max(second.waiting.get(engine, 0), waiting)
        if running is not None:
            second.running[engine] = max(second.running.get(engine, 0), running)
        if kv_ratio is not None:
            second.kv_ratio[engine] = max(second.kv_ratio.get(engine, 0.0), kv_ratio)

    def requests(self) -> Requests:
        """The requests, whose ends are known as far as records came."""
        rows = sorted(_rows(self.records).values())
        column = np.array(rows, np.float64).reshape(-1, 5)
        arrived_s = (column[:, 0] - self.from_us) / US_PER_S
        found = latencies(
            arrived_s=arrived_s,
            first_token_s=(column[:, 1] - self.from_us) / US_PER_S,
            last_token_s=(column[:, 2] - self.from_us) / US_PER_S,
            osl_tokens=column[:, 3].astype(np.int64),
            refused=column[:, 4] > 0,
        )
        return Requests(column[:, 0].astype(np.int64), found)

    def seconds(self, name: str) -> FloatArray:
        """`waiting` and `running` summed over engines, `kv_ratio` of the fullest one, per second; NaN if not told."""
        values = np.full(-(-(self.to_us - self.from_us) // GRID_US), np.nan)
        for at, second in self._seconds.items():
            told = getattr(second, name)
            if told:
                values[at] = max(told.values()) if name == "kv_ratio" else sum(told.values())
        return values


def _rows(records: list[RequestRecord]) -> dict[str, tuple[float, float, float, int, int]]:
    """Arrival, first and last token in microseconds (NaN: not there), length, whether refused; by request."""
    rows: dict[str, tuple[float, float, float, int, int]] = {}
    nan = float("nan")
    for record in records:
        name = record.request_id
        if isinstance(record, RequestArrived):
            rows.setdefault(name, (record.at_us, nan, nan, 0, 0))
        elif isinstance(record, RequestRejected):
            rows[name] = (record.arrived_us or record.at_us, nan, nan, 0, 1)
        elif isinstance(record, RequestFinished):
            if record.timed and record.first_token_us is not None:
                rows[name] = (record.arrived_us, record.first_token_us, record.at_us, record.osl_tokens, 0)
        elif record.arrived_us is not None:
            first_us = nan if record.first_token_us is None else record.first_token_us
            rows[name] = (record.arrived_us, first_us, nan, 0, 0)
    return rows
