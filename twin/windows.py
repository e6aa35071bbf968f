"""Forecasts whose windows have not closed yet, each with the baselines as they stood when it was made. Scores nothing.

Law: every window opened is closed exactly once, in order of closing, when event time has passed its end by 60 s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from schemas.forecasts import Forecast
from twin.baselines import Baseline, Baselines
from twin.scoring import BASELINE_SCENARIO, closes_us


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """One horizon of one forecast, waiting for its end."""

    forecast: Forecast
    horizon_s: float
    baselines: Baselines

    def order(self) -> tuple[int, str, float]:
        """Windows close by time; coarse before fine, short before long."""
        return (closes_us(self.forecast.as_of_us, self.horizon_s), self.forecast.phase, self.horizon_s)


class OpenWindows:
    """All open windows of one deployment."""

    def __init__(self) -> None:
        self._windows: list[OpenWindow] = []

    def __len__(self) -> int:
        return len(self._windows)

    def open(self, forecast: Forecast, horizon_s: float, baselines: Baselines) -> None:
        """Keep what scoring needs: the one horizon of the baseline scenario."""
        self._windows.append(OpenWindow(_slim(forecast, horizon_s), horizon_s, baselines))

    def closed_by(self, now_us: int) -> Iterator[OpenWindow]:
        """Take out the windows that closed at or before `now_us`, in order."""
        due = sorted((window for window in self._windows if window.order()[0] <= now_us), key=OpenWindow.order)
        self._windows = [window for window in self._windows if window.order()[0] > now_us]
        yield from due

    def snapshot(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [
            {
                "forecast": msgspec.to_builtins(window.forecast),
                "horizon_s": window.horizon_s,
                "baselines": [
                    [metric, quantile, one.persistence_s, one.history_s, one.trend_s]
                    for (metric, quantile), one in window.baselines.items()
                ],
            }
            for window in self._windows
        ]

    @classmethod
    def restore(cls, data: list[Mapping[str, Any]]) -> Self:
        """The windows of a snapshot."""
        windows = cls()
        for item in data:
            baselines = {(metric, quantile): Baseline(*values) for metric, quantile, *values in item["baselines"]}
            forecast = msgspec.convert(item["forecast"], Forecast)
            windows._windows.append(OpenWindow(forecast, item["horizon_s"], baselines))
        return windows


def _slim(forecast: Forecast, horizon_s: float) -> Forecast:
    kept = tuple(
        msgspec.structs.replace(
            scenario, horizons=tuple(h for h in scenario.horizons if h.horizon_s == horizon_s), curves=()
        )
        for scenario in forecast.scenarios
        if scenario.scenario == BASELINE_SCENARIO
    )
    return msgspec.structs.replace(forecast, scenarios=kept, bottlenecks=(), balance=(), responses=())
