"""The mean of a deviation, as far as chance does not explain it. Knows nothing of what deviates.

Laws: it is 0 until enough rounds have come, and wherever the mean is within its doubt; it never exceeds its bound.
"""

import math
from dataclasses import dataclass

LEAST_ROUNDS = 3.0


@dataclass(slots=True)
class ProvenMean:
    """Weighted moments of a deviation over rounds, newer ones heavier: weights, sum, squares."""

    weight: float = 0.0
    total: float = 0.0
    total2: float = 0.0

    def add(self, deviation: float, fresh: float, half_life_rounds: float) -> None:
        """One round, or the part `fresh` in 0 .. 1 of it that is new."""
        keep = 0.5 ** (fresh / half_life_rounds)
        self.weight = self.weight * keep + fresh
        self.total = self.total * keep + fresh * deviation
        self.total2 = self.total2 * keep + fresh * deviation * deviation

    def beyond_doubt(self, errors: float, most: float, less: float = 0.0) -> float:
        """The mean less `less`, shrunk by `errors` standard errors and within `most` either way.

        Rounds next to each other count as half.

        >>> steady = ProvenMean()
        >>> for _ in range(8):
        ...     steady.add(0.1, 1.0, 20.0)
        >>> round(steady.beyond_doubt(2.5, 0.25), 3)
        0.1
        """
        rounds = self.weight / 2
        if rounds < LEAST_ROUNDS:
            return 0.0
        mean = self.total / self.weight
        spread = math.sqrt(max(self.total2 / self.weight - mean * mean, 0.0))
        sure = max(abs(mean - less) - errors * spread / math.sqrt(rounds), 0.0)
        return math.copysign(min(sure, most), mean - less)
