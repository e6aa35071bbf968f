"""Drift alerts: residuals of step costs and of traffic changed their distribution. Learns no cost, forecasts nothing.

Costs are compared with the shape alone, without the level that follows them, so hardware that slows down shows although
the model has adapted; prompts that grow longer do not show there, but in traffic. One monitor, and so at most one open
alert, per cause: the level and the tail of the same residuals are two pieces of evidence of it.
Laws: states follow suspected, firing, resolved, in this order, and each alert has one id; the same records lead to the
same alerts, snapshot or not.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schemas.alerts import Alert, AlertKind, AlertState
from schemas.requests import RequestFinished
from schemas.scores import Score
from twin.cost.block import FloatArray, IntArray, StepBlock
from twin.cost.model import Learned
from twin.detectors import DetectorSettings, LevelDetector, PeakDetector, TailDetector

VERSION = 1
WORST_BUCKETS = 3
PER_UNIT = 1e9
MAX_VALUE = 1e6
"""Sums are of whole billionths of values cut at a million, so that they do not depend on how values came in blocks."""
COST = DetectorSettings()
TRAFFIC = DetectorSettings(bucket_s=2.0, bucket_rows=8, settle_s=900.0, calm_s=120.0)
"""Requests are a hundred times rarer than steps, and lengths stray by themselves."""
FORECAST = DetectorSettings(
    bucket_s=30.0, bucket_rows=1, settle_s=3_600.0, calm_s=600.0, reference_half_life_s=21_600.0
)
"""Scores of one horizon overlap; over half a minute they are nearly independent."""
DEFAULTS: Mapping[AlertKind, DetectorSettings] = {
    "cost_drift": COST,
    "traffic_drift": TRAFFIC,
    "forecast_drift": FORECAST,
}
FORECAST_METRICS = ("ttft_s", "e2e_s")


def detectors(false_alarms_per_day: float, smallest_effect_ratio: float) -> dict[AlertKind, DetectorSettings]:
    """Every kind of alert with this knob: false alarms expected of one monitor, and the least change worth telling.

    Raises ValueError where one is not a finite number > 0.
    """
    return {
        kind: replace(default, false_alarms_per_day=false_alarms_per_day, smallest_effect_ratio=smallest_effect_ratio)
        for kind, default in DEFAULTS.items()
    }


_TIMES = ("onset_us", "_calm_since_us", "_fired_us", "_resolved_us", "_peak_us", "_bucket_us", "_number")


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of one alert's life."""

    state: AlertState
    at_us: int
    onset_us: int
    effect_ratio: float
    evidence: str
    worst_us: tuple[int, ...]


class DriftMonitor:
    """Level and tail of one stream of observed / expected, and the life of its alert.

    The tail's sum is evidence enough by itself: it fires at once. With `peaks`, a single bucket far above all before is
    suspected too; single steps that stall are no drift.
    """

    def __init__(self, settings: DetectorSettings = COST, *, peaks: bool = False) -> None:
        self.settings = settings
        self.level = LevelDetector(settings)
        self.tail = TailDetector(settings)
        self.peak = PeakDetector(settings) if peaks else None
        self._size_us = round(settings.bucket_s * 1e6)
        self.state: AlertState = "resolved"
        self.onset_us = 0
        self._calm_since_us: int | None = None
        self._fired_us = 0
        self._peak_us: int | None = None
        self._bucket = [0, 0, 0, 0]
        self._bucket_us: int | None = None
        self._number: int | None = None
        self._resolved_us = 0
        self._worst: list[tuple[float, int]] = []

    def update_many(
        self, at_us: IntArray, observed: FloatArray, expected: FloatArray, exceeded: NDArray[np.bool_]
    ) -> list[Transition]:
        """Take values (n,) in order of event time; `observed` and `expected` > 0. Returns the alert's transitions."""
        if not len(at_us):
            return []
        starts = np.flatnonzero(np.diff(at_us // self._size_us, prepend=-1))
        whole = [np.rint(np.minimum(column, MAX_VALUE) * PER_UNIT).astype(np.int64) for column in (observed, expected)]
        buckets = np.add.reduceat(np.stack([*whole, exceeded, np.ones_like(at_us)]), starts, axis=1)
        told: list[Transition] = []
        for start, sums in zip(starts.tolist(), buckets.T.tolist(), strict=True):
            told += self._add(int(at_us[start]), sums)
        return told

    def update_one(self, at_us: int, observed: float, expected: float, exceeded: bool = False) -> list[Transition]:
        """`update_many` of one value."""
        whole = [round(min(value, MAX_VALUE) * PER_UNIT) for value in (observed, expected)]
        return self._add(at_us, [*whole, int(exceeded), 1])

    def _add(self, at_us: int, sums: list[int]) -> list[Transition]:
        """Take sums of values of one slot of time, of which the first is of `at_us`."""
        number = at_us // self._size_us
        told = self._close(at_us) if number != self._number else []
        self._number = number
        self._bucket = list(map(add, self._bucket, sums))
        return told

    def _close(self, now_us: int) -> list[Transition]:
        """End the open bucket if it holds enough, and begin the next at `now_us`."""
        observed, expected, exceeded, values = self._bucket
        if self._bucket_us is not None and values < self.settings.bucket_rows:
            return []
        told = []
        if self._bucket_us is not None:
            ratio_log = math.log(max(observed, 1) / max(expected, 1))
            self.level.update(self._bucket_us, ratio_log, told=self.state == "firing")
            if self.peak is not None and self.peak.update(ratio_log):
                self._peak_us = self._end_us()
            strays = abs(self.level.deviation) >= 0.5 * self.level.threshold
            if strays:
                self.tail.reset()
            elif self.level.warm:
                self.tail.update(self._bucket_us, exceeded, values)
            if len(self._worst) < WORST_BUCKETS or (ratio_log, self._bucket_us) > self._worst[-1]:
                self._worst = sorted([*self._worst, (ratio_log, self._bucket_us)], reverse=True)[:WORST_BUCKETS]
            told = self._step(self._end_us(), strays)
        self._bucket = [0, 0, 0, 0]
        self._bucket_us = now_us
        return told

    def _end_us(self) -> int:
        """End of the slot of time that the last value fell into: nothing is told before it could be known."""
        return ((self._number or 0) + 1) * self._size_us

    def _step(self, at_us: int, strays: bool) -> list[Transition]:
        """Move the alert on; `strays` says that the level is at half of what is told, or beyond."""
        level, tail = self.level, self.tail
        beyond, height = strays and level.beyond, tail.height
        fires = (beyond and level.confirmed) or height >= 1.0
        peaked = self._peak_us == at_us
        suspect = beyond or peaked
        self._follow_calm(at_us, not strays and height < 0.5 and not peaked)
        calm = self._calm_since_us is not None and at_us - self._calm_since_us >= self.settings.calm_s * 1e6
        if calm:
            level.forget_change()
        if self.state == "resolved":
            if not (fires or suspect):
                self._worst = self._worst if not calm else []
                return []
            began_us = level.onset_us() if beyond else (at_us if peaked else tail.onset_us)
            self.onset_us = max(began_us, self._resolved_us)
            return [self._move("firing" if fires else "suspected", at_us)]
        if self.state == "suspected" and fires:
            return [self._move("firing", at_us)]
        settled = self.state == "firing" and at_us - self._fired_us >= self.settings.settle_s * 1e6
        if not (calm or settled):
            return []
        gone = self._move("resolved", at_us, "back at the reference" if calm else "the new level is the reference now")
        if not calm:
            level.adopt()
            tail.reset()
        self._worst = []
        return [gone]

    def _follow_calm(self, at_us: int, calm: bool) -> None:
        if not calm:
            self._calm_since_us = None
        elif self._calm_since_us is None:
            self._calm_since_us = at_us

    def _move(self, state: AlertState, at_us: int, note: str = "") -> Transition:
        self.state = state
        if state == "firing":
            self._fired_us = at_us
        elif state == "resolved":
            self._resolved_us = at_us
        level, tail = self.level, self.tail
        evidence = [note] if note else []
        if self.level.beyond or note:
            evidence.append(
                f"level x{math.exp(level.deviation):.2f} of the reference, "
                f"told from x{math.exp(level.threshold):.2f} on, wanders by {level.wander:.1%}"
            )
        if self._peak_us == at_us:
            evidence.append("a value far above all before")
        if tail.height >= 1.0:
            evidence.append(f"{tail.share:.1%} of values above their predicted P99")
        worst = tuple(at for _, at in self._worst)
        return Transition(state, at_us, self.onset_us, math.exp(level.deviation), "; ".join(evidence), worst)

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings and lists."""
        return {
            "level": self.level.snapshot(),
            "tail": self.tail.snapshot(),
            "peak": None if self.peak is None else self.peak.snapshot(),
            "state": self.state,
            "times_us": [getattr(self, name) for name in _TIMES],
            "bucket": self._bucket,
            "worst": [list(item) for item in self._worst],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], settings: DetectorSettings = COST) -> Self:
        """The monitor of a snapshot."""
        monitor = cls(settings)
        monitor.level = LevelDetector.restore(data["level"], settings)
        monitor.tail = TailDetector.restore(data["tail"], settings)
        monitor.state = data["state"]
        monitor.peak = None if data["peak"] is None else PeakDetector.restore(data["peak"], settings)
        for name, value in zip(_TIMES, data["times_us"], strict=True):
            setattr(monitor, name, value)
        monitor._bucket = [int(value) for value in data["bucket"]]
        monitor._worst = [(float(value), int(at_us)) for value, at_us in data["worst"]]
        return monitor


class DriftAlerts:
    """The drift alerts of one deployment: step costs per engine, lengths and cache hits of traffic, and forecasts.

    Settings are per kind of alert; kinds left out have the ones above.
    """

    def __init__(self, deployment: str, settings: Mapping[AlertKind, DetectorSettings] | None = None) -> None:
        self._deployment = deployment
        self._settings: dict[AlertKind, DetectorSettings] = {**DEFAULTS, **(settings or {})}
        self._monitors: dict[tuple[AlertKind, str], DriftMonitor] = {}
        self._shortest_s = float("inf")

    @property
    def drifting(self) -> tuple[str, ...]:
        """Causes whose alert is firing, in order."""
        return tuple(sorted(_cause(*key) for key, monitor in self._monitors.items() if monitor.state == "firing"))

    def on_steps(self, engine: str, block: StepBlock, learned: Learned) -> list[Alert]:
        """Transitions caused by a block of steps that the engine's model has just learned."""
        good = np.isfinite(learned.shape_s)
        transitions = self._monitor("cost_drift", engine).update_many(
            block.at_us[good],
            block.duration_s[good],
            learned.shape_s[good],
            block.duration_s[good] > learned.p99_s[good],
        )
        return [self._alert("cost_drift", engine, transition) for transition in transitions]

    def on_finished(self, event: RequestFinished) -> list[Alert]:
        """Transitions of traffic drift caused by one finished request."""
        values: dict[str, float | None] = {
            "isl_tokens": float(event.isl_tokens),
            "osl_tokens": float(event.osl_tokens),
            "missed_tokens_ratio": _missed(event),
        }
        alerts = []
        for name, value in values.items():
            if value is not None and value > 0.0:
                told = self._monitor("traffic_drift", name).update_one(event.at_us, value, 1.0)
                alerts += [self._alert("traffic_drift", name, transition) for transition in told]
        return alerts

    def on_score(self, score: Score) -> list[Alert]:
        """Transitions of forecast drift caused by one scored forecast: medians at the shortest horizon, finely made.

        While costs or traffic drift, forecasts that miss have that cause and are not told again.
        """
        self._shortest_s = min(self._shortest_s, score.horizon_s)
        explained = score.intervened or any(
            monitor.state != "resolved" for (kind, _), monitor in self._monitors.items() if kind != "forecast_drift"
        )
        if explained or score.phase != "fine" or score.horizon_s > self._shortest_s:
            return []
        alerts = []
        for cell in score.cells:
            if cell.metric in FORECAST_METRICS and cell.quantile == 0.5 and cell.observed_s and cell.forecast_s:
                monitor = self._monitor("forecast_drift", cell.metric)
                told = monitor.update_one(score.as_of_us, cell.observed_s, cell.forecast_s)
                alerts += [self._alert("forecast_drift", cell.metric, transition) for transition in told]
        return alerts

    def _monitor(self, kind: AlertKind, subject: str) -> DriftMonitor:
        monitor = self._monitors.get((kind, subject))
        if monitor is None:
            monitor = DriftMonitor(self._settings[kind], peaks=kind == "traffic_drift")
            self._monitors[(kind, subject)] = monitor
        return monitor

    def _alert(self, kind: AlertKind, subject: str, told: Transition) -> Alert:
        return Alert(
            deployment=self._deployment,
            at_us=told.at_us,
            alert_id=f"{self._deployment}/{kind}/{subject}/{told.onset_us}",
            kind=kind,
            state=told.state,
            cause=_cause(kind, subject),
            onset_us=told.onset_us,
            effect_ratio=told.effect_ratio,
            engine=subject if kind == "cost_drift" else "",
            evidence=told.evidence,
            exemplars=tuple(str(at_us) for at_us in told.worst_us),
        )

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts. The settings are not in it."""
        monitors = [[*key, self._monitors[key].snapshot()] for key in sorted(self._monitors)]
        shortest_s = None if np.isinf(self._shortest_s) else self._shortest_s
        return {"version": VERSION, "deployment": self._deployment, "shortest_s": shortest_s, "monitors": monitors}

    @classmethod
    def restore(cls, data: Mapping[str, Any], settings: Mapping[AlertKind, DetectorSettings] | None = None) -> Self:
        """The alerts of a snapshot. Raises ValueError if it is of another version or damaged."""
        if data.get("version") != VERSION:
            raise ValueError(f"drift snapshot: version {data.get('version')!r} cannot be read here, expected {VERSION}")
        try:
            alerts = cls(str(data["deployment"]), settings)
            alerts._shortest_s = float("inf") if data["shortest_s"] is None else float(data["shortest_s"])
            for kind, subject, state in data["monitors"]:
                alerts._monitors[(kind, subject)] = DriftMonitor.restore(state, alerts._settings[kind])
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ValueError(f"drift snapshot is damaged: {error}") from error
        return alerts


def _cause(kind: AlertKind, subject: str) -> str:
    if kind == "cost_drift":
        return f"step cost of engine {subject!r}"
    return f"{'traffic' if kind == 'traffic_drift' else 'forecast'}: {subject}"


def _missed(event: RequestFinished) -> float | None:
    """Share of the prompt that the prefix cache did not give; None where the source does not tell."""
    if event.cached_tokens is None or event.isl_tokens == 0:
        return None
    return max(event.isl_tokens - event.cached_tokens, 0) / event.isl_tokens
