"""The trials of one forecast, and the questions a policy asks of them. Remembers nothing.

Law: a larger upper side of doing nothing never makes fewer engines enough.
"""

from dataclasses import dataclass

from schemas.actions import Scale
from schemas.changes import Phase
from schemas.forecasts import Authority, CredibilityLevel
from schemas.lineage import Lineage
from twin.advise.policy import Kind, Policy
from twin.advise.upper_side import Trial

US_PER_S = 1_000_000
LEAST_GAIN_RATIO = 0.02
"""Serving fewer more requests well than this is not worth an action."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a round of trials stands on: the forecast they were made with, how long an engine takes to start, and the
    demand that engines were tried on (None: that of the forecast)."""

    deployment: str
    as_of_us: int
    phase: Phase
    period_s: float
    start_s: float
    authority: Authority
    credibility: CredibilityLevel
    lineage: Lineage
    demand_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The trials of one forecast, asked by a policy."""

    ground: Ground
    trials: tuple[Trial, ...]
    policy: Policy

    @property
    def plain(self) -> Trial:
        """Doing nothing, over the requests that arrive once an engine started now is ready."""
        return self.trials[0]

    @property
    def engines(self) -> int:
        """Engines at hand, those that are starting included."""
        what = self.plain.what
        return what.engines_before if isinstance(what, Scale) else 0

    def load(self, ratio: float) -> float:
        """An upper side over its limit, with the margin of low credibility."""
        return ratio * self.policy.margin_ratio(self.ground.credibility)

    def scaled(self, delta: int) -> Trial | None:
        """The trial of so many engines more or fewer."""
        return next((each for each in self.trials if isinstance(each.what, Scale) and each.delta == delta), None)

    def enough(self) -> Trial | None:
        """The fewest more engines that are enough; where none is, as many as still serve more requests well."""
        policy = self.policy
        if "scale" not in policy.allowed or self.load(self.plain.load_ratio) < policy.tolerance_ratio:
            return None
        best, served = None, self.plain.after.goodput_requests_per_s.value
        for delta in range(1, policy.most_engines - self.engines + 1):
            trial = self.scaled(delta)
            if trial is None:
                break
            if self.load(trial.load_ratio) < policy.tolerance_ratio:
                return trial
            goodput = trial.after.goodput_requests_per_s.value
            if goodput > served * (1.0 + LEAST_GAIN_RATIO):
                best, served = trial, goodput
        return best

    def others(self) -> list[Trial]:
        """Other allowed actions that pay, the one that serves most requests well first; all that are tried are free."""
        found = [
            each
            for each in self.trials
            if not isinstance(each.what, Scale)
            and kind_of(each) in self.policy.allowed
            and self.load(each.load_without_ratio) >= self.policy.tolerance_ratio
            and _gain(each) > LEAST_GAIN_RATIO
            and each.confidence_ratio >= 0.5
        ]
        return sorted(found, key=lambda each: -_gain(each))

    def act_before_us(self, trial: Trial) -> int | None:
        """When it must be ordered at the latest to be in effect as the danger begins; None where there is no danger."""
        if trial.delta < 0 or trial.danger_after_s is None:
            return None
        needs_s = self.ground.start_s if trial.delta > 0 else 0.0
        return self.ground.as_of_us + round(max(trial.danger_after_s - needs_s, 0.0) * US_PER_S)

    def reasons(self, trial: Trial) -> tuple[str, ...]:
        """Why, in short clauses."""
        without, with_it = percent(self.load(trial.load_without_ratio)), percent(self.load(trial.load_ratio))
        if trial.delta < 0:
            told = [f"one engine fewer keeps the upper side at {with_it} of the limit"]
        else:
            told = [f"upper side at {without} of the limit without it", f"at {with_it} with it"]
        if trial.delta and self.ground.demand_per_s is not None:
            told.append(f"ready for {self.ground.demand_per_s:.3g} requests/s")
        if self.ground.credibility == "low":
            told.append(f"low credibility: margin {self.policy.low_credibility_margin_ratio:g}")
        return tuple(told)


def _gain(trial: Trial) -> float:
    before = trial.before.goodput_requests_per_s.value
    return (trial.after.goodput_requests_per_s.value - before) / max(before, 1e-9)


def percent(ratio: float) -> str:
    """A ratio for people; what is far over is all the same.

    >>> percent(0.756), percent(float("inf"))
    ('76 %', 'over 999 %')
    """
    return f"{ratio * 100:.0f} %" if ratio < 10.0 else "over 999 %"


_KIND_OF_TAG: dict[str, Kind] = {
    "scale": "scale",
    "shift_traffic": "shift_traffic",
    "set_limit": "set_limit",
    "hold_back": "hold_back",
    "cut_over": "cut_over",
}


def kind_of(trial: Trial) -> Kind:
    """What kind of action a trial is of."""
    return _KIND_OF_TAG[str(trial.what.__struct_config__.tag)]


def is_reversible(trial: Trial) -> bool:
    """Whether it can be undone at once and at no loss: an engine given up takes its start time to come back, a request
    that was shed never does."""
    if isinstance(trial.what, Scale):
        return trial.delta >= 0
    return getattr(trial.what, "how", "") != "shed"
