"""Durations of span classes per step shape, learned where steps carry them. Explains a step's time; simulates nothing.

One set of rows serves all classes: the same weighted least squares as the step's own, with a moment per class, so a
class that is zero in most steps is no special case. The level of the step is taken out of its classes too.
Law: every predicted class is finite and >= 0, and rows refused by the step's gate never come here.
"""

from collections.abc import Mapping
from typing import Any, Final, Self

import numba
import numpy as np

from twin.cost.block import FloatArray, IntArray
from twin.cost.fit import PACKED, STRATA, WIDTH, add_row, expand, scale, solve, stratum_of, unpack
from twin.cost.strata import FLOOR_ROWS

MAX_CLASSES: Final = 32
SOLVE_ROUNDS: Final = 4
VERSION: Final = 1


class ClassCosts:
    """Learned durations per class of one engine. `half_life_s`: seconds to lose half the weight of a like shape."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self.refused = 0
        self._names: list[str] = []
        self._gram = np.zeros((STRATA, PACKED))
        self._weight = np.zeros(STRATA)
        self._touched_us = np.zeros(STRATA, dtype=np.int64)
        self._moments = np.zeros((0, STRATA, WIDTH))
        self._fitted: FloatArray | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Classes met, in the order of their first step."""
        return tuple(self._names)

    def learn_many(
        self,
        at_us: IntArray,
        shapes: FloatArray,
        shape_s: FloatArray,
        level: FloatArray,
        class_s: Mapping[str, FloatArray],
    ) -> None:
        """Learn rows (n,) of steps that were accepted; `shape_s` and `level` as the step's model had them.

        Rows whose classes are NaN are passed over; rows with a value that is infinite or < 0 are refused.
        """
        for name in class_s:
            if name not in self._names and len(self._names) < MAX_CLASSES:
                self._names.append(name)
                self._moments = np.concatenate([self._moments, np.zeros((1, STRATA, WIDTH))])
        columns = [class_s[name] if name in class_s else np.zeros(len(at_us)) for name in self._names]
        values = np.ascontiguousarray(np.stack(columns, axis=1))
        told = ~np.isnan(values).any(axis=1)
        good = told & np.isfinite(values).all(axis=1) & (values >= 0.0).all(axis=1)
        self.refused += int((told & ~good).sum())
        if good.any():
            sums = (self._gram, self._moments, self._weight, self._touched_us)
            _learn(*sums, self.half_life_s, at_us[good], shapes[good], shape_s[good], values[good] / level[good, None])
            self._fitted = None

    def rescale(self, level: float) -> None:
        """Follow the step's model when it moves `level` into its shape: rows learned so far change their unit."""
        scale(self._gram, 1.0 / (level * level))
        scale(self._moments, 1.0 / level)
        self._fitted = None

    def predict(self, shape: FloatArray, level: float) -> dict[str, float]:
        """Seconds per class of one shape (5,) at a level; empty before the first row."""
        if not self._names or not self._weight.any():
            return {}
        if self._fitted is None:
            self._fitted = _fit(self._gram, self._moments, self._weight)
        features = np.zeros(WIDTH)
        expand(shape, features)
        return {name: float(features @ row) * level for name, row in zip(self._names, self._fitted, strict=True)}

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; strata without rows are left out."""
        met = np.flatnonzero(self._weight)
        return {
            "version": VERSION,
            "half_life_s": self.half_life_s,
            "refused": self.refused,
            "names": list(self._names),
            "strata": met.tolist(),
            "gram": self._gram[met].tolist(),
            "weight": self._weight[met].tolist(),
            "touched_us": self._touched_us[met].tolist(),
            "moments": self._moments[:, met].tolist(),
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The costs of a snapshot. Raises ValueError if it is of another version or damaged."""
        if data.get("version") != VERSION:
            raise ValueError(f"class cost snapshot: version {data.get('version')!r} cannot be read, expected {VERSION}")
        try:
            costs = cls(float(data["half_life_s"]))
            costs.refused = int(data["refused"])
            costs._names = [str(name) for name in data["names"]]
            met = np.array(data["strata"], dtype=np.int64)
            classes, strata = len(costs._names), len(met)
            costs._moments = np.zeros((classes, STRATA, WIDTH))
            if strata:
                costs._gram[met] = np.array(data["gram"], dtype=np.float64).reshape(strata, PACKED)
                costs._weight[met] = np.array(data["weight"], dtype=np.float64).reshape(strata)
                costs._touched_us[met] = np.array(data["touched_us"], dtype=np.int64).reshape(strata)
                moments = np.array(data["moments"], dtype=np.float64).reshape(classes, strata, WIDTH)
                costs._moments[:, met] = moments
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(f"class cost snapshot is damaged: {error}") from error
        if not all(np.isfinite(array).all() for array in (costs._gram, costs._weight, costs._moments)):
            raise ValueError("class cost snapshot must hold finite numbers")
        return costs


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _learn(
    gram: FloatArray,
    moments: FloatArray,
    weight: FloatArray,
    touched_us: IntArray,
    half_life_s: float,
    at_us: IntArray,
    shapes: FloatArray,
    shape_s: FloatArray,
    values: FloatArray,
) -> None:
    features = np.zeros(WIDTH)
    unused = np.zeros(WIDTH)
    for i in range(len(at_us)):
        expand(shapes[i], features)
        stratum = stratum_of(shapes[i])
        if weight[stratum] > 0.0:
            keep = 0.5 ** (max(at_us[i] - touched_us[stratum], 0) * 1e-6 / half_life_s)
            keep = max(keep, min(1.0, FLOOR_ROWS / weight[stratum]))
            scale(gram[stratum], keep)
            weight[stratum] *= keep
            for k in range(len(moments)):
                scale(moments[k, stratum], keep)
        row_weight = 1.0 / (shape_s[i] * shape_s[i])
        add_row(gram[stratum], unused, features, row_weight, 0.0)
        weight[stratum] += 1.0
        touched_us[stratum] = at_us[i]
        for k in range(len(moments)):
            for j in range(WIDTH):
                moments[k, stratum, j] += row_weight * features[j] * values[i, k]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _fit(gram: FloatArray, moments: FloatArray, weight: FloatArray) -> FloatArray:
    """Non-negative coefficients (classes, WIDTH) from the sums of all strata."""
    square = np.zeros((WIDTH, WIDTH))
    for stratum in range(STRATA):
        if weight[stratum] > 0.0:
            unpack(gram[stratum], 1.0, square)
    fitted = np.zeros((len(moments), WIDTH))
    moment = np.zeros(WIDTH)
    for k in range(len(moments)):
        for j in range(WIDTH):
            moment[j] = 0.0
            for stratum in range(STRATA):
                moment[j] += moments[k, stratum, j]
        for _ in range(SOLVE_ROUNDS):
            solve(square, moment, fitted[k])
    return fitted
