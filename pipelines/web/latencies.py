"""What requests really took, by the time they arrived: quantiles over the same windows that forecasts speak of.

Holds no request. A window's quantile is told once it is certain: while so many of its requests are unfinished that the
quantile may still move to one of them, it is None. Laws: memory is bounded however many requests come; a request
counts in every window that holds its arrival, and in no other.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from pipelines.board import LEAST_MEMBERS, US_PER_S
from pipelines.web.series import Number, Rows
from schemas.requests import RequestArrived, RequestFinished, RequestRecord
from twin.metrics import METRICS, QUANTILES, quantiles, tpot_s

CELL_US = 5 * US_PER_S
MAX_CELLS = 720
MAX_KEPT = 1_000
"""Requests of one cell whose latencies are kept; of more, a fair sample."""


@dataclass(slots=True)
class _Cell:
    """Requests that arrived within one cell. `kept` holds the latencies of a fair sample of those that have ended."""

    arrived: int = 0
    ended: int = 0
    finished: int = 0
    kept: tuple["array[float]", ...] = field(default_factory=lambda: tuple(array("f") for _ in METRICS))


class ObservedLatencies:
    """One deployment. `rows`: by the end of a window, for each horizon each metric's P50, P95 and P99, seconds."""

    def __init__(self) -> None:
        self.rows = Rows(MAX_CELLS)
        self.horizons_s: tuple[float, ...] = ()
        self._cells: dict[int, _Cell] = {}
        self._changed: set[int] = set()
        self._random = Random(0)

    def take(self, event: RequestRecord) -> None:
        """Count an event of a request."""
        if isinstance(event, RequestArrived):
            cell = self._cell(event.at_us)
            if cell is not None:
                cell.arrived += 1
            return
        arrived_us = event.arrived_us
        cell = None if arrived_us is None else self._cell(arrived_us)
        if cell is None:
            return
        cell.ended += 1
        if isinstance(event, RequestFinished) and event.timed and event.first_token_us is not None:
            self._keep(cell, _latencies_s(event, event.first_token_us))

    def _cell(self, at_us: int) -> _Cell | None:
        """The cell of a time, None if it is older than all that may be held."""
        number = -(-at_us // CELL_US)
        cell = self._cells.get(number)
        if cell is None:
            if len(self._cells) >= MAX_CELLS:
                oldest = min(self._cells)
                if number < oldest:
                    return None
                del self._cells[oldest]
            cell = self._cells[number] = _Cell()
        self._changed.add(number)
        return cell

    def _keep(self, cell: _Cell, values_s: tuple[float, ...]) -> None:
        cell.finished += 1
        place = cell.finished - 1
        if place >= MAX_KEPT:
            place = self._random.randrange(cell.finished)
        for kept, value_s in zip(cell.kept, values_s, strict=True):
            if len(kept) < MAX_KEPT:
                kept.append(value_s)
            elif place < MAX_KEPT:
                kept[place] = value_s

    def refresh(self, now_us: int, horizons_s: Sequence[float]) -> None:
        """Bring `rows` up to date with all events so far; windows that end after `now_us` have not happened yet."""
        if tuple(horizons_s) != self.horizons_s:
            self.horizons_s = tuple(horizons_s)
            self._changed = set(self._cells)
        longest = max((_cells_of(horizon_s) for horizon_s in self.horizons_s), default=0)
        ends = {number + ahead for number in self._changed for ahead in range(longest)}
        later = {number for number in ends if number * CELL_US > now_us}
        for number in ends - later:
            row = tuple(value for horizon_s in self.horizons_s for value in self._window(number, horizon_s))
            if any(value is not None for value in row) or number in self._cells:
                self.rows.put(number * CELL_US, row)
        self._changed = {number for number in self._changed if number + longest - 1 in later}

    def _window(self, end: int, horizon_s: float) -> list[Number]:
        cells = [cell for n in range(end - _cells_of(horizon_s) + 1, end + 1) if (cell := self._cells.get(n))]
        if sum(cell.finished for cell in cells) < LEAST_MEMBERS:
            return [None] * (len(METRICS) * len(QUANTILES))
        found: list[Number] = []
        for at in range(len(METRICS)):
            values = np.concatenate([_with_unfinished(cell, cell.kept[at]) for cell in cells])
            found += [round(value, 6) if math.isfinite(value) else None for value in quantiles(values).tolist()]
        return found


def _with_unfinished(cell: _Cell, kept: "array[float]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Latencies of a cell, +inf for what has not ended, both in the proportion in which they occurred."""
    unfinished = max(cell.arrived - cell.ended, 0)
    share = len(kept) / cell.finished if cell.finished else 1.0
    return np.concatenate(
        (np.frombuffer(kept, np.float32).astype(np.float64), np.full(round(unfinished * share), np.inf))
    )


def _cells_of(horizon_s: float) -> int:
    return max(round(horizon_s * US_PER_S / CELL_US), 1)


def _latencies_s(event: RequestFinished, first_token_us: int) -> tuple[float, float, float]:
    first_s = (first_token_us - event.arrived_us) / US_PER_S
    e2e_s = (event.at_us - event.arrived_us) / US_PER_S
    gap_s = tpot_s(first_token_s=first_s, last_token_s=e2e_s, osl_tokens=event.osl_tokens)
    return first_s, math.nan if gap_s is None else gap_s, e2e_s
