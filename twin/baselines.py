"""What a forecast must beat: persistence, pooled history and a linear trend, made from finished requests alone.

Knows nothing of forecasts or the twin. Holds at most `capacity` requests: beyond it every second one is dropped and
from then on only each 2nd, 4th, ... is kept, so a window stays a fair sample. History is a histogram.
Law: persistence and trend use nothing that finished after `as_of_us` (history is all that was observed so far), and
memory does not grow with time.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.slos import Metric
from twin.histogram import LogHistogram
from twin.metrics import METRICS, FloatArray, quantiles

TREND_WINDOWS = 4
_MIN_TREND_WINDOWS = 3
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Three naive forecasts of one quantile in seconds; None where nothing to make it from had finished."""

    persistence_s: float | None = None
    history_s: float | None = None
    trend_s: float | None = None


Baselines = Mapping[tuple[Metric, float], Baseline]


class BaselineHistory:
    """Finished requests of one deployment, in order of finishing.

    Parameters
    ----------
    span_s
        How far back single requests are kept: `TREND_WINDOWS` times the longest horizon.
    capacity
        Most requests kept, at least 16.
    """

    def __init__(self, span_s: float = 480.0, capacity: int = 16_384) -> None:
        if not (math.isfinite(span_s) and span_s > 0):
            raise ValueError(f"span_s must be a finite number > 0, got {span_s}")
        if capacity < 16:
            raise ValueError(f"capacity must be >= 16 requests, got {capacity}")
        self._span_us = round(span_s * 1e6)
        self._capacity = capacity
        self._stride = 1
        self._seen = 0
        self._newest_us = 0
        self._at_us: list[int] = []
        self._rows: list[tuple[float, float, float]] = []
        self._pooled = {metric: LogHistogram() for metric in METRICS}

    def observe(self, finished_us: int, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Take one finished request; False and no change for latencies not finite and >= 0, or out of order."""
        values = (ttft_s, math.nan if tpot_s is None else tpot_s, e2e_s)
        if any(not math.isfinite(v) or v < 0 for v in (ttft_s, e2e_s, tpot_s or 0.0)):
            return False
        if finished_us < self._newest_us:
            return False
        self._newest_us = finished_us
        for metric, value in zip(METRICS, values, strict=True):
            if not math.isnan(value):
                self._pooled[metric].add(value)
        self._seen += 1
        if self._seen % self._stride:
            return True
        self._at_us.append(finished_us)
        self._rows.append(values)
        if len(self._at_us) > self._capacity:
            self._shrink(finished_us)
        return True

    def at(self, as_of_us: int, horizon_s: float, wanted: Iterable[tuple[Metric, float]]) -> Baselines:
        """Baselines for (as_of, as_of + horizon_s] of each (metric, quantile).

        Persistence: the quantile of requests finished in the last `horizon_s`; where none finished, the last window of
        that length which had one, as far back as requests are kept. Trend: a line through the last `TREND_WINDOWS`
        such windows, at least three with requests, read one window ahead and never below 0.
        """
        at_us = np.asarray(self._at_us, dtype=np.int64)
        rows = np.asarray(self._rows, dtype=np.float64).reshape(-1, 3)
        span_us = round(horizon_s * 1e6)
        edges = as_of_us - span_us * np.arange(TREND_WINDOWS, -1, -1)
        cuts = np.searchsorted(at_us, edges, side="right")
        windows = [rows[a:b] for a, b in itertools.pairwise(cuts)]
        return {(metric, q): self._one(windows, metric, q) for metric, q in wanted}

    def _one(self, windows: list[FloatArray], metric: Metric, quantile: float) -> Baseline:
        column = METRICS.index(metric)
        series = [float(quantiles(window[:, column], (quantile,))[0]) for window in windows]
        known = [(i, v) for i, v in enumerate(series) if not math.isnan(v)]
        pooled = self._pooled[metric]
        return Baseline(
            persistence_s=known[-1][1] if known else None,
            history_s=pooled.quantile(quantile) if pooled.count else None,
            trend_s=_one_ahead(known) if len(known) >= _MIN_TREND_WINDOWS else None,
        )

    def _shrink(self, now_us: int) -> None:
        """Forget what is too old; where that frees too little, halve the density of what is kept."""
        start = int(np.searchsorted(np.asarray(self._at_us), now_us - self._span_us))
        self._at_us, self._rows = self._at_us[start:], self._rows[start:]
        if len(self._at_us) > self._capacity // 2:
            self._at_us, self._rows = self._at_us[::2], self._rows[::2]
            self._stride *= 2

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        return {
            "version": _VERSION,
            "span_us": self._span_us,
            "capacity": self._capacity,
            "stride": self._stride,
            "seen": self._seen,
            "newest_us": self._newest_us,
            "at_us": list(self._at_us),
            "rows": [[None if math.isnan(v) else v for v in row] for row in self._rows],
            "pooled": {metric: self._pooled[metric].snapshot() for metric in METRICS},
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The history of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(
                f"baseline history snapshot has version {state.get('version')}, this code reads {_VERSION}"
            )
        history = cls(span_s=state["span_us"] / 1e6, capacity=state["capacity"])
        history._stride, history._seen = state["stride"], state["seen"]
        history._newest_us = state["newest_us"]
        history._at_us = list(state["at_us"])
        rows = [[math.nan if v is None else float(v) for v in row] for row in state["rows"]]
        history._rows = [(ttft, tpot, e2e) for ttft, tpot, e2e in rows]
        history._pooled = {metric: LogHistogram.restore(state["pooled"][metric]) for metric in METRICS}
        return history


def _one_ahead(points: list[tuple[int, float]]) -> float:
    """A least-squares line through (window number, value), read at `TREND_WINDOWS`."""
    x = np.array([i for i, _ in points], dtype=np.float64)
    y = np.array([v for _, v in points], dtype=np.float64)
    slope = float(np.sum((x - x.mean()) * (y - y.mean())) / np.sum((x - x.mean()) ** 2))
    return max(float(y.mean()) + slope * (TREND_WINDOWS - float(x.mean())), 0.0)
