"""Operators measured at some shapes, predicted at others: by the curve of their cluster, or in a grid of attention.

A cluster is a kind of operator. Its curve maps roofline seconds to measured seconds, piecewise linear, so two shapes
give a launch offset and one efficiency, and the roofline gives the bend between memory and compute. Because the curve
takes seconds, it carries over to other layer sizes, splits and models on the same hardware.
Does not read files. Law: a curve passes through its points, and never falls.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from twin.cost.block import FloatArray
from twin.cost.roofline import Roofline
from twin.cost.shape import StepShape
from twin.graph.operators import Operator, OperatorGraph


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of a profile: seconds (> 0) of an operator of this kind in a step of this shape."""

    kind: str
    shape: StepShape
    seconds: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured against roofline seconds of one cluster, both rising."""

    roofline_s: tuple[float, ...]
    measured_s: tuple[float, ...]

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> "Curve":
        """A curve through (roofline, measured) points; equal roofline seconds are averaged, and so are dips.

        Raises ValueError if there is no point, or one is not finite and > 0.

        >>> Curve.through([(1.0, 3.0), (3.0, 7.0)]).at(2.0)
        5.0
        """
        rows = sorted(points)
        if not rows:
            raise ValueError("a cluster needs at least one measured shape, got none")
        table = np.array(rows, dtype=np.float64)
        if not (np.isfinite(table).all() and table.min() > 0.0):
            raise ValueError(
                "roofline and measured seconds of a cluster must be finite and > 0; look for a zero or NaN row"
            )
        x, first = np.unique(table[:, 0], return_index=True)
        rows_each = np.diff([*first, len(table)])
        means = np.add.reduceat(table[:, 1], first) / rows_each
        return cls(tuple(x.tolist()), _rising(means.tolist(), rows_each.tolist()))

    def at(self, roofline_s: float) -> float:
        """Measured seconds expected where the roofline says `roofline_s`; ends are continued, never below half."""
        x, y = self.roofline_s, self.measured_s
        if len(x) == 1:
            return y[0] * roofline_s / x[0]
        if x[0] <= roofline_s <= x[-1]:
            return float(np.interp(roofline_s, x, y))
        i, j = (0, 1) if roofline_s < x[0] else (-2, -1)
        end = 0 if roofline_s < x[0] else -1
        slope = (y[j] - y[i]) / (x[j] - x[i])
        return max(y[end] + slope * (roofline_s - x[end]), y[0] / 2)


def _rising(values: Sequence[float], rows: Sequence[int]) -> tuple[float, ...]:
    """The nearest values that never fall: neighbours that do share their mean (pool adjacent violators).

    Raising every dip to the peak before it instead would make noise add up to a cost that nothing had.

    >>> _rising([1.0, 3.0, 2.0, 5.0], [1, 1, 1, 1])
    (1.0, 2.5, 2.5, 5.0)
    """
    pools: list[tuple[float, int, int]] = []
    for value, count in zip(values, rows, strict=True):
        pool = (value, count, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, weight, width = pools.pop()
            total = weight + pool[1]
            pool = ((mean * weight + pool[0] * pool[1]) / total, total, width + pool[2])
        pools.append(pool)
    return tuple(mean for mean, _, width in pools for _ in range(width))


def two_shapes(points: Sequence[tuple[float, float]], *, margin_ratio: float = 0.0) -> tuple[Curve, list[int]]:
    """The curve of a cluster measured at two shapes only, and the indexes of these two points.

    They are the smallest and the largest by roofline seconds, or `margin_ratio` of the shapes away from these ends.
    Raises ValueError if there are no two shapes to choose.
    """
    order = sorted(range(len(points)), key=points.__getitem__)
    skipped = round(margin_ratio * (len(order) - 1))
    if len(order) < 2 or not 0 <= skipped < len(order) / 2:
        raise ValueError(f"two shapes need two or more points and a margin_ratio in [0, 0.5), got {len(order)} points")
    used = [order[skipped], order[-1 - skipped]]
    return Curve.through([points[i] for i in used]), used


@dataclass(frozen=True, slots=True)
class Grid:
    """Values on a full rectangular grid, multilinear between its points, continued beyond its upper ends."""

    axes: tuple[FloatArray, ...]
    values: FloatArray

    @classmethod
    def of(cls, points: Sequence[Sequence[float]], values: Sequence[float]) -> "Grid | None":
        """The grid of these points, or None where they leave a cell empty."""
        columns = np.array(points, dtype=np.float64).T
        axes = tuple(np.unique(column) for column in columns)
        table = np.full([len(axis) for axis in axes], np.nan)
        table[tuple(np.searchsorted(axis, column) for axis, column in zip(axes, columns, strict=True))] = values
        return None if np.isnan(table).any() else cls(axes, table)

    def at(self, point: Sequence[float]) -> float:
        """The value at a point; below the lower end of an axis, that of the end."""
        lows, shares = [], []
        for axis, x in zip(self.axes, point, strict=True):
            low = int(np.clip(np.searchsorted(axis, x, side="right") - 1, 0, max(len(axis) - 2, 0)))
            lows.append(low)
            shares.append(max((x - axis[low]) / (axis[low + 1] - axis[low]), 0.0) if len(axis) > 1 else 0.0)
        total = 0.0
        for corner in product((0, 1), repeat=len(lows)):
            weight = float(np.prod([share if up else 1.0 - share for up, share in zip(corner, shares, strict=True)]))
            if weight:
                total += weight * float(self.values[tuple(low + up for low, up in zip(lows, corner, strict=True))])
        return total


@dataclass(frozen=True, slots=True)
class AttentionGrids:
    """Attention measured over (chunk, tokens before it, decoding sequences, context): alone and mixed."""

    prefill: Grid
    decode: Grid
    mixed: Grid

    @classmethod
    def of(cls, rows: Iterable[Measured]) -> "AttentionGrids | None":
        """The grids of attention rows with one prefill chunk or none, or None where they do not fill them."""
        parts: tuple[list[tuple[list[float], float]], ...] = ([], [], [])
        for row in rows:
            chunk, before, sequences, context = _one_chunk(row.shape)
            if not sequences:
                parts[0].append(([chunk, before], row.seconds))
            elif not chunk:
                parts[1].append(([sequences, context], row.seconds))
            else:
                parts[2].append(([chunk, before, sequences, context], row.seconds))
        grids = [Grid.of(*zip(*part, strict=True)) for part in parts if part]
        if len(grids) < len(parts) or None in grids:
            return None
        return cls(*(grid for grid in grids if grid is not None))

    def at(self, shape: StepShape) -> float:
        """Seconds of attention in a step of this shape."""
        chunk, before, sequences, context = _one_chunk(shape)
        if not sequences:
            return self.prefill.at((chunk, before))
        if not chunk:
            return self.decode.at((sequences, context))
        return self.mixed.at((chunk, before, sequences, context))


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Operator costs from a profile; the roofline stands in for kinds it lacks. What was measured includes launches."""

    roofline: Roofline
    curves: Mapping[str, Curve]
    attention: AttentionGrids | None = None

    @classmethod
    def of(cls, rows: Iterable[Measured], profiled: OperatorGraph, roofline: Roofline) -> "MeasuredCosts":
        """Costs from rows that were measured on operators of the `profiled` graph.

        Raises ValueError if a row's kind is no operator of that graph.
        """
        points: dict[str, list[tuple[float, float]]] = {}
        attention: list[Measured] = []
        for row in rows:
            points.setdefault(row.kind, []).append((roofline_of(row, profiled, roofline), row.seconds))
            if row.kind == "attention":
                attention.append(row)
        curves = {kind: Curve.through(pairs) for kind, pairs in points.items()}
        return cls(roofline, curves, AttentionGrids.of(attention) if attention else None)

    def operator_s(self, operator: Operator, shape: StepShape) -> float:
        """Seconds of the operator, measured where the profile has its kind."""
        if operator.attention is not None and self.attention is not None:
            return self.attention.at(shape)
        seconds = self.roofline.operator_s(operator, shape)
        curve = self.curves.get(operator.kind)
        return curve.at(seconds) if curve is not None and seconds > 0.0 else seconds

    def launch_s(self, operator: Operator) -> float:
        """0 where measured."""
        return 0.0 if operator.kind in self.curves else self.roofline.launch_s(operator)


def roofline_of(row: Measured, profiled: OperatorGraph, roofline: Roofline) -> float:
    """Roofline seconds of a profile's row. Raises ValueError if the graph has no such operator."""
    operator = profiled.operators.get(row.kind)
    if operator is None:
        known = ", ".join(sorted(profiled.operators))
        raise ValueError(f"operator {row.kind!r} is not in the graph; expected one of {known}")
    return roofline.operator_s(operator, row.shape)


def _one_chunk(shape: StepShape) -> tuple[float, float, float, float]:
    """(chunk, tokens before it, decoding sequences, mean context); many chunks become one of equal work."""
    chunk = before = 0.0
    if shape.prefill_tokens:
        before = shape.prefill_attention_pairs / shape.prefill_tokens - (shape.prefill_tokens + 1) / 2
        chunk = float(shape.prefill_tokens) if before >= 0.0 else (2.0 * shape.prefill_attention_pairs) ** 0.5
    sequences = shape.decode_requests
    return chunk, max(before, 0.0), sequences, shape.decode_context_tokens / sequences if sequences else 0.0
