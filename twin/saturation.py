"""How much of the recorded step time had requests waiting, by second of event time. Judges nothing.

Law: 0 <= saturated <= busy in every second; memory is bounded by the span.
"""

from collections import OrderedDict

from schemas.steps import Step

US_PER_S = 1_000_000


class Saturation:
    """Step time and the part of it with waiting requests, per second, over the last `span_s` seconds."""

    def __init__(self, span_s: float) -> None:
        self._span_s = int(span_s) + 1
        self._seconds: OrderedDict[int, list[int]] = OrderedDict()

    def on_step(self, step: Step) -> None:
        """Count one step into the second of its end."""
        busy = self._seconds.setdefault(step.at_us // US_PER_S, [0, 0])
        busy[0] += step.duration_us
        busy[1] += step.duration_us if step.waiting else 0
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
