"""Proposals of one deployment: when one is opened, confirmed, resized and taken back. Simulates nothing, obeys nobody.

At most one proposal of a kind stands, and at most one is opened per tick. More engines are proposed where the upper
side with the engines at hand (those that are starting included) reaches the tolerance; they are taken back only where
it stays below a lower ratio for some time. Fewer are proposed only where one fewer has been enough for some time since
the last step, with headroom, and not within the cooldown of a step the other way. A coarse forecast opens only what can
be undone and takes nothing back; a fine one confirms, resizes or withdraws.
Laws: an id that was withdrawn never comes back; a constant load gives no step one way and then the other; the state
depends on what was fed, in order, on nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from schemas.actions import Action, ActionState, Scale, Withdrawal
from schemas.changes import Change
from schemas.forecasts import CredibilityLevel, Forecast
from twin.advise.policy import Kind, Policy
from twin.advise.reserve import DemandReserve
from twin.advise.rounds import Ground, Round, is_reversible, kind_of, percent
from twin.advise.upper_side import Trial, judged
from twin.job import SimulationJob, SimulationResult, Trials
from twin.traffic.forecast import RateForecast

US_PER_S = 1_000_000
EXPIRES_AFTER_PERIODS = 2.0
REMEMBERED_S = 3600.0
LOWER_RATIO, HIGHER_RATIO = 0.9, 1.25
"""Engines that were too few are tried again at a clearly lower share of the rate, or after `REMEMBERED_S`: costs may
change. Where they are found to be enough for a clearly higher rate, something else had made them too few: a backlog."""
_VERSION = 1
_NEVER_US = 0


@dataclass(slots=True)
class _Standing:
    """A proposal that stands, as last told; since when it is no longer needed."""

    action: Action
    calm_us: int | None = None

    @property
    def confirmed(self) -> bool:
        return self.action.phase == "fine"


class Advisor:
    """The proposals of one deployment.

    Parameters
    ----------
    policy
        When to act; None: never.
    """

    def __init__(self, policy: Policy | None) -> None:
        self._asleep = policy is None
        self._policy = policy or Policy()
        self._standing: dict[Kind, _Standing] = {}
        self._opened_us = _NEVER_US
        self._up_us = _NEVER_US
        self._fewer_us: int | None = None
        self._short: dict[int, tuple[int, float]] = {}
        self._reserve = DemandReserve(self._policy.reserve_level, self._policy.window_s)
        self._demand_per_s: float | None = None

    @property
    def standing(self) -> tuple[Action, ...]:
        """Proposals that stand, as last told."""
        return tuple(each.action for _, each in sorted(self._standing.items()))

    def on_change(self, change: Change) -> None:
        """Something was done, or refused: the proposal it answers is settled, and engines count anew."""
        for kind, each in list(self._standing.items()):
            if change.action_id == each.action.action_id:
                del self._standing[kind]
        before, after = change.engines_before, change.engines_after
        if change.status == "rejected" or before is None or after is None or before == after:
            return
        if after > before:
            self._up_us = max(self._up_us, change.at_us)
        self._fewer_us = None

    def on_traffic(self, as_of_us: int, arrivals: int, rate: RateForecast, start_s: float | None) -> None:
        """All arrivals up to a tick and the rate forecast made there: what demand to be ready for follows from them."""
        if self._asleep:
            return
        start_s, window_s = self._start_s(start_s), self._policy.window_s
        expected = rate.expected_by(start_s + window_s) - rate.expected_by(start_s)
        self._demand_per_s = self._reserve.on_tick(as_of_us, arrivals, expected / window_s, start_s)

    def trials(self, start_s: float | None, credibility: CredibilityLevel, widen: float) -> Trials | None:
        """What a job is to try, where engines take `start_s` to be ready (None: as the policy says)."""
        if self._asleep:
            return None
        now_per_s = self._reserve.last_per_s
        return self._policy.trials(self._start_s(start_s), credibility, widen, self._demand_per_s, now_per_s)

    def _start_s(self, start_s: float | None) -> float:
        return self._policy.start_s if start_s is None else start_s

    def on_result(
        self, forecast: Forecast, job: SimulationJob, result: SimulationResult, period_s: float
    ) -> list[Action | Withdrawal]:
        """`on_trials` of a job's result."""
        asked = job.trials
        if self._asleep or asked is None:
            return []
        ground = Ground(
            deployment=forecast.deployment,
            as_of_us=forecast.as_of_us,
            phase=forecast.phase,
            period_s=period_s,
            start_s=asked.start_s,
            authority=forecast.authority,
            credibility=forecast.credibility.level,
            lineage=forecast.lineage,
            demand_per_s=asked.demand_per_s,
        )
        return self.on_trials(ground, [judged(each, result.slos, asked.widen) for each in result.tried])

    def on_trials(self, ground: Ground, trials: Sequence[Trial]) -> list[Action | Withdrawal]:
        """What follows from one forecast; feed in order of `as_of`, the coarse one before the fine one."""
        told: list[Action | Withdrawal] = self._expired(ground)
        if not trials:
            return told
        round_ = Round(ground, tuple(trials), self._policy)
        self._count_fewer(round_)
        reviewed = set(self._standing)
        if ground.phase == "fine":
            for kind in sorted(reviewed):
                told += self._review(kind, round_)
        if self._opened_us < ground.as_of_us:
            told += self._open(round_, blocked=reviewed)
        return told

    def _expired(self, ground: Ground) -> list[Action | Withdrawal]:
        """Proposals nobody has renewed in time."""
        told: list[Action | Withdrawal] = []
        for kind, each in sorted(self._standing.items()):
            if ground.as_of_us > each.action.expires_us:
                told.append(self._withdraw(kind, ground, "no forecast has confirmed it in time"))
        return told

    def _withdraw(self, kind: Kind, ground: Ground, reason: str) -> Withdrawal:
        action = self._standing.pop(kind).action
        return Withdrawal(
            deployment=ground.deployment,
            at_us=ground.as_of_us,
            action_id=action.action_id,
            phase=ground.phase,
            reason=reason,
        )

    def _count_fewer(self, round_: Round) -> None:
        """Since when one engine fewer would be enough; only fine forecasts tell."""
        if round_.ground.phase != "fine":
            return
        fewer = round_.scaled(-1)
        enough = fewer is not None and round_.load(fewer.load_ratio) < self._policy.carries_ratio
        self._fewer_us = (self._fewer_us or round_.ground.as_of_us) if enough else None

    def _review(self, kind: Kind, round_: Round) -> list[Action | Withdrawal]:
        """Confirm, resize or withdraw a proposal that stands."""
        each = self._standing[kind]
        if kind != "scale":
            return self._review_other(kind, each, round_)
        what = each.action.what
        if not isinstance(what, Scale):
            raise TypeError(f"proposal {each.action.action_id} stands as a scale and is {type(what).__name__}")
        if what.engines_before != round_.engines:
            reason = f"there are {round_.engines} engines now, not {what.engines_before}"
            return [self._withdraw(kind, round_.ground, reason)]
        if what.engines_after < what.engines_before:
            return self._review_fewer(each, round_)
        self._up_us = round_.ground.as_of_us
        load = round_.load(round_.plain.load_ratio)
        if not each.confirmed and load < self._policy.tolerance_ratio:
            return [self._withdraw(kind, round_.ground, "the fine forecast does not confirm it")]
        if self._calm(each, load, round_):
            return [self._withdraw(kind, round_.ground, f"the upper side is down to {percent(load)} of the limit")]
        wanted = round_.enough()
        standing = round_.scaled(what.engines_after - what.engines_before)
        if wanted is not None and (not each.confirmed or wanted.delta > what.engines_after - what.engines_before):
            state: ActionState = "confirmed" if wanted.what == what else "resized"
            return [self._tell(kind, round_, wanted, state)]
        return [] if standing is None else [self._tell(kind, round_, standing, "confirmed")]

    def _review_fewer(self, each: _Standing, round_: Round) -> list[Action | Withdrawal]:
        fewer = round_.scaled(-1)
        if fewer is None or round_.load(fewer.load_ratio) >= self._policy.tolerance_ratio:
            return [self._withdraw("scale", round_.ground, "one engine fewer would no longer be enough")]
        return [self._tell("scale", round_, fewer, "confirmed")]

    def _review_other(self, kind: Kind, each: _Standing, round_: Round) -> list[Action | Withdrawal]:
        again = next((trial for trial in round_.trials if trial.what == each.action.what), None)
        load = 0.0 if again is None else round_.load(again.load_without_ratio)
        if self._calm(each, load, round_):
            return [self._withdraw(kind, round_.ground, f"the upper side is down to {percent(load)} of the limit")]
        if again is None:
            return []
        if again.after.goodput_requests_per_s.value < again.before.goodput_requests_per_s.value:
            return [self._withdraw(kind, round_.ground, "it would serve fewer requests well")]
        return [self._tell(kind, round_, again, "confirmed")]

    def _calm(self, each: _Standing, load: float, round_: Round) -> bool:
        """Whether the upper side has been low for long enough to let go."""
        now_us = round_.ground.as_of_us
        each.calm_us = (each.calm_us or now_us) if load < self._policy.release_ratio else None
        return each.calm_us is not None and now_us - each.calm_us >= self._policy.release_after_s * US_PER_S

    def _open(self, round_: Round, blocked: set[Kind]) -> list[Action | Withdrawal]:
        """The first of: more engines, another action, fewer engines. At most one."""
        if "scale" not in blocked and (wanted := round_.enough()) is not None:
            self._up_us = round_.ground.as_of_us
            self._short[round_.engines] = (round_.ground.as_of_us, round_.plain.rate_per_s)
            return [self._tell("scale", round_, wanted, "proposed")]
        if round_.ground.phase == "coarse":
            return []
        for trial in round_.others():
            kind = kind_of(trial)
            if kind not in blocked and kind not in self._standing:
                return [self._tell(kind, round_, trial, "proposed")]
        if "scale" not in blocked and not self._standing and (fewer := self._fewer(round_)) is not None:
            return [self._tell("scale", round_, fewer, "proposed")]
        return []

    def _fewer(self, round_: Round) -> Trial | None:
        """One engine fewer, if that is allowed now."""
        now_us, policy = round_.ground.as_of_us, self._policy
        if "scale" not in policy.allowed or round_.engines - 1 < policy.least_engines or self._fewer_us is None:
            return None
        cooling = now_us - self._up_us < policy.cooldown_s * US_PER_S
        if cooling or now_us - self._fewer_us < policy.consolidate_after_s * US_PER_S:
            return None
        return None if self._was_short(round_) else round_.scaled(-1)

    def _was_short(self, round_: Round) -> bool:
        """Whether so few engines were not enough lately, at a rate neither clearly above nor below that of now."""
        short_us, rate_per_s = self._short.get(round_.engines - 1, (_NEVER_US, 0.0))
        if round_.ground.as_of_us - short_us > REMEMBERED_S * US_PER_S:
            return False
        return LOWER_RATIO * rate_per_s < round_.plain.rate_per_s < HIGHER_RATIO * rate_per_s

    def _tell(self, kind: Kind, round_: Round, trial: Trial, state: ActionState) -> Action:
        ground = round_.ground
        before = self._standing.get(kind)
        if before is None:
            self._opened_us = ground.as_of_us
        opened_us = ground.as_of_us if before is None else before.action.opened_us
        reversible = is_reversible(trial)
        expires_us = ground.as_of_us + round(EXPIRES_AFTER_PERIODS * ground.period_s * US_PER_S)
        latest_us = round_.act_before_us(trial)
        action = Action(
            deployment=ground.deployment,
            at_us=ground.as_of_us,
            action_id=f"{ground.deployment}/{kind}/{opened_us}",
            state=state,
            phase=ground.phase,
            what=trial.what,
            reversible=reversible,
            executable=ground.authority == "full" or (ground.authority == "guarded" and reversible),
            act_before_us=expires_us if latest_us is None else latest_us,
            expires_us=expires_us,
            before=trial.before,
            after=trial.after,
            cost_engine_hours_per_hour=float(trial.delta),
            confidence_ratio=trial.confidence_ratio,
            authority=ground.authority,
            credibility=ground.credibility,
            start_s=ground.start_s if trial.delta > 0 else 0.0,
            reasons=round_.reasons(trial),
            lineage=ground.lineage,
            opened_us=opened_us,
        )
        calm_us = None if before is None else before.calm_us
        self._standing[kind] = _Standing(action, calm_us)
        return action

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts; the policy is not in it."""
        return {
            "version": _VERSION,
            "standing": [
                [kind, msgspec.to_builtins(each.action), each.calm_us] for kind, each in sorted(self._standing.items())
            ],
            "times_us": [self._opened_us, self._up_us],
            "fewer_us": self._fewer_us,
            "reserve": self._reserve.snapshot(),
            "short": [[engines, at_us, rate] for engines, (at_us, rate) in sorted(self._short.items())],
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], policy: Policy | None) -> Self:
        """The advisor of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") != _VERSION:
            raise ValueError(f"advisor snapshot has version {state.get('version')}, this code reads {_VERSION}")
        advisor = cls(policy)
        advisor._standing = {
            kind: _Standing(msgspec.convert(action, Action), calm_us) for kind, action, calm_us in state["standing"]
        }
        advisor._opened_us, advisor._up_us = state["times_us"]
        advisor._fewer_us = state["fewer_us"]
        advisor._short = {engines: (at_us, rate) for engines, at_us, rate in state["short"]}
        if "reserve" in state:  # older snapshots have none
            asked = advisor._policy
            advisor._reserve = DemandReserve.restore(state["reserve"], asked.reserve_level, asked.window_s)
        return advisor
