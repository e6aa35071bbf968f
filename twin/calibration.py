"""Intervals whose stated coverage holds: default widths, corrected by what closed windows showed. Simulates nothing.

On the log scale a forecast's doubt is the spread of its replications joined with a base for what replications do not
know (costs and traffic that change). An interval's two sides are that scale times a default multiple, which comes from
other data (`twin.interval_defaults`), times a factor learned online: it grows by a step for each window missed on that
side and shrinks by a smaller one for each window that was not, so that misses settle at (1 - level) / 2 per side
whatever the distribution is. Overlapping windows share most of their members: a window counts by the part of it that
is new. The replications' own interval is a floor.
Laws: 0 < low <= value <= high < infinity; a longer run of misses never narrows; the same scores give the same state.

References: Gibbs and Candes, Adaptive Conformal Inference Under Distribution Shift, NeurIPS 2021.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from schemas.scores import Score, ScoreCell
from schemas.slos import Metric
from twin.interval_defaults import BASE_SIGMA, side_multiples
from twin.metrics import CLOSES_AFTER_S, FloatArray
from twin.proven import ProvenMean

US_PER_S = 1_000_000
INTERVAL_LEVEL = 0.9
LEAST_S = 1e-6
_VERSION = 1
_T_95 = 2.919985580353726
"""95 % point of Student's t with 2 degrees of freedom."""

Key = tuple[Metric, float, float]
"""Metric, quantile, horizon in seconds."""

_NO_ERRORS = ProvenMean()


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """How fast intervals follow; all changes are of the log of a factor.

    A side that is missed in a fresh window grows by `gain * (1 - tail)`, one that is not shrinks by `gain * tail`, with
    tail = (1 - level) / 2: `shared_gain` for all metrics of a horizon at once, by their mean, `own_gain` for each
    metric and quantile. `min_factor`, `max_factor` bound the product. The output correction is the mean log error with
    a half-life of `bias_half_life_rounds` fresh windows, as far as it is beyond `bias_errors` standard errors, and
    within `max_bias` (log) either way: following every error made forecasts of recordings worse.
    """

    shared_gain: float = 0.2
    own_gain: float = 0.1
    min_factor: float = 0.5
    max_factor: float = 3.0
    bias_half_life_rounds: float = 20.0
    bias_errors: float = 2.5
    max_bias: float = 0.25

    def __post_init__(self) -> None:
        for name in ("shared_gain", "own_gain", "max_bias"):
            value = getattr(self, name)
            if not 0.0 <= value <= 2.0:
                raise ValueError(f"calibration.{name} must be in [0, 2], got {value}")
        for name in ("bias_half_life_rounds", "bias_errors"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"calibration.{name} must be a finite number > 0, got {value}")
        if not 0.0 < self.min_factor <= 1.0 <= self.max_factor <= 100.0:
            raise ValueError(
                "calibration needs 0 < min_factor <= 1 <= max_factor <= 100, "
                f"got {self.min_factor} and {self.max_factor}"
            )


@dataclass(frozen=True, slots=True)
class Predictive:
    """What one quantile of one metric may turn out to be: a value with its 90 % interval, seconds, 0 < low <= high.

    Each side is half a Student's t with 2 degrees of freedom on the log scale, its 5 % point at the interval's end. Of
    1, 2, 3, 4 and 8 degrees, 2 gave the best breach probabilities on recordings at every horizon.
    """

    value_s: float
    low_s: float
    high_s: float

    def exceeds(self, limit_s: float) -> float:
        """Probability of being over `limit_s` > 0.

        >>> Predictive(1.0, 0.5, 3.0).exceeds(1.0), round(Predictive(1.0, 0.5, 3.0).exceeds(3.0), 3)
        (0.5, 0.05)
        """
        distance = math.log(max(limit_s, LEAST_S) / self.value_s)
        side = math.log(self.high_s / self.value_s) if distance > 0 else math.log(self.value_s / self.low_s)
        return 1.0 - _t_below(distance / max(side, LEAST_S) * _T_95)


@dataclass(slots=True)
class _Sides:
    """Log factors of the low and the high side."""

    low: float = 0.0
    high: float = 0.0

    def step(self, missed_low: float, missed_high: float, gain: float, settings: CalibrationSettings) -> None:
        tail = (1.0 - INTERVAL_LEVEL) / 2
        least, most = math.log(settings.min_factor), math.log(settings.max_factor)
        self.low = min(max(self.low + gain * (missed_low - tail), least), most)
        self.high = min(max(self.high + gain * (missed_high - tail), least), most)


@dataclass(slots=True)
class _State:
    """Everything learned. `shared` and `last_us` by horizon, `own` and `errors` by key.

    `errors`: log(observed / forecast without correction). `remainders`: log(observed / replayed with true costs and
    traffic), by metric and quantile.
    """

    shared: dict[float, _Sides] = field(default_factory=dict)
    own: dict[Key, _Sides] = field(default_factory=dict)
    errors: dict[Key, ProvenMean] = field(default_factory=dict)
    remainders: dict[tuple[Metric, float], ProvenMean] = field(default_factory=dict)
    last_us: dict[float, int] = field(default_factory=dict)
    rounds: float = 0.0


@dataclass(frozen=True, slots=True)
class FrozenCalibration:
    """Calibration as of one instant: log factors (low, high) and log bias per key, for forecasts made now."""

    sides: Mapping[Key, tuple[float, float]]
    bias: Mapping[Key, float]
    shared: Mapping[float, tuple[float, float]]

    def predictive(
        self, metric: Metric, quantile: float, horizon_s: float, replications_s: FloatArray, widen: float = 1.0
    ) -> Predictive | None:
        """The calibrated distribution from one value per replication, float64[R], seconds.

        NaN replications (no member had that metric) are left out, None if none is left. Infinite ones count as the
        longest age a member can have when the window closes. `widen` >= 1 stretches both sides.
        """
        known = replications_s[~np.isnan(replications_s)]
        if known.size == 0:
            return None
        longest_s = horizon_s + CLOSES_AFTER_S
        logs = np.log(np.clip(known, LEAST_S, longest_s))
        centre = forecast_centre(quantile, logs)
        low, high = (float(value) for value in np.quantile(logs, (0.05, 0.95)))
        scale = forecast_scale(metric, logs)
        below, above = self._factors((metric, quantile, horizon_s))
        multiples = side_multiples(metric, horizon_s)
        bias = self.bias.get((metric, quantile, horizon_s), 0.0)
        most = math.log(longest_s)  # what takes longer is unfinished at the closing, however long
        value = min(centre + bias, most)
        side_low = max(scale * multiples[0] * math.exp(below), centre - low) * max(widen, 1.0)
        side_high = max(scale * multiples[1] * math.exp(above), high - centre) * max(widen, 1.0)
        return Predictive(
            value_s=math.exp(value), low_s=math.exp(value - side_low), high_s=math.exp(min(value + side_high, most))
        )

    def _factors(self, key: Key) -> tuple[float, float]:
        """Own factor plus that of the horizon; an unseen horizon takes the nearest one's."""
        shared = (0.0, 0.0)
        if self.shared:
            nearest = min(self.shared, key=lambda seen: (abs(math.log(seen / key[2])), seen))
            shared = self.shared[nearest]
        own = self.sides.get(key, (0.0, 0.0))
        return shared[0] + own[0], shared[1] + own[1]


def forecast_centre(quantile: float, logs: FloatArray) -> float:
    """Log forecast of a window's quantile, from log replications float64[R].

    Their median for the median. A tail that differs from window to window is best foretold above its own median, on the
    way to the quantile of all members together: at the 60 % point, which raised mean skill by half a point.
    """
    level = 0.5 + 0.1 * min(max((quantile - 0.5) / 0.45, 0.0), 1.0)
    return float(np.quantile(logs, level))


def forecast_scale(metric: Metric, logs: FloatArray) -> float:
    """Standard deviation of a forecast on the log scale, from log replications float64[R]: half the span of their
    middle 68 % (one that ran away says little of the others), the error of their median, and the base."""
    low, high = np.quantile(logs, (0.16, 0.84))
    spread = float(high - low) / 2.0 * math.sqrt(1.0 + math.pi / 2 / logs.size)
    return math.hypot(spread, BASE_SIGMA[metric])


class Calibration:
    """What closed windows of one deployment taught about its intervals.

    Parameters
    ----------
    settings
        See `CalibrationSettings`.
    """

    def __init__(self, settings: CalibrationSettings | None = None) -> None:
        self._settings = settings or CalibrationSettings()
        self._state = _State()

    @property
    def rounds(self) -> float:
        """Windows learned from, each by the part of it that was new."""
        return self._state.rounds

    def on_score(self, scored: Score) -> None:
        """One closed window of fine forecasts, in order of `as_of`; one into which a change fell teaches nothing."""
        if scored.intervened or not scored.cells:
            return
        state, settings, horizon_s = self._state, self._settings, scored.horizon_s
        last_us = state.last_us.get(horizon_s)
        fresh = 1.0 if last_us is None else (scored.as_of_us - last_us) / (horizon_s * US_PER_S)
        if fresh <= 0.0:
            return
        fresh = min(fresh, 1.0)
        state.last_us[horizon_s] = scored.as_of_us
        state.rounds += fresh
        missed = {(cell.metric, cell.quantile, horizon_s): _missed(cell) for cell in scored.cells}
        shares = np.mean(list(missed.values()), axis=0)
        shared = state.shared.setdefault(horizon_s, _Sides())
        shared.step(float(shares[0]), float(shares[1]), settings.shared_gain * fresh, settings)
        for key, (low, high) in missed.items():
            state.own.setdefault(key, _Sides()).step(low, high, settings.own_gain * fresh, settings)
        for cell in scored.cells:
            self._learn_bias((cell.metric, cell.quantile, horizon_s), cell, fresh)

    def _learn_bias(self, key: Key, cell: ScoreCell, fresh: float) -> None:
        """Error of the forecast without its correction; a wild window counts as one at the bounds."""
        error = 2 * self._settings.max_bias
        if cell.observed_s is not None:
            error = math.log(max(cell.observed_s, LEAST_S) / max(cell.forecast_s, LEAST_S)) + self._correction(key)
        self._add(self._state.errors.setdefault(key, ProvenMean()), error, fresh)

    def on_replay(
        self,
        observed_s: Mapping[tuple[Metric, float], float],
        levelled_s: Mapping[tuple[Metric, float], float],
    ) -> None:
        """A closed window as recorded, and as the twin gives it with the traffic and the costs that it really had.

        What is left is neither: it goes to the outputs of every horizon. Infinite and missing quantiles are left out.
        """
        for key in sorted(observed_s):
            pair = (observed_s[key], levelled_s.get(key, math.nan))
            if all(math.isfinite(value) and value > 0.0 for value in pair):
                remainder = self._state.remainders.setdefault(key, ProvenMean())
                self._add(remainder, math.log(pair[0] / pair[1]), 1.0)

    def _add(self, mean: ProvenMean, error: float, fresh: float) -> None:
        most = 2 * self._settings.max_bias
        mean.add(min(max(error, -most), most), fresh, self._settings.bias_half_life_rounds)

    def _correction(self, key: Key) -> float:
        """Log correction of an output: what replays left over, and what forecasts missed beside that."""
        state, settings = self._state, self._settings
        remainder = state.remainders.get((key[0], key[1]), _NO_ERRORS).beyond_doubt(
            settings.bias_errors, settings.max_bias
        )
        left = state.errors.get(key, _NO_ERRORS).beyond_doubt(settings.bias_errors, settings.max_bias, remainder)
        return min(max(remainder + left, -settings.max_bias), settings.max_bias)

    def reset(self) -> None:
        """Back to the defaults: another engine, another distribution."""
        self._state = _State(last_us=self._state.last_us)

    def freeze(self) -> FrozenCalibration:
        """What a forecast made now uses."""
        least, most = math.log(self._settings.min_factor), math.log(self._settings.max_factor)
        return FrozenCalibration(
            sides={key: (sides.low, sides.high) for key, sides in self._state.own.items()},
            bias={key: self._correction(key) for key in self._state.errors},
            shared={
                horizon_s: (min(max(sides.low, least), most), min(max(sides.high, least), most))
                for horizon_s, sides in self._state.shared.items()
            },
        )

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; settings are not in it."""
        state = self._state
        return {
            "version": _VERSION,
            "rounds": state.rounds,
            "last_us": [[horizon_s, at_us] for horizon_s, at_us in sorted(state.last_us.items())],
            "shared": [[horizon_s, sides.low, sides.high] for horizon_s, sides in sorted(state.shared.items())],
            "own": [[*key, sides.low, sides.high] for key, sides in sorted(state.own.items())],
            "errors": [[*key, e.weight, e.total, e.total2] for key, e in sorted(state.errors.items())],
            "remainders": [[*key, e.weight, e.total, e.total2] for key, e in sorted(state.remainders.items())],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], settings: CalibrationSettings | None = None) -> Self:
        """The calibration of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"calibration snapshot has version {state.get('version')}, this code reads {_VERSION}")
        calibration = cls(settings)
        calibration._state = _State(
            shared={float(horizon_s): _Sides(low, high) for horizon_s, low, high in state["shared"]},
            own={(metric, q, float(h)): _Sides(low, high) for metric, q, h, low, high in state["own"]},
            errors={(metric, q, float(h)): ProvenMean(*sums) for metric, q, h, *sums in state["errors"]},
            remainders={  # older snapshots have none
                (metric, q): ProvenMean(*sums) for metric, q, *sums in state.get("remainders", [])
            },
            last_us={float(horizon_s): at_us for horizon_s, at_us in state["last_us"]},
            rounds=state["rounds"],
        )
        return calibration


def _missed(cell: ScoreCell) -> tuple[float, float]:
    """1 for the side on which the observed value fell out of the interval, else 0."""
    if cell.covered:
        return 0.0, 0.0
    above = cell.observed_s is None or cell.observed_s > cell.high_s
    return (0.0, 1.0) if above else (1.0, 0.0)


def _t_below(value: float) -> float:
    """Distribution function of Student's t with 2 degrees of freedom, in closed form."""
    return 0.5 + value / (2.0 * math.sqrt(2.0 + value * value))
