"""What a person wants to see of one deployment, folded from records of the log. Draws nothing and computes no forecast.

Law: it holds a bounded number of records of every kind, whatever comes in.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipelines.log import LogRecord
from schemas.alerts import Alert
from schemas.codec import SchemaError, decode
from schemas.engines import EngineConfig
from schemas.forecasts import Forecast, HorizonForecast, LatencyEstimate
from schemas.requests import RequestFinished, RequestRecord
from schemas.scores import Replay, Score
from schemas.slos import Slos, SloTarget
from schemas.steps import Step, StepBatch
from schemas.topics import DLQ
from twin.metrics import quantile

US_PER_S = 1_000_000
MAX_REQUESTS = 20_000
MAX_FORECASTS = 720
MAX_ALERTS = 100
SETTLED_AFTER_US = 60 * US_PER_S
"""Requests of a window that ended so long ago have finished, or are left out."""
LEAST_MEMBERS = 10
"""A quantile of fewer requests is not shown."""
BASELINE = "baseline"
DEFAULT_SLO = ("ttft_s", 0.95)


@dataclass(slots=True)
class Coverage:
    """How many cells of scores fell into their intervals."""

    cells: int = 0
    covered: int = 0
    windows: int = 0

    def add(self, score: Score) -> None:
        """Count a window, unless something was done during it."""
        if not score.intervened:
            self.windows += 1
            self.cells += len(score.cells)
            self.covered += sum(cell.covered for cell in score.cells)


@dataclass(slots=True)
class Board:
    """One deployment, by default the first that is heard of."""

    deployment: str = ""
    newest_us: int = 0
    first_us: int = 0
    waiting: int | None = None
    running: int | None = None
    kv_ratio: float | None = None
    forecasts_made: int = 0
    first_forecast_us: int | None = None
    last: dict[str, Forecast] = field(default_factory=dict)
    """Newest forecast per phase."""
    bands: OrderedDict[int, tuple[float, float, float, float]] = field(default_factory=OrderedDict)
    """By the end of the shortest horizon's window (event time): value, low, high in seconds, breach probability."""
    scores: deque[Score] = field(default_factory=lambda: deque(maxlen=MAX_FORECASTS))
    replay: Replay | None = None
    """The newest closed window that the twin ran through again."""
    coverage: Coverage = field(default_factory=Coverage)
    alerts: deque[Alert] = field(default_factory=lambda: deque(maxlen=MAX_ALERTS))
    dead_letters: int = 0
    targets: tuple[SloTarget, ...] = ()
    _kv_blocks: dict[str, int] = field(default_factory=dict)
    _settled: dict[tuple[int, float, float], float | None] = field(default_factory=dict)
    _ttft: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))

    def take(self, record: LogRecord) -> Any:
        """Fold a record of any topic; returns the struct if it is one of this deployment, else None."""
        if record.topic == DLQ.name:
            self.dead_letters += 1
            return None
        try:
            found = decode(record.topic, record.value or b"").record
        except SchemaError:
            return None  # the worker tells of it
        self.deployment = self.deployment or found.deployment
        if found.deployment != self.deployment:
            return None
        self.fold(found)
        return found

    def fold(self, found: Any) -> None:
        """Fold a decoded record of this deployment."""
        if isinstance(found, RequestRecord):
            self._at(found.at_us)
            if isinstance(found, RequestFinished) and found.timed and found.first_token_us is not None:
                self._ttft.append((found.arrived_us, (found.first_token_us - found.arrived_us) / US_PER_S))
        elif isinstance(found, StepBatch):
            for step in found.steps[-1:]:
                self._at(step.at_us)
                self._on_step(found.engine, step)
        elif isinstance(found, EngineConfig):
            self._kv_blocks[found.engine] = max(found.kv_blocks - found.reserved_blocks, 1)
        elif isinstance(found, Slos):
            self.targets = found.targets
        elif isinstance(found, Forecast):
            self._on_forecast(found)
        elif isinstance(found, Score):
            if found.phase == "fine":
                self.scores.append(found)
                self.coverage.add(found)
        elif isinstance(found, Replay):
            self.replay = found
        elif isinstance(found, Alert):
            self.alerts.append(found)

    def _at(self, at_us: int) -> None:
        self.newest_us = max(self.newest_us, at_us)
        self.first_us = self.first_us or at_us

    def _on_step(self, engine: str, step: Step) -> None:
        self.waiting = step.waiting if step.waiting is not None else self.waiting
        self.running = step.running if step.running is not None else self.running
        if step.kv_used_blocks is not None and engine in self._kv_blocks:
            self.kv_ratio = step.kv_used_blocks / self._kv_blocks[engine]

    def _on_forecast(self, forecast: Forecast) -> None:
        self.forecasts_made += 1
        self.first_forecast_us = self.first_forecast_us or forecast.as_of_us
        self.last[forecast.phase] = forecast
        horizons = horizons_of(forecast)
        if not horizons:
            return
        shortest = horizons[0]
        estimate = latency_of(shortest, *self.slo_key)
        if estimate is not None:
            end_us = forecast.as_of_us + round(shortest.horizon_s * US_PER_S)
            risk = max((r.breach_probability for h in horizons for r in h.slo_risks), default=0.0)
            self.bands[end_us] = (estimate.value_s, estimate.low_s, estimate.high_s, risk)
            while len(self.bands) > MAX_FORECASTS:
                self.bands.popitem(last=False)

    @property
    def slo(self) -> SloTarget | None:
        """The target that is drawn: the first on TTFT."""
        return next((target for target in self.targets if target.metric == DEFAULT_SLO[0]), None)

    @property
    def slo_key(self) -> tuple[str, float]:
        """Metric and quantile that are drawn."""
        return (self.slo.metric, self.slo.quantile) if self.slo else DEFAULT_SLO

    @property
    def forecast(self) -> Forecast | None:
        """The newest forecast, the fine one where both phases of a tick are here."""
        fine, coarse = self.last.get("fine"), self.last.get("coarse")
        if fine is None or coarse is None:
            return fine or coarse
        return fine if fine.as_of_us >= coarse.as_of_us else coarse

    def observed_s(self, end_us: int, span_s: float, level: float) -> float | None:
        """The quantile of TTFT of requests that arrived within `span_s` before `end_us` and have finished."""
        key = (end_us, span_s, level)
        if key in self._settled:
            return self._settled[key]
        start_us = end_us - round(span_s * US_PER_S)
        values = [ttft_s for arrived_us, ttft_s in self._ttft if start_us < arrived_us <= end_us]
        found = None if len(values) < LEAST_MEMBERS else float(quantile(np.array(values), level))
        if self.newest_us > end_us + SETTLED_AFTER_US:
            self._settled[key] = found
            while len(self._settled) > MAX_FORECASTS:
                del self._settled[next(iter(self._settled))]
        return found

    @property
    def breaches_predicted(self) -> bool:
        """Whether a risk alert has fired."""
        return any(alert.kind == "slo_risk" and alert.state == "firing" for alert in self.alerts)

    def breaches(self, span_s: float = 30.0) -> "Breaches":
        """When the target was predicted to be missed, and when it was."""
        predicted = [alert.at_us for alert in self.alerts if alert.kind == "slo_risk" and alert.state == "firing"]
        target = self.slo
        if target is None:
            return Breaches(predicted[0] if predicted else None, None)
        ends = range(self.first_us, self.newest_us + 1, 2 * US_PER_S)
        missed = (end for end in ends if (self.observed_s(end, span_s, target.quantile) or 0.0) > target.limit_s)
        return Breaches(predicted[0] if predicted else None, next(missed, None))


@dataclass(frozen=True, slots=True)
class Breaches:
    """Event times, microseconds: of the first firing risk alert, and of the first window that missed the target."""

    predicted_us: int | None
    happened_us: int | None

    @property
    def lead_s(self) -> float | None:
        """How long before the breach it was predicted; below 0: after it."""
        if self.predicted_us is None or self.happened_us is None:
            return None
        return (self.happened_us - self.predicted_us) / US_PER_S


def horizons_of(forecast: Forecast) -> tuple[HorizonForecast, ...]:
    """Horizons of the baseline."""
    return next((s.horizons for s in forecast.scenarios if s.scenario == BASELINE), ())


def latency_of(horizon: HorizonForecast, metric: str, level: float) -> LatencyEstimate | None:
    """One quantile of one latency."""
    return next((e for e in horizon.latencies if e.metric == metric and e.quantile == level), None)
