"""Forecasts that were obeyed, judged by what was really done: the response surface at the count that then served.

A forecast into whose window a change fell says nothing of what would have come: it is marked `intervened`. Where the
change was a number of engines, the same forecast also says what that number would give, and that can be judged. Judges
nothing else: another kind of change, a count beyond the surface, or engines ready only inside the window leave it out.
Law: a forecast without a change in its window is never among these.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.changes import Change
from schemas.forecasts import EnginesResponse, Forecast
from schemas.slos import Metric, SloTarget
from twin.metrics import FloatArray, IntArray, quantile

US_PER_S = 1_000_000
READY_LATE_S = 15.0
"""An engine that is ready so much after the window has begun still counts as there."""
LEAST_MEMBERS = 5
COLUMN: dict[Metric, int] = {"ttft_s": 0, "tpot_s": 1, "e2e_s": 2}


@dataclass(frozen=True, slots=True)
class Obeyed:
    """How forecasts did that were obeyed. `forecasts` could be judged, of `intervened` with a change in their window.

    `brier` is the mean squared error of the breach probability at the count that really served, `brier_unchanged` that
    of the same forecasts had the count stayed; `goodput_error_ratio` the median error of the goodput, relative.
    """

    forecasts: int
    intervened: int
    brier: float | None = None
    brier_unchanged: float | None = None
    goodput_error_ratio: float | None = None


NOTHING_OBEYED = Obeyed(0, 0)


@dataclass(frozen=True, slots=True)
class Surface:
    """The response surface of one fine forecast."""

    as_of_us: int
    points: tuple[EnginesResponse, ...]

    @classmethod
    def of(cls, forecast: Forecast) -> "Surface | None":
        """None where the forecast is coarse, or does not tell its surface or the window of it."""
        points = forecast.responses
        if forecast.phase != "fine" or not points or points[0].to_s <= points[0].from_s:
            return None
        return cls(forecast.as_of_us, points)

    @property
    def window_us(self) -> tuple[int, int]:
        """Arrivals that are meant: after the first, up to the second."""
        point = self.points[0]
        begin_us, end_us = (self.as_of_us + round(each * US_PER_S) for each in (point.from_s, point.to_s))
        return begin_us, end_us

    def at(self, engines: int) -> EnginesResponse | None:
        """What so many engines would give."""
        return next((point for point in self.points if point.engines == engines), None)


def judge(
    surfaces: Iterable[Surface],
    changes: Sequence[Change],
    targets: Sequence[SloTarget],
    arrived_us: IntArray,
    values_s: FloatArray,
) -> Obeyed:
    """Judge all of them by finished requests: `arrived_us` int64[n] rising, `values_s` float64[n, 3] as in `COLUMN`."""
    intervened = 0
    squares, unchanged, errors = [], [], []
    last_us = int(arrived_us[-1]) if arrived_us.size else 0
    for surface in surfaces:
        begin_us, end_us = surface.window_us
        inside = [c for c in changes if surface.as_of_us < c.at_us <= end_us and c.status != "rejected"]
        if not inside:
            continue
        intervened += 1
        before, after = _counts(inside, begin_us)
        said, without = surface.at(after), surface.at(before)
        members = values_s[slice(*np.searchsorted(arrived_us, (begin_us, end_us), side="right").tolist())]
        if before == after or said is None or without is None or len(members) < LEAST_MEMBERS or last_us < end_us:
            continue
        breached = any(quantile(members[:, COLUMN[each.metric]], each.quantile) > each.limit_s for each in targets)
        squares.append((said.breach_probability - breached) ** 2)
        unchanged.append((without.breach_probability - breached) ** 2)
        served = _served_well(members, targets) / ((end_us - begin_us) / US_PER_S)
        errors.append(abs(said.goodput_requests_per_s.value - served) / max(served, 1e-9))
    if not squares:
        return Obeyed(0, intervened)
    middle = float(np.median(errors))
    return Obeyed(len(squares), intervened, float(np.mean(squares)), float(np.mean(unchanged)), middle)


def _counts(inside: Sequence[Change], begin_us: int) -> tuple[int, int]:
    """Engines before the changes, and those that served in the window; (0, 0) where that cannot be said."""
    ordered = sorted(inside, key=lambda each: each.at_us)
    first, last = ordered[0], ordered[-1]
    for change in ordered:
        if change.kind != "scale" or change.engines_before is None or change.engines_after is None:
            return 0, 0
        ready_us = change.at_us if change.engines_after < change.engines_before else change.ready_at_us
        if ready_us is None or ready_us > begin_us + READY_LATE_S * US_PER_S:
            return 0, 0
    return first.engines_before or 0, last.engines_after or 0


def _served_well(members: FloatArray, targets: Sequence[SloTarget]) -> int:
    """Members that kept every limit; an undefined value breaks none."""
    good = np.ones(len(members), np.bool_)
    for target in targets:
        values = members[:, COLUMN[target.metric]]
        good &= ~(np.where(np.isnan(values), -math.inf, values) > target.limit_s)
    return int(np.count_nonzero(good))
