"""Steps of one window against the costs that a forecast began it with, as sums: what they took, what was expected.

Sums per engine and role, and per second and role over all engines; no step is kept. Learns nothing. Laws: a step is
counted once, in the window that its end falls into; blocks added in any cut give the same sums but for rounding.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from twin.attribution import StepEvidence, step_evidence
from twin.bias import ROLES, RoleSteps, scaled
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost
from twin.cost.shape import Role
from twin.metrics import BoolArray, FloatArray, IntArray
from twin.step_errors import frozen_s

US_PER_S = 1_000_000
ENOUGH_STEPS = 20
MAX_LEVEL = 10.0
_IDLE_DURATIONS = 1.0
_STEPS, _OBSERVED, _PREDICTED, _WAITED = range(4)
_PREFILL_TOKENS, _DECODES = 1, 3


class WindowSteps:
    """Sums over the steps that end in (start, start + window].

    Parameters
    ----------
    costs
        Of each engine, as the forecast had them; steps of other engines are passed over.
    """

    def __init__(self, costs: Mapping[str, FrozenStepCost], start_us: int, window_s: float) -> None:
        self._costs = dict(costs)
        self._start_us = start_us
        self._end_us = start_us + round(window_s * US_PER_S)
        self._engines: dict[str, FloatArray] = {name: np.zeros((len(ROLES), 4)) for name in costs}
        self._seconds: FloatArray = np.zeros((int(np.ceil(window_s)), len(ROLES), 3))

    def add(
        self, engine: str, block: StepBlock, *, rows: BoolArray | None = None, waiting: BoolArray | None = None
    ) -> None:
        """Count steps of one engine. `rows` (n,): which ones; `waiting` (n,): in which ones requests waited."""
        cost = self._costs.get(engine)
        if cost is None or not len(block):
            return
        used = (block.shapes[:, _PREFILL_TOKENS] + block.shapes[:, _DECODES] > 0) & (block.duration_s > 0)
        used &= (block.at_us > self._start_us) & (block.at_us <= self._end_us)
        if rows is not None:
            used &= rows
        if not used.any():
            return
        shapes = block.shapes[used]
        observed_s = block.duration_s[used] + _gaps_s(block.duration_s[used], block.gap_s[used])
        waited_s = np.zeros(len(shapes)) if waiting is None else observed_s * waiting[used]
        roles = _roles(shapes)
        columns = (np.ones(len(shapes)), observed_s, frozen_s(cost, shapes), waited_s)
        seconds = (block.at_us[used] - self._start_us - 1) // US_PER_S
        for number, column in enumerate(columns):
            self._engines[engine][:, number] += np.bincount(roles, column, len(ROLES))
            if number != _WAITED:
                cells = np.bincount(seconds * len(ROLES) + roles, column, self._seconds.shape[0] * len(ROLES))
                self._seconds[:, :, number] += cells.reshape(-1, len(ROLES))

    def role_steps(self) -> tuple[RoleSteps, ...]:
        """All engines together, in the order of `ROLES`."""
        total = sum(self._engines.values(), np.zeros((len(ROLES), 4)))
        return tuple(
            RoleSteps(role, int(row[_STEPS]), float(row[_OBSERVED]), float(row[_PREDICTED]))
            for role, row in zip(ROLES, total, strict=True)
        )

    def levelled(self, engine: str) -> FrozenStepCost:
        """The engine's costs at the level that the window's steps had, per role where it has enough of them."""
        cost, sums = self._costs[engine], self._engines[engine]
        total = sums.sum(axis=0)
        if not total[_STEPS]:
            return cost
        whole = _level(total)
        found = {
            role: _level(row) if row[_STEPS] >= ENOUGH_STEPS else whole for role, row in zip(ROLES, sums, strict=True)
        }
        return scaled(cost, (found[Role.PREFILL], found[Role.DECODE], found[Role.MIXED]))

    def evidence(self) -> StepEvidence | None:
        """What the steps of all engines say of the costs; None without a step."""
        seconds, roles = np.nonzero(self._seconds[:, :, _STEPS])
        if not seconds.size:
            return None
        cells = self._seconds[seconds, roles]
        return step_evidence(
            seconds.astype(np.float64),
            roles,
            cells[:, _OBSERVED],
            cells[:, _PREDICTED],
            steps=cells[:, _STEPS].astype(np.int64),
        )

    @property
    def saturated_ratio(self) -> float:
        """Share of step time with requests waiting, of the most saturated engine, as far as `waiting` was told."""
        totals = [sums.sum(axis=0) for sums in self._engines.values()]
        return max((float(row[_WAITED] / row[_OBSERVED]) for row in totals if row[_OBSERVED] > 0), default=0.0)

    @property
    def prefill_ratio(self) -> float:
        """Share of step time in prefill, half of a mixed step's; a half where there was no step."""
        took_s = {row.role: row.observed_s for row in self.role_steps()}
        total_s = sum(took_s.values())
        return (took_s[Role.PREFILL] + took_s[Role.MIXED] / 2) / total_s if total_s > 0 else 0.5

    def snapshot(self) -> dict[str, Any]:
        """Plain data; costs and bounds are not in it."""
        met = np.argwhere(self._seconds[:, :, _STEPS])
        return {
            "engines": {name: sums.tolist() for name, sums in self._engines.items()},
            "seconds": [[int(second), int(role), *self._seconds[second, role].tolist()] for second, role in met],
        }

    @classmethod
    def restore(
        cls, data: Mapping[str, Any], costs: Mapping[str, FrozenStepCost], start_us: int, window_s: float
    ) -> Self:
        """The sums of a snapshot."""
        made = cls(costs, start_us, window_s)
        made._engines = {name: np.array(sums, np.float64) for name, sums in data["engines"].items()}
        for second, role, *cell in data["seconds"]:
            made._seconds[second, role] = cell
        return made


def _level(sums: FloatArray) -> float:
    return float(min(max(sums[_OBSERVED] / sums[_PREDICTED], 1.0 / MAX_LEVEL), MAX_LEVEL))


def _roles(shapes: FloatArray) -> IntArray:
    prefill, decode = shapes[:, _PREFILL_TOKENS] > 0, shapes[:, _DECODES] > 0
    decoding = np.where(decode, ROLES.index(Role.DECODE), ROLES.index(Role.PREFILL))
    return np.where(prefill & decode, ROLES.index(Role.MIXED), decoding)


def _gaps_s(duration_s: FloatArray, gap_s: FloatArray) -> FloatArray:
    """Time between steps while work waited, (n,); the mean where it is unknown, or so long that none waited."""
    usable = (gap_s >= 0.0) & (gap_s <= _IDLE_DURATIONS * np.median(duration_s))
    mean_s = float(gap_s[usable].mean()) if usable.any() else 0.0
    return np.where(usable, gap_s, mean_s)
