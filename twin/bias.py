"""Bias of the twin on closed windows: bounded factors per step role, and whether the bias grows. Runs no simulation.

A closed window is run through the twin with its real requests. What its steps took against what their costs said gives
one factor per role, so that what-ifs are corrected too; what latencies then still miss is left to the output
correction of `twin.calibration`. The first round moves a factor all the way, later ones by their share.
Laws: a factor stays within its bounds whatever comes in; a window without steps of a role moves nothing; rounds of
equal bias have no trend.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from schemas.slos import Metric
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role
from twin.metrics import QUANTILES
from twin.proven import ProvenMean

ROLES = (Role.PREFILL, Role.DECODE, Role.MIXED)
Factors = tuple[float, float, float]
"""What costs are multiplied with, in the order of `ROLES`."""
NO_FACTORS: Factors = (1.0, 1.0, 1.0)
MAX_ROUNDS = 1024
_ENOUGH_STEPS = 20.0
_MIN_TREND_ROUNDS = 8
_VERSION = 1


@dataclass(frozen=True, slots=True)
class RoleSteps:
    """Steps of one role in one closed window: how many, seconds they took, seconds their costs (with factors) said."""

    role: Role
    steps: int
    observed_s: float
    predicted_s: float

    def corrected(self, bias: "StepBias") -> "RoleSteps":
        """The same steps against costs without factors, as `bias` would have had them."""
        return replace(self, predicted_s=self.predicted_s * bias.factor(self.role))


class StepBias:
    """Factors on step costs, one per role, from closed windows.

    Parameters
    ----------
    half_life_rounds
        Rounds to lose half the weight.
    max_factor
        A factor stays within 1 / max_factor .. max_factor.
    """

    def __init__(self, half_life_rounds: float = 4.0, max_factor: float = 2.0) -> None:
        if not (math.isfinite(half_life_rounds) and half_life_rounds > 0):
            raise ValueError(f"half_life_rounds must be a finite number > 0, got {half_life_rounds}")
        if not 1.0 <= max_factor <= 100.0:
            raise ValueError(f"max_factor must be in [1, 100], got {max_factor}")
        self._half_life_rounds = half_life_rounds
        self._max_factor = max_factor
        self._bound = math.log(max_factor)
        self._logs = dict.fromkeys(ROLES, 0.0)
        self._weights = dict.fromkeys(ROLES, 0.0)

    def on_window(self, found: tuple[RoleSteps, ...]) -> None:
        """Learn from one closed window; rows without steps, or whose seconds are not finite and > 0, are left out."""
        keep = 0.5 ** (1.0 / self._half_life_rounds)
        for row in found:
            times = (row.observed_s, row.predicted_s)
            if row.steps <= 0 or not all(math.isfinite(value) and value > 0 for value in times):
                continue
            trust = row.steps / (row.steps + _ENOUGH_STEPS)
            weight = self._weights[row.role] * keep + trust
            remaining = math.log(row.observed_s / row.predicted_s)
            moved = self._logs[row.role] + trust / max(weight, 1.0) * remaining
            self._logs[row.role] = min(max(moved, -self._bound), self._bound)
            self._weights[row.role] = weight

    def factor(self, role: Role) -> float:
        """What costs of this role are to be multiplied with; 1 before any window."""
        return math.exp(self._logs[role])

    def corrected(self, cost: FrozenStepCost) -> FrozenStepCost:
        """The same costs, each role times its factor."""
        return scaled(cost, (self.factor(Role.PREFILL), self.factor(Role.DECODE), self.factor(Role.MIXED)))

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        return {
            "version": _VERSION,
            "half_life_rounds": self._half_life_rounds,
            "max_factor": self._max_factor,
            "roles": [[role.value, self._logs[role], self._weights[role]] for role in ROLES],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The bias of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"step bias snapshot has version {state.get('version')}, this code reads {_VERSION}")
        bias = cls(state["half_life_rounds"], state["max_factor"])
        for role, log, weight in state["roles"]:
            bias._logs[Role(role)], bias._weights[Role(role)] = log, weight
        return bias


class ProvenStepBias:
    """Factors on step costs that are learned beside: only what stays wrong, window after window, moves them.

    A learner that follows the level leaves errors that come and go; following those too made costs worse. A factor is
    the mean log error of its role as far as it is beyond `errors` standard errors.

    Parameters
    ----------
    half_life_rounds
        Windows to lose half the weight.
    errors
        Standard errors it takes to believe a bias.
    max_factor
        A factor stays within 1 / max_factor .. max_factor.
    """

    def __init__(self, half_life_rounds: float = 20.0, errors: float = 2.5, max_factor: float = 1.5) -> None:
        if not (math.isfinite(half_life_rounds) and half_life_rounds > 0 and math.isfinite(errors) and errors > 0):
            raise ValueError(
                f"half_life_rounds and errors must be finite numbers > 0, got {half_life_rounds}, {errors}"
            )
        if not 1.0 <= max_factor <= 100.0:
            raise ValueError(f"max_factor must be in [1, 100], got {max_factor}")
        self._half_life_rounds = half_life_rounds
        self._errors = errors
        self._bound = math.log(max_factor)
        self._roles = {role: ProvenMean() for role in ROLES}

    def on_window(self, found: tuple[RoleSteps, ...], factors: Factors) -> None:
        """Learn from one closed window whose costs had been multiplied with `factors`."""
        for row in found:
            times = (row.observed_s, row.predicted_s)
            if row.steps <= 0 or not all(math.isfinite(value) and value > 0 for value in times):
                continue
            error = math.log(row.observed_s / row.predicted_s) + math.log(factors[ROLES.index(row.role)])
            error = min(max(error, -2 * self._bound), 2 * self._bound)
            self._roles[row.role].add(error, row.steps / (row.steps + _ENOUGH_STEPS), self._half_life_rounds)

    @property
    def factors(self) -> Factors:
        """What costs are to be multiplied with; 1 while nothing is proven."""
        prefill, decode, mixed = (math.exp(self._roles[role].beyond_doubt(self._errors, self._bound)) for role in ROLES)
        return prefill, decode, mixed

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; settings are not in it."""
        rows = [[role.value, mean.weight, mean.total, mean.total2] for role, mean in self._roles.items()]
        return {"version": _VERSION, "roles": rows}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The bias of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"step bias snapshot has version {state.get('version')}, this code reads {_VERSION}")
        bias = cls()
        bias._roles = {Role(role): ProvenMean(*sums) for role, *sums in state["roles"]}
        return bias


def scaled(cost: FrozenStepCost, factors: Factors) -> FrozenStepCost:
    """The same costs, each role times its factor."""
    prefill, decode, mixed = factors
    return replace(
        cost,
        prefill=cost.prefill.scaled(prefill),
        decode=cost.decode.scaled(decode),
        mixed=cost.mixed.scaled(mixed),
    )


@dataclass(frozen=True, slots=True)
class Trend:
    """Bias of one quantile over rounds, as log(observed / twin), the mean over metrics.

    `bias_log` is its mean over the newest quarter of rounds, `change_log` how far |bias| moved along a fitted line from
    first to last round, `z` that change over its standard error, neighbouring rounds' correlation taken into account.
    """

    quantile: float
    rounds: int
    bias_log: float
    change_log: float
    z: float

    def grows(self, least_log: float = 0.05, least_z: float = 2.5) -> bool:
        """Whether |bias| rose by more than `least_log` and more than chance explains."""
        return self.change_log > least_log and self.z > least_z


class BiasTrend:
    """Log bias of replayed windows at each quantile, the newest `MAX_ROUNDS` of them."""

    def __init__(self) -> None:
        self._rounds: list[tuple[int, tuple[float | None, ...]]] = []

    def on_replay(
        self,
        closed_us: int,
        observed_s: Mapping[tuple[Metric, float], float],
        twin_s: Mapping[tuple[Metric, float], float],
    ) -> None:
        """One window: its quantiles as recorded and as replayed, seconds. Infinite and missing ones are left out."""
        row = tuple(_bias_log(observed_s, twin_s, quantile) for quantile in QUANTILES)
        if any(value is not None for value in row):
            self._rounds.append((closed_us, row))
            del self._rounds[:-MAX_ROUNDS]

    def trend(self, quantile: float) -> Trend | None:
        """The trend at one of `QUANTILES`; None for fewer than eight rounds."""
        column = QUANTILES.index(quantile)
        found = [(at_us, row[column]) for at_us, row in self._rounds]
        values = np.array([value for _, value in found if value is not None], dtype=np.float64)
        if values.size < _MIN_TREND_ROUNDS:
            return None
        at_s = np.array([at_us / 1e6 for at_us, value in found if value is not None])
        newest = values[-max(values.size // 4, 2) :]
        change, z = _line(at_s - at_s[0], np.abs(values))
        return Trend(quantile, values.size, float(newest.mean()), change, z)

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        return {"version": _VERSION, "rounds": [[at_us, list(row)] for at_us, row in self._rounds]}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The trend of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"bias trend snapshot has version {state.get('version')}, this code reads {_VERSION}")
        trend = cls()
        trend._rounds = [(at_us, tuple(row)) for at_us, row in state["rounds"]]
        return trend


def _bias_log(
    observed_s: Mapping[tuple[Metric, float], float], twin_s: Mapping[tuple[Metric, float], float], quantile: float
) -> float | None:
    logs = [
        math.log(observed_s[key] / twin_s[key])
        for key in sorted(observed_s)
        if key[1] == quantile and key in twin_s and _usable(observed_s[key]) and _usable(twin_s[key])
    ]
    return sum(logs) / len(logs) if logs else None


def _usable(value_s: float) -> bool:
    return math.isfinite(value_s) and value_s > 0


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Change of y along a fitted line over the span of x, and its z with the residuals' lag-one correlation."""
    centred = x - x.mean()
    spread = float(np.sum(centred**2))
    if spread == 0.0:
        return 0.0, 0.0
    slope = float(np.sum(centred * (y - y.mean())) / spread)
    left = y - y.mean() - slope * centred
    variance = float(np.sum(left**2)) / max(y.size - 2, 1)
    if variance <= 1e-18:
        change = slope * float(x[-1])
        return change, math.copysign(1e6, change) if abs(change) > 1e-9 else 0.0
    lag = float(np.sum(left[1:] * left[:-1]) / np.sum(left**2))
    lag = min(max(lag, 0.0), 0.9)
    error = math.sqrt(variance / spread * (1.0 + lag) / (1.0 - lag))
    return slope * float(x[-1]), slope / error
