"""How old a forecast is: by its event time where the service is live, by when it was made where it is replayed.

Judges nothing. Law: of two forecasts made at the same moment, the one with the earlier `as_of_us` is never younger.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

US_PER_S = 1_000_000


def wall_us() -> int:
    """This machine's clock, microseconds since the epoch."""
    return time.time_ns() // 1000


class Clock(Protocol):
    """Tells ages. Ages are event time, which is what expiry and horizons are stated in."""

    def age_us(self, as_of_us: int, made_us: int) -> int:
        """Microseconds since `as_of_us`, for a forecast written at `made_us` by the writer's clock; below 0 means
        that it is ahead of this clock."""


@dataclass(frozen=True, slots=True)
class LiveClock:
    """Event time is wall time.

    >>> LiveClock(now_us=lambda: 5_000_000).age_us(as_of_us=3_000_000, made_us=4_000_000)
    2000000
    """

    now_us: Callable[[], int] = field(default=wall_us)

    def age_us(self, as_of_us: int, made_us: int) -> int:
        """See `Clock`."""
        return self.now_us() - as_of_us


@dataclass(frozen=True, slots=True)
class ReplayClock:
    """Records of another day, played at `speed` times their own pace: time counts from when a forecast was made.

    >>> ReplayClock(speed=4.0, now_us=lambda: 5_000_000).age_us(as_of_us=3, made_us=4_000_000)
    4000000
    """

    speed: float = 1.0
    now_us: Callable[[], int] = field(default=wall_us)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise ValueError(f"speed must be a finite number > 0, got {self.speed}")

    def age_us(self, as_of_us: int, made_us: int) -> int:
        """See `Clock`."""
        return round((self.now_us() - made_us) * self.speed)
