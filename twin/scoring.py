"""A forecast against what then happened, and the running account of it. Does not forecast, calibrate or alert.

A window's members are the requests that arrived in (as_of, as_of + horizon]. It closes 60 s after its end; a member
that is unfinished then has latency +infinity in quantiles. In a loss it counts with its age at the closing, the least
its latency can be, so that losses stay finite and no forecast gains by a member nobody saw finish. An infinite quantile
is covered by an interval that reaches the longest age a member can have at the closing: nobody can see further.
Laws: the loss of any forecast is at least that of the hindsight-best constant; scoring a window twice gives the same
score; a window into which a change fell counts for nothing in the account.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from schemas.forecasts import Forecast, HorizonForecast, LatencyEstimate
from schemas.scores import Score, ScoreCell
from twin.baselines import Baseline, Baselines
from twin.histogram import LogHistogram
from twin.metrics import CLOSES_AFTER_S, FloatArray, IntArray, Latencies, quantile

US_PER_S = 1_000_000
MAX_S = 1e9
BASELINE_SCENARIO = "baseline"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Members:
    """Requests of one closed window: `arrived_us` int64[n] and their latencies as known at `closed_us`.

    Refused requests (every latency NaN) are members that count in no quantile.
    """

    arrived_us: IntArray
    latencies: Latencies
    closed_us: int

    def within(self, as_of_us: int, horizon_s: float) -> Self:
        """Those that arrived in (as_of, as_of + horizon]."""
        end_us = as_of_us + round(horizon_s * US_PER_S)
        inside = (self.arrived_us > as_of_us) & (self.arrived_us <= end_us)
        return type(self)(self.arrived_us[inside], self.latencies[inside], self.closed_us)

    @property
    def ages_s(self) -> FloatArray:
        """Seconds from each arrival to the closing."""
        ages: FloatArray = (self.closed_us - self.arrived_us) / US_PER_S
        return ages

    @property
    def unfinished(self) -> int:
        """How many had not finished."""
        return int(np.isinf(self.latencies.e2e_s).sum())


def closes_us(as_of_us: int, horizon_s: float) -> int:
    """Event time at which the window of a forecast is scored."""
    return as_of_us + round((horizon_s + CLOSES_AFTER_S) * US_PER_S)


def pinball_loss_s(values_s: FloatArray, forecast_s: float, level: float) -> float:
    """Mean pinball loss of one constant over finite values, seconds; 0 only if every value equals the forecast.

    References: Koenker and Bassett, Regression Quantiles, Econometrica 1978.

    >>> pinball_loss_s(np.array([1.0, 3.0]), 2.0, 0.5)
    0.5
    """
    over = values_s - forecast_s
    return float(np.maximum(level * over, (level - 1.0) * over).mean())


def winkler_s(low_s: float, high_s: float, observed_s: float, interval_level: float) -> float:
    """Interval score: the width, plus 2 / (1 - level) times the distance by which the value missed. Lower is better.

    References: Winkler, A Decision-Theoretic Approach to Interval Estimation, JASA 1972.

    >>> winkler_s(1.0, 2.0, 2.5, 0.9)
    11.0
    """
    missed = max(low_s - observed_s, 0.0) + max(observed_s - high_s, 0.0)
    return round(high_s - low_s + missed * 2.0 / (1.0 - interval_level), 12)


def score(
    forecast: Forecast,
    horizon_s: float,
    members: Members,
    baselines: Baselines,
    *,
    intervened: bool = False,
    saturated_ratio: float = 0.0,
) -> Score:
    """Score one horizon of the baseline scenario of `forecast`. `members` may hold others too; they are left out.

    `baselines` are those made at `as_of`. Raises ValueError if the forecast has no such horizon, or if the window had
    not closed when the members were taken.
    """
    expected = horizon_of(forecast, horizon_s)
    due_us = closes_us(forecast.as_of_us, horizon_s)
    if members.closed_us < due_us:
        raise ValueError(
            f"the window closes at {due_us} us, its members were taken at {members.closed_us}; score later"
        )
    inside = members.within(forecast.as_of_us, horizon_s)
    cells = [
        _cell(estimate, inside, baselines.get((estimate.metric, estimate.quantile)), forecast, horizon_s)
        for estimate in expected.latencies
    ]
    return Score(
        deployment=forecast.deployment,
        as_of_us=forecast.as_of_us,
        horizon_s=horizon_s,
        closed_us=members.closed_us,
        phase=forecast.phase,
        members=inside.arrived_us.size,
        unfinished=inside.unfinished,
        cells=tuple(cell for cell in cells if cell is not None),
        intervened=intervened,
        arrivals_forecast_per_s=expected.arrivals_per_s.value,
        arrivals_observed_per_s=inside.arrived_us.size / horizon_s,
        saturated_ratio=saturated_ratio,
    )


def horizon_of(forecast: Forecast, horizon_s: float, scenario: str = BASELINE_SCENARIO) -> HorizonForecast:
    """One horizon of one scenario. Raises ValueError if the forecast has none such."""
    for candidate in forecast.scenarios:
        if candidate.scenario == scenario:
            for horizon in candidate.horizons:
                if horizon.horizon_s == horizon_s:
                    return horizon
    raise ValueError(f"the forecast of tick {forecast.tick} has no horizon of {horizon_s} s in scenario {scenario!r}")


def _cell(
    estimate: LatencyEstimate, members: Members, baseline: Baseline | None, forecast: Forecast, horizon_s: float
) -> ScoreCell | None:
    """One quantile of one metric; None if no member has that metric."""
    values = members.latencies.of(estimate.metric)
    level = estimate.quantile
    observed_s = quantile(values, level)
    if math.isnan(observed_s):
        return None
    known = ~np.isnan(values)
    finite = np.where(np.isinf(values), members.ages_s, values)[known]
    best_s = _best_constant_s(finite, level)
    naive = baseline or Baseline()
    return ScoreCell(
        metric=estimate.metric,
        quantile=level,
        forecast_s=estimate.value_s,
        low_s=estimate.low_s,
        high_s=estimate.high_s,
        observed_s=observed_s if math.isfinite(observed_s) else None,
        covered=estimate.low_s <= observed_s and (estimate.high_s >= min(observed_s, horizon_s + CLOSES_AFTER_S)),
        loss_s=_bounded(pinball_loss_s(finite, estimate.value_s, level)),
        winkler_s=_bounded(
            winkler_s(estimate.low_s, estimate.high_s, quantile(finite, level), forecast.interval_level)
        ),
        hindsight_loss_s=_bounded(pinball_loss_s(finite, best_s, level)),
        persistence_loss_s=_loss_of(naive.persistence_s, finite, level),
        history_loss_s=_loss_of(naive.history_s, finite, level),
        trend_loss_s=_loss_of(naive.trend_s, finite, level),
    )


def _best_constant_s(values_s: FloatArray, level: float) -> float:
    """The constant of least pinball loss: an order statistic, where a window's quantile interpolates between two."""
    rank = max(math.ceil(level * values_s.size) - 1, 0)
    return float(np.partition(values_s, rank)[rank])


def _loss_of(constant_s: float | None, values_s: FloatArray, level: float) -> float | None:
    return None if constant_s is None else _bounded(pinball_loss_s(values_s, constant_s, level))


def _bounded(value_s: float) -> float:
    return min(max(value_s, 0.0), MAX_S)


@dataclass(slots=True)
class _Account:
    """Sums over the scored windows of one (metric, quantile, horizon)."""

    windows: int = 0
    covered: int = 0
    loss_s: float = 0.0
    winkler_s: float = 0.0
    compared: int = 0
    compared_loss_s: float = 0.0
    persistence_s: float = 0.0
    hindsight_s: float = 0.0
    histories: int = 0
    history_loss_s: float = 0.0
    history_s: float = 0.0
    trends: int = 0
    trend_loss_s: float = 0.0
    trend_s: float = 0.0
    recent_loss_s: float = 0.0
    recent_persistence_s: float = 0.0
    log_error: float = 0.0
    seen_finite: int = 0
    widths: LogHistogram = field(default_factory=LogHistogram)

    def add(self, cell: ScoreCell, keep_ratio: float) -> None:
        self.windows += 1
        self.covered += cell.covered
        self.loss_s += cell.loss_s
        self.winkler_s += cell.winkler_s
        self.widths.add(min(cell.high_s / max(cell.low_s, 1e-6), 1e9))
        if cell.observed_s is not None:
            self.seen_finite += 1
            self.log_error += math.log(max(cell.observed_s, 1e-6) / max(cell.forecast_s, 1e-6))
        if cell.persistence_loss_s is not None:
            self.compared += 1
            self.compared_loss_s += cell.loss_s
            self.persistence_s += cell.persistence_loss_s
            self.hindsight_s += cell.hindsight_loss_s
            self.recent_loss_s = self.recent_loss_s * keep_ratio + cell.loss_s
            self.recent_persistence_s = self.recent_persistence_s * keep_ratio + cell.persistence_loss_s
        if cell.history_loss_s is not None:
            self.histories += 1
            self.history_loss_s += cell.loss_s
            self.history_s += cell.history_loss_s
        if cell.trend_loss_s is not None:
            self.trends += 1
            self.trend_loss_s += cell.loss_s
            self.trend_s += cell.trend_loss_s


class SkillLedger:
    """Every score of one deployment, summed per metric, quantile and horizon; O(1) memory, windows never re-read.

    Parameters
    ----------
    half_life_s
        Of the recent skill, in event time. The other figures are over all windows.
    """

    def __init__(self, half_life_s: float = 1800.0) -> None:
        if not (math.isfinite(half_life_s) and half_life_s > 0):
            raise ValueError(f"half_life_s must be a finite number > 0, got {half_life_s}")
        self._half_life_s = half_life_s
        self._accounts: dict[tuple[str, float, float], _Account] = {}
        self._last_us: dict[float, int] = {}
        self.intervened = 0

    def add(self, scored: Score) -> None:
        """Account for one closed window; one into which a change fell is only counted as `intervened`."""
        if scored.intervened:
            self.intervened += 1
            return
        elapsed_us = scored.as_of_us - self._last_us.get(scored.horizon_s, scored.as_of_us)
        self._last_us[scored.horizon_s] = max(scored.as_of_us, self._last_us.get(scored.horizon_s, 0))
        keep_ratio = 0.5 ** (max(elapsed_us, 0) / US_PER_S / self._half_life_s)
        for cell in scored.cells:
            key = (cell.metric, cell.quantile, scored.horizon_s)
            self._accounts.setdefault(key, _Account()).add(cell, keep_ratio)

    def rows(self) -> list[dict[str, Any]]:
        """One row per metric, quantile and horizon, in that order; a ratio without a base is None.

        `skill_x` is 1 - loss / loss of x over the windows that have x; `share_of_ceiling` is the part of the way from
        persistence to the hindsight-best constant. `width_ratio` is the median of high / low, `bias_ratio` the
        geometric mean of observed / forecast.
        """
        return [self._row(*key, account) for key, account in sorted(self._accounts.items())]

    def skill(
        self, metrics: tuple[str, ...] = ("ttft_s", "e2e_s"), levels: tuple[float, ...] = (0.5, 0.95)
    ) -> float | None:
        """Recent skill against persistence, the mean over the cells of `metrics` and `levels`; None before any."""
        found = [
            1.0 - account.recent_loss_s / account.recent_persistence_s
            for (metric, level, _), account in sorted(self._accounts.items())
            if metric in metrics and level in levels and account.recent_persistence_s > 0
        ]
        return sum(found) / len(found) if found else None

    def _row(self, metric: str, level: float, horizon_s: float, account: _Account) -> dict[str, Any]:
        gained_s = account.persistence_s - account.compared_loss_s
        return {
            "metric": metric,
            "quantile": level,
            "horizon_s": horizon_s,
            "n": account.windows,
            "coverage90": account.covered / account.windows,
            "width_ratio": account.widths.quantile(0.5),
            "skill_persistence": _gain(account.compared_loss_s, account.persistence_s),
            "skill_history": _gain(account.history_loss_s, account.history_s),
            "skill_trend": _gain(account.trend_loss_s, account.trend_s),
            "share_of_ceiling": _share(gained_s, account.persistence_s - account.hindsight_s),
            "loss_s": account.loss_s / account.windows,
            "winkler_s": account.winkler_s / account.windows,
            "bias_ratio": math.exp(account.log_error / account.seen_finite) if account.seen_finite else None,
        }

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        accounts = [[*key, _plain(account)] for key, account in sorted(self._accounts.items())]
        return {
            "version": _VERSION,
            "half_life_s": self._half_life_s,
            "intervened": self.intervened,
            "last_us": [[horizon_s, at_us] for horizon_s, at_us in sorted(self._last_us.items())],
            "accounts": accounts,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The ledger of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"skill ledger snapshot has version {state.get('version')}, this code reads {_VERSION}")
        ledger = cls(half_life_s=state["half_life_s"])
        ledger.intervened = state["intervened"]
        ledger._last_us = {float(horizon_s): int(at_us) for horizon_s, at_us in state["last_us"]}
        for metric, level, horizon_s, sums in state["accounts"]:
            account = _Account(**{**sums, "widths": LogHistogram.restore(sums["widths"])})
            ledger._accounts[(metric, float(level), float(horizon_s))] = account
        return ledger


def _plain(account: _Account) -> dict[str, Any]:
    sums = {each.name: getattr(account, each.name) for each in fields(account) if each.name != "widths"}
    return sums | {"widths": account.widths.snapshot()}


def _gain(loss_s: float, naive_s: float) -> float | None:
    return 1.0 - loss_s / naive_s if naive_s > 0 else None


def _share(gained_s: float, possible_s: float) -> float | None:
    return gained_s / possible_s if possible_s > 0 else None
