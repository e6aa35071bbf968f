"""How much of the recorded step time had requests waiting, by second of event time. Judges nothing.

Law: 0 <= saturated <= busy in every second; memory is bounded by the span.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from schemas.steps import Step
from twin.metrics import BoolArray, FloatArray, IntArray

US_PER_S = 1_000_000


class Saturation:
    """Step time and the part of it with waiting requests, per second, over the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = int(span_s) + 1
        self._seconds: OrderedDict[int, list[int]] = OrderedDict()

    def on_steps(self, steps: Sequence[Step], at_us: Sequence[int]) -> None:
        """Count steps into the seconds of their ends `at_us`, which rise."""
        begin = 0
        while begin < len(steps):
            second = at_us[begin] // US_PER_S
            end = bisect_left(at_us, (second + 1) * US_PER_S, begin)
            inside = steps[begin:end]
            busy_us = sum([step.duration_us for step in inside])
            self._add_to(second, busy_us, sum([step.duration_us for step in inside if step.waiting]))
            begin = end

    def add_many(self, at_us: IntArray, duration_s: FloatArray, waiting: BoolArray) -> None:
        """Count steps by their ends (n,), durations (n,) and whether requests waited (n,)."""
        durations_us = np.rint(duration_s * US_PER_S).astype(np.int64)
        for ended_us, duration_us, waited in zip(at_us.tolist(), durations_us.tolist(), waiting.tolist(), strict=True):
            self._add_to(ended_us // US_PER_S, duration_us, duration_us if waited else 0)

    def _add_to(self, second: int, busy_us: int, waiting_us: int) -> None:
        busy = self._seconds.setdefault(second, [0, 0])
        busy[0] += busy_us
        busy[1] += waiting_us
        while len(self._seconds) > self._span_s:
            self._seconds.popitem(last=False)

    def ratio(self, start_us: int, end_us: int) -> float:
        """Share of step time in (start, end] with requests waiting; 0 where no step was recorded.

        >>> from schemas.steps import Step
        >>> seen = Saturation(60)
        >>> steps = [Step(step=waiting, start_us=10**15, duration_us=5, waiting=waiting) for waiting in (0, 3)]
        >>> seen.on_steps(steps, [step.at_us for step in steps])
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
