"""When to act: the few numbers a person sets. Decides nothing and reads no file.

Law: what this accepts cannot flap by itself: it lets go below where it takes hold, and later.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from schemas.forecasts import CredibilityLevel
from twin.job import Trials

Kind = Literal["scale", "shift_traffic", "set_limit", "hold_back", "cut_over"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy of one deployment. Times are event time; ratios of a limit are of each target's `limit_s`.

    Parameters
    ----------
    least_engines, most_engines
        Bounds of what is proposed.
    tolerance_ratio
        Take hold where the upper side of an interval reaches this share of a limit.
    release_ratio, release_after_s
        Let go where it stays below this share for that long. Both are beyond the ones that take hold.
    carries_ratio, headroom_ratio
        An engine is given up only if one fewer would keep the upper side below this share of every limit with so many
        times the traffic that is expected. The gap is in the traffic: latency says little until it is too late.
    reserve_level
        Engines are for the demand that is exceeded in no larger share of windows than 1 minus this, as far as past
        forecasts tell.
    demand_ratio
        Engines are for so many times that demand: the knob between more engines and more late requests.
    consolidate_after_s
        How long one fewer must have been enough, since the last step.
    cooldown_s
        After more engines were needed or taken, none is given up for so long; more in need are never held up.
    start_s
        How long an engine takes to be ready, until changes have told.
    window_s
        Requests that arrive within so long after an engine started now would be ready decide.
    low_credibility_margin_ratio
        Limits are divided by it while credibility is low.
    allowed
        Kinds of actions that may be proposed.
    """

    least_engines: int = 1
    most_engines: int = 16
    tolerance_ratio: float = 1.0
    release_ratio: float = 0.8
    release_after_s: float = 60.0
    carries_ratio: float = 0.95
    headroom_ratio: float = 1.1
    reserve_level: float = 0.95
    demand_ratio: float = 1.0
    consolidate_after_s: float = 120.0
    cooldown_s: float = 120.0
    start_s: float = 120.0
    window_s: float = 60.0
    low_credibility_margin_ratio: float = 1.2
    allowed: tuple[Kind, ...] = KINDS

    def __post_init__(self) -> None:
        if not 1 <= self.least_engines <= self.most_engines <= 100_000:
            raise ValueError(
                "policy needs 1 <= least_engines <= most_engines <= 100000, "
                f"got {self.least_engines} and {self.most_engines}"
            )
        for name in ("release_after_s", "consolidate_after_s", "cooldown_s", "start_s"):
            _between(name, getattr(self, name), 0.0, 86_400.0)
        _between("window_s", self.window_s, 1.0, 3_600.0)
        _between("tolerance_ratio", self.tolerance_ratio, 0.05, 10.0)
        _between("headroom_ratio", self.headroom_ratio, 1.0, 10.0)
        _between("reserve_level", self.reserve_level, 0.5, 0.999)
        _between("demand_ratio", self.demand_ratio, 0.1, 10.0)
        _between("low_credibility_margin_ratio", self.low_credibility_margin_ratio, 1.0, 10.0)
        for name in ("release_ratio", "carries_ratio"):
            _between(name, getattr(self, name), 0.01, 10.0)
            if getattr(self, name) >= self.tolerance_ratio:
                raise ValueError(
                    f"policy.{name} must be below tolerance_ratio {self.tolerance_ratio}, or proposals would flap; "
                    f"got {getattr(self, name)}"
                )
        unknown = [kind for kind in self.allowed if kind not in KINDS]
        if unknown:
            raise ValueError(f"policy.allowed may hold {', '.join(KINDS)}; got {', '.join(map(repr, unknown))}")

    def margin_ratio(self, credibility: CredibilityLevel) -> float:
        """What upper sides are multiplied by."""
        return self.low_credibility_margin_ratio if credibility == "low" else 1.0

    def trials(
        self,
        start_s: float,
        credibility: CredibilityLevel,
        widen: float,
        demand_per_s: float | None = None,
        now_per_s: float = 0.0,
    ) -> Trials:
        """What the twin is to try for it, if an engine takes `start_s` to be ready; see `Trials` for the demand."""
        return Trials(
            start_s=start_s,
            window_s=self.window_s,
            trip_ratio=self.tolerance_ratio / self.margin_ratio(credibility),
            widen=widen,
            headroom_ratio=self.headroom_ratio,
            demand_per_s=None if demand_per_s is None else self.demand_ratio * demand_per_s,
            now_per_s=now_per_s,
            others=any(kind != "scale" for kind in self.allowed),
        )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"policy.{name} must be a finite number in {low:g} .. {high:g}, got {value}")
