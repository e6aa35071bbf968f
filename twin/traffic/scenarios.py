"""Stress scenarios: what is done to drawn traffic. Draws nothing itself and knows nothing of engines.

Law: the plain scenario changes nothing, so every scenario sees the same draws as the baseline where it does not act.
"""

import math
from dataclasses import dataclass

MAX_FACTOR = 100.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One future. All factors are > 0 and 1 changes nothing; times are seconds from `as_of`.

    `rate_factor` holds throughout; `burst_factor` on top of it from `burst_start_s` for `burst_s`. `long_prompt_ratio`
    of the prompts become `long_prompt_factor` times longer, and so for outputs. `flush_cache` forgets every prefix
    that is cached at `as_of`.

    >>> Scenario("burst", burst_factor=4.0, burst_s=30.0).is_plain
    False
    """

    name: str
    rate_factor: float = 1.0
    burst_factor: float = 1.0
    burst_start_s: float = 0.0
    burst_s: float = 0.0
    isl_factor: float = 1.0
    osl_factor: float = 1.0
    long_prompt_ratio: float = 0.0
    long_prompt_factor: float = 1.0
    long_output_ratio: float = 0.0
    long_output_factor: float = 1.0
    flush_cache: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("scenario.name must not be empty")
        for field in ("rate", "burst", "isl", "osl", "long_prompt", "long_output"):
            value = getattr(self, f"{field}_factor")
            if not 0.0 < value <= MAX_FACTOR:
                raise ValueError(f"scenario.{field}_factor must be in (0, {MAX_FACTOR:.0f}], got {value}")
        for name in ("long_prompt_ratio", "long_output_ratio"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"scenario.{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("burst_start_s", "burst_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"scenario.{name} must be a finite number >= 0, got {value}")

    @property
    def is_plain(self) -> bool:
        """Whether it changes nothing."""
        return self == Scenario(self.name)


BASELINE = Scenario("baseline")
BURST = Scenario("burst", burst_factor=4.0, burst_s=30.0)
LONG_TAIL = Scenario("long_tail", long_prompt_ratio=0.03, long_prompt_factor=10.0)
CACHE_FLUSH = Scenario("cache_flush", flush_cache=True)
