"""The way from a client to the engine and back, from requests of which only the client's times are known.

A request that nothing held up was scheduled in the first step that began after it had come in: its delay is longer
than the time from its arrival to the step before, and not longer than the time to its first step. The delay that
most requests allow is the answer; requests that queued allow some delay at random and outvote nobody.
Laws: the delay is >= 0 and bounded; 0 until `LEAST_WEIGHT` requests have been seen.
"""

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np

from twin.metrics import FloatArray

DELAYS_S: Final = np.concatenate(([0.0], np.geomspace(1e-3, 2.0, 64)))
LEAST_WEIGHT: Final = 30.0
HALF_LIFE_REQUESTS: Final = 1_000.0


class FrontDelay:
    """Votes of requests for each delay of `DELAYS_S`, old ones fading."""

    def __init__(self) -> None:
        self._votes: FloatArray = np.zeros(len(DELAYS_S))
        self._weight = 0.0

    def on_requests(self, missed_s: FloatArray, met_s: FloatArray) -> None:
        """Per request (n,): arrival to the start of the step before its first, and to the start of its first."""
        keep = 0.5 ** (len(met_s) / HALF_LIFE_REQUESTS)
        allowed = (missed_s[:, None] < DELAYS_S) & (met_s[:, None] >= DELAYS_S)
        self._votes = self._votes * keep + allowed.sum(axis=0)
        self._weight = self._weight * keep + len(met_s)

    @property
    def delay_s(self) -> float:
        """Seconds on the way, both ways together."""
        if self._weight < LEAST_WEIGHT:
            return 0.0
        return float(DELAYS_S[int(np.argmax(self._votes))])

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"votes": self._votes.tolist(), "weight": self._weight}

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The delay of a snapshot."""
        delay = cls()
        delay._votes, delay._weight = np.array(data["votes"], np.float64), data["weight"]
        return delay
