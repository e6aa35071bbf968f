"""Calibration by replay, live: closed windows through the twin again, one after the other, and what they teach.

What stays wrong with the costs of a role moves its factor, so that what-ifs are corrected too; what latencies then
still miss goes to the outputs, through `twin.calibration`. Simulates nothing: it asks for a replay and takes its
result. Laws: at most one replay for each disjoint window; nothing moves unless it is beyond chance; another engine
begins without factors; a restored one goes on as the first would have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import msgspec

from schemas.scores import BiasTrendCell, Replay, ReplayCell, RoleBias
from twin.attribution import Attribution, Values
from twin.bias import BiasTrend, Factors, ProvenStepBias, scaled
from twin.closed_window import ClosedWindow, quantiles_of
from twin.job import EngineSetup
from twin.metrics import QUANTILES
from twin.window_tape import WindowTapes

MOST_S = 1e9


class ReplayCalibration:
    """Of one deployment. `tapes` take down the windows that are under way."""

    def __init__(self) -> None:
        self.tapes = WindowTapes()
        self._bias = ProvenStepBias()
        self._trend = BiasTrend()
        self._fingerprints: dict[str, str] = {}

    @property
    def factors(self) -> Factors:
        """What costs of prefill, decode and mixed steps are multiplied with; 1 while nothing is proven."""
        return self._bias.factors

    def corrected(self, engines: Iterable[EngineSetup]) -> tuple[EngineSetup, ...]:
        """Engines with their costs corrected."""
        factors = self.factors
        return tuple(replace(setup, cost=scaled(setup.cost, factors)) for setup in engines)

    def on_fingerprints(self, fingerprints: Mapping[str, str]) -> None:
        """What each engine is; of one that has changed nothing is known. More or fewer engines change nothing."""
        if any(self._fingerprints.get(name, now) != now for name, now in fingerprints.items()):
            self._bias, self._trend = ProvenStepBias(), BiasTrend()
        self._fingerprints.update(fingerprints)

    def on_replayed(self, deployment: str, window: ClosedWindow) -> Replay:
        """Learn from a closed window, and tell of it."""
        self._bias.on_window(window.role_steps, window.cost_factors)
        observed, replayed = quantiles_of(window.observed), quantiles_of(*window.replayed)
        self._trend.on_replay(window.closed_us, observed, replayed)
        told = Replay(
            deployment=deployment,
            as_of_us=window.as_of_us,
            window_s=window.window_s,
            closed_us=window.closed_us,
            members=window.members,
            cells=_cells(observed, replayed, quantiles_of(window.levelled)),
            roles=_roles(window, self.factors),
            saturated_ratio=min(max(window.saturated_ratio, 0.0), 1.0),
            trend=_trends(self._trend),
        )
        return told if window.cause is None else _with_cause(told, window.cause)

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "tapes": self.tapes.snapshot(),
            "bias": self._bias.snapshot(),
            "trend": self._trend.snapshot(),
            "fingerprints": self._fingerprints,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The calibration of a snapshot."""
        made = cls()
        made.tapes = WindowTapes.restore(data["tapes"])
        made._bias = ProvenStepBias.restore(data["bias"])
        made._trend = BiasTrend.restore(data["trend"])
        made._fingerprints = dict(data["fingerprints"])
        return made


def _with_cause(told: Replay, found: Attribution) -> Replay:
    return msgspec.structs.replace(
        told,
        cause=found.cause,
        error_log=found.error_log,
        traffic_log=found.traffic_log,
        costs_log=found.costs_log,
        rest_log=found.rest_log,
        evidence=found.evidence,
    )


def _cells(observed: Values, replayed: Values, levelled: Values) -> tuple[ReplayCell, ...]:
    return tuple(
        ReplayCell(
            metric=metric,
            quantile=level,
            observed_s=_finite(observed[metric, level]),
            replayed_s=_finite(replayed[metric, level]),
            levelled_s=_finite(levelled[metric, level]),
        )
        for metric, level in observed
        if (metric, level) in replayed and (metric, level) in levelled
    )


def _finite(value_s: float) -> float | None:
    return value_s if value_s <= MOST_S else None


def _roles(window: ClosedWindow, factors: Factors) -> tuple[RoleBias, ...]:
    return tuple(
        RoleBias(
            role=row.role.value,
            steps=row.steps,
            observed_s=min(row.observed_s, MOST_S),
            predicted_s=min(row.predicted_s, MOST_S),
            factor=factor,
        )
        for row, factor in zip(window.role_steps, factors, strict=True)
    )


def _trends(trend: BiasTrend) -> tuple[BiasTrendCell, ...]:
    found = (trend.trend(level) for level in QUANTILES)
    return tuple(
        BiasTrendCell(
            quantile=each.quantile,
            rounds=each.rounds,
            bias_log=each.bias_log,
            change_log=each.change_log,
            z=each.z,
            grows=each.grows(),
        )
        for each in found
        if each is not None
    )
