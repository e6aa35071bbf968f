"""How much of the recorded step time had requests waiting, by second of event time. Judges nothing.

Law: 0 <= saturated <= busy in every second; memory is bounded by the span.
"""

from collections import OrderedDict

import numpy as np

from schemas.steps import Step
from twin.metrics import BoolArray, FloatArray, IntArray

US_PER_S = 1_000_000


class Saturation:
    """Step time and the part of it with waiting requests, per second, over the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = int(span_s) + 1
        self._seconds: OrderedDict[int, list[int]] = OrderedDict()

    def on_step(self, step: Step) -> None:
        """Count one step into the second of its end."""
        self._add(step.at_us, step.duration_us, bool(step.waiting))

    def add_many(self, at_us: IntArray, duration_s: FloatArray, waiting: BoolArray) -> None:
        """Count steps by their ends (n,), durations (n,) and whether requests waited (n,)."""
        durations_us = np.rint(duration_s * US_PER_S).astype(np.int64)
        for row in zip(at_us.tolist(), durations_us.tolist(), waiting.tolist(), strict=True):
            self._add(*row)

    def _add(self, at_us: int, duration_us: int, waiting: bool) -> None:
        busy = self._seconds.setdefault(at_us // US_PER_S, [0, 0])
        busy[0] += duration_us
        busy[1] += duration_us if waiting else 0
        while len(self._seconds) > self._span_s:
            self._seconds.popitem(last=False)

    def ratio(self, start_us: int, end_us: int) -> float:
        """Share of step time in (start, end] with requests waiting; 0 where no step was recorded.

        >>> from schemas.steps import Step
        >>> seen = Saturation(60)
        >>> for waiting in (0, 3): seen.on_step(Step(step=waiting, start_us=10**15, duration_us=5, waiting=waiting))
        >>> seen.ratio(10**15 - 1, 10**15 + 10**6)
        0.5
        """
        inside = [busy for second, busy in self._seconds.items() if start_us < (second + 1) * US_PER_S - 1 <= end_us]
        total = sum(busy for busy, _ in inside)
        return sum(saturated for _, saturated in inside) / total if total else 0.0

    def snapshot(self) -> list[list[int]]:
        """Plain data."""
        return [[second, *busy] for second, busy in self._seconds.items()]

    def restore(self, data: list[list[int]]) -> None:
        """Take over what `snapshot` gave."""
        self._seconds = OrderedDict((second, [busy, saturated]) for second, busy, saturated in data)
