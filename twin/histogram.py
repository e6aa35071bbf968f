"""A histogram in bins of equal ratio: quantiles of an endless stream in bounded memory, within half a percent.

Law: the quantile never falls as its level grows, and restoring a snapshot changes no answer.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

_PER_E_FOLD = 100
_LOWEST = 1e-7
_BINS = round(_PER_E_FOLD * math.log(1e16))


class LogHistogram:
    """Counts of values >= 0. Values below 1e-7 count as 0, values above 1e9 as 1e9."""

    def __init__(self) -> None:
        self.count = 0
        self._zero = 0
        self._bins: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one finite value >= 0. Raises ValueError for any other."""
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"a histogram counts finite values >= 0, got {value}")
        self.count += 1
        if value < _LOWEST:
            self._zero += 1
            return
        index = min(int(math.log(value / _LOWEST) * _PER_E_FOLD), _BINS - 1)
        self._bins[index] = self._bins.get(index, 0) + 1

    def quantile(self, quantile: float) -> float:
        """The geometric middle of the bin that holds the quantile. Raises ValueError when nothing was counted.

        >>> histogram = LogHistogram()
        >>> for value in (1.0, 2.0, 4.0):
        ...     histogram.add(value)
        >>> round(histogram.quantile(0.5), 1)
        2.0
        """
        if not self.count:
            raise ValueError("a histogram without values has no quantile")
        target = quantile * self.count
        total = self._zero
        if self._zero and total >= target:
            return 0.0
        index = 0
        for index in sorted(self._bins):
            total += self._bins[index]
            if total >= target:
                break
        return _LOWEST * math.exp((index + 0.5) / _PER_E_FOLD)

    def snapshot(self) -> dict[str, Any]:
        """State as numbers and lists."""
        return {"zero": self._zero, "bins": [[index, self._bins[index]] for index in sorted(self._bins)]}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The histogram of a snapshot."""
        histogram = cls()
        histogram._zero = int(state["zero"])
        histogram._bins = {int(index): int(count) for index, count in state["bins"]}
        histogram.count = histogram._zero + sum(histogram._bins.values())
        return histogram
