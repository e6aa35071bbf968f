"""What other numbers of engines would give, as the twin simulated them. Extrapolates nothing.

Law: an answer of `engines_for` holds at that count and at every larger one that was simulated.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.forecasts import EnginesResponse


@dataclass(frozen=True, slots=True)
class ResponseSurface:
    """Points by rising number of engines: usually one less than now to three more, over the longest horizon."""

    points: tuple[EnginesResponse, ...]

    @classmethod
    def of(cls, points: Iterable[EnginesResponse]) -> "ResponseSurface":
        """The points of a forecast, in any order."""
        return cls(tuple(sorted(points, key=lambda point: point.engines)))

    def at(self, engines: int) -> EnginesResponse | None:
        """The point of so many engines, None if that was not simulated."""
        return next((point for point in self.points if point.engines == engines), None)

    def engines_for(
        self, *, breach_probability_at_most: float | None = None, goodput_requests_per_s: float | None = None
    ) -> int | None:
        """The least number of engines that keeps all limits given; None if none simulated does.

        Goodput is judged by the lower end of its interval. Raises ValueError without a limit, or for one that no
        number can keep.
        """
        if breach_probability_at_most is None and goodput_requests_per_s is None:
            raise ValueError("engines_for needs breach_probability_at_most, goodput_requests_per_s or both")
        most = 1.0 if breach_probability_at_most is None else breach_probability_at_most
        least_per_s = 0.0 if goodput_requests_per_s is None else goodput_requests_per_s
        if not 0.0 <= most <= 1.0:
            raise ValueError(f"breach_probability_at_most must be 0 to 1, got {most}")
        if not 0.0 <= least_per_s < float("inf"):
            raise ValueError(f"goodput_requests_per_s must be a finite number >= 0, got {least_per_s}")
        answer = None
        for point in reversed(self.points):
            if point.breach_probability > most or point.goodput_requests_per_s.low < least_per_s:
                break
            answer = point.engines
        return answer
