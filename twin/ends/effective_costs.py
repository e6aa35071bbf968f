"""Effective step costs of one engine from its finished requests alone, where no step records come.

Turns the finished requests of the stretch that is known in full into likely steps, at the costs learned so far, and
lets the ordinary cost model learn these. While little is known the whole history is gone over again and again from
the prior, so that the first guess leaves no trace; then each stretch is learned once. What is learned holds whatever
the records do not tell apart: time between steps, the way to the client, tokens guessed ahead.
Laws: a stretch is learned once, in order, when hardly any request of it can still be unknown; memory is bounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from schemas.requests import RequestFinished
from twin.cost.block import FloatArray, StepBlock
from twin.cost.model import Learned, StepCostModel
from twin.ends.assumed_engine import BUDGETS_TOKENS, AssumedLimits
from twin.ends.finished_log import (
    ARRIVED,
    COMPUTED,
    COUNTED,
    FIRST,
    ISL,
    LAST,
    OSL,
    PREEMPTIONS,
    SCHEDULED,
    UNKNOWN,
    FinishedLog,
    IntArray,
)
from twin.ends.front_delay import FrontDelay
from twin.ends.likely_steps import LikelySteps, Window, likely_steps

US_PER_S = 1_000_000
LEAST_REQUESTS = 8
YOUNG_STEPS = 2_048
PASSES = 12
"""Times a young history is gone over: by then the shares of prefill and decode no longer move."""
GROWN_RATIO = 1.1
TRIAL_PASSES = 3
SPREAD_STEPS = 16
JUMP_RATIO = 0.4
"""The level of likely steps wavers more within seconds than that of recorded ones: only a larger jump is one."""


@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """Likely steps learned for good: the block, what learning it told, and how many requests waited at each (n,)."""

    block: StepBlock
    learned: Learned
    waiting: IntArray


class EffectiveCosts:
    """What the finished requests of one engine have taught up to `done_us` (event time, None before the first).

    `young` until `YOUNG_STEPS` likely steps are known; begin with False where the model was learned elsewhere.
    `limits` are what the steps have shown of the engine's own, `front` the time spent on the way to it and back.
    """

    def __init__(self, young: bool = True) -> None:
        self.log = FinishedLog()
        self.limits = AssumedLimits()
        self.front = FrontDelay()
        self.deployment = ""
        self.done_us: int | None = None
        self.young = young
        self._gone_over = 0

    def on_finished(self, event: RequestFinished, cache_tokens: int = 0) -> None:
        """Take one finished request; see `FinishedLog.on_finished`."""
        if self.log.on_finished(event, cache_tokens) and self.done_us is None:
            self.done_us, self.deployment = event.arrived_us, event.deployment

    def learn(
        self, as_of_us: int, model: StepCostModel, budget_tokens: int | None
    ) -> tuple[StepCostModel, list[Taught]]:
        """Learn what is known in full as of `as_of_us`; `budget_tokens` is the engine's token budget per step, None
        where it has not told it.

        Returns the model that has learned it (a new one while the history is young) and what was learned for good.
        """
        complete_us = as_of_us - self.log.lag_us()
        if self.done_us is None or complete_us <= self.done_us:
            return model, []
        stretch = _Stretch(self.log.table(), self.done_us, complete_us, self.front.delay_s)
        if self.young:
            return self._learn_over(stretch, model, budget_tokens), []
        found = stretch.known_steps(model, budget_tokens or self.limits.budget_tokens)
        if found is None:
            return model, []
        steps, block = found
        learned = model.learn_block(block)
        self._look_around(stretch, steps, block)
        self._settle(stretch, steps, len(block))
        return model, [Taught(block, learned, steps.waiting[: len(block)])]

    def _learn_over(self, stretch: "_Stretch", model: StepCostModel, budget_tokens: int | None) -> StepCostModel:
        """Learn the whole history anew, if it has grown enough to tell something new."""
        if stretch.complete_requests < max(LEAST_REQUESTS, GROWN_RATIO * self._gone_over):
            return model
        self._gone_over = stretch.complete_requests
        limits = AssumedLimits()
        found = _gone_over(stretch, model, budget_tokens or limits.budget_tokens, PASSES)
        if found is None:
            return model
        grown_up = found.model.steps >= YOUNG_STEPS
        if grown_up and budget_tokens is None:
            tries = {budget: _gone_over(stretch, found.model, budget, TRIAL_PASSES) for budget in BUDGETS_TOKENS}
            limits.on_budgets({budget: each.spread for budget, each in tries.items() if each is not None})
            found = _gone_over(stretch, found.model, limits.budget_tokens, PASSES) or found
        self.limits, self.front = limits, FrontDelay()
        self._look_around(stretch, found.steps, found.block)
        if grown_up:
            self.young = False
            self._settle(stretch, found.steps, len(found.block))
        return found.model

    def _look_around(self, stretch: "_Stretch", steps: LikelySteps, block: StepBlock) -> None:
        """Limits and the way to the engine, from the steps of the block."""
        self.limits.on_steps(block.shapes, steps.waiting[: len(block)], block.duration_s)
        self.front.on_requests(*stretch.bounds_of_delay(steps, len(block)))

    def _settle(self, stretch: "_Stretch", steps: LikelySteps, learned: int) -> None:
        """The first `learned` steps are done with."""
        self.done_us = stretch.at_us(steps.end_s[learned - 1])
        self.log.count(stretch.counted(steps, learned), stretch.left_tokens(steps, learned), self.done_us)

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "log": self.log.snapshot(),
            "limits": self.limits.snapshot(),
            "front": self.front.snapshot(),
            "deployment": self.deployment,
            "done_us": self.done_us,
            "young": self.young,
            "gone_over": self._gone_over,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """What a snapshot holds."""
        costs = cls(data["young"])
        costs.log = FinishedLog.restore(data["log"])
        costs.limits = AssumedLimits.restore(data["limits"])
        costs.front = FrontDelay.restore(data["front"])
        costs._gone_over = data["gone_over"]
        costs.deployment, costs.done_us = data["deployment"], data["done_us"]
        return costs


@dataclass(frozen=True, slots=True, eq=False)
class _GoneOver:
    """What going over a stretch several times came to: the model, the steps it has learned, and how far the time of
    `SPREAD_STEPS` consecutive ones strays from what was predicted (standard deviation of its log)."""

    model: StepCostModel
    steps: LikelySteps
    block: StepBlock
    spread: float


def _gone_over(stretch: "_Stretch", model: StepCostModel, budget_tokens: int, passes: int) -> _GoneOver | None:
    """Learn a stretch from the prior, time and again with the shares that the time before has taught."""
    for _ in range(passes):
        found = stretch.known_steps(model, budget_tokens)
        if found is None:
            return None
        steps, block = found
        model = StepCostModel(model.prior, jump_ratio=JUMP_RATIO)
        learned = model.learn_block(block)
    return _GoneOver(model, steps, block, _spread(block, learned))


def _spread(block: StepBlock, learned: Learned) -> float:
    """Over the second half: the first shows the prior more than the steps."""
    known = np.flatnonzero(learned.accepted)
    known = known[known.size // 2 :]
    groups = known.size // SPREAD_STEPS
    if groups < 2:
        return 0.0
    known = known[: groups * SPREAD_STEPS]
    observed, predicted = (
        values[known].reshape(groups, SPREAD_STEPS).sum(axis=1) for values in (block.duration_s, learned.predicted_s)
    )
    return float(np.std(np.log(observed / predicted)))


class _Stretch:
    """Requests of the log with tokens after `start_us`; what ends by `complete_us` is known in full.

    They reach the engine `delay_s` after their arrival.
    """

    def __init__(self, table: IntArray, start_us: int, complete_us: int, delay_s: float) -> None:
        order = np.lexsort((table[:, ARRIVED], table[:, FIRST]))
        self._rows = order[table[order, LAST] > start_us]
        self._table = table
        self._start_us = start_us
        self._complete_s = (complete_us - start_us) / US_PER_S
        self.window = self._window(table[self._rows], delay_s)
        self.complete_requests = int(np.count_nonzero(table[self._rows, LAST] <= complete_us))

    def _window(self, rows: IntArray, delay_s: float) -> Window:
        def seconds(column: int) -> FloatArray:
            return np.asarray((rows[:, column] - self._start_us) / US_PER_S)

        known = rows[:, SCHEDULED] != UNKNOWN
        return Window(
            arrived_s=seconds(ARRIVED),
            ready_s=np.where(known, seconds(SCHEDULED), np.minimum(seconds(ARRIVED) + delay_s, seconds(FIRST))),
            started_s=np.where(known, seconds(SCHEDULED), np.nan),
            first_s=seconds(FIRST),
            last_s=seconds(LAST),
            isl_tokens=rows[:, ISL],
            computed_tokens=rows[:, COMPUTED],
            osl_tokens=rows[:, OSL],
            entered=rows[:, COUNTED] != UNKNOWN,
            counted_steps=np.maximum(rows[:, COUNTED], 0),
            exact=rows[:, PREEMPTIONS] == 0,
        )

    def known_steps(self, model: StepCostModel, budget_tokens: int) -> tuple[LikelySteps, StepBlock] | None:
        """All steps after the start, and the block of those that are known in full; None where there are none."""
        steps = likely_steps(self.window, model.predict_many, budget_tokens) if len(self._rows) else None
        if steps is None or not len(block := self._block(steps)):
            return None
        return steps, block

    def _block(self, steps: LikelySteps) -> StepBlock:
        """Known steps as the cost model takes them; the time between steps is part of them."""
        known = int(np.searchsorted(steps.end_s, self._complete_s, side="right"))
        end_us = self._start_us + np.rint(steps.end_s[:known] * US_PER_S).astype(np.int64)
        numbers = np.arange(known)
        return StepBlock(
            at_us=np.maximum.accumulate(end_us - numbers) + numbers,
            shapes=steps.shapes[:known],
            duration_s=steps.duration_s[:known],
            gap_s=np.full(known, np.nan),
        )

    def bounds_of_delay(self, steps: LikelySteps, learned: int) -> tuple[FloatArray, FloatArray]:
        """Per request that began in the first `learned` steps right after another step: arrival to the start of that
        other one, and to the start of its own."""
        first = steps.first_step
        first = np.where((first > 0) & (first < learned), first, 0)
        follows = (first > 0) & (steps.start_s[first] <= steps.end_s[first - 1] + 1e-6)
        own, other = first[follows], first[follows] - 1
        arrived_s = self.window.arrived_s[follows]
        return steps.start_s[other] - arrived_s, steps.start_s[own] - arrived_s

    def at_us(self, time_s: float) -> int:
        """Event time of a moment of the window."""
        return self._start_us + round(time_s * US_PER_S)

    def counted(self, steps: LikelySteps, learned: int) -> IntArray:
        """`counted_steps` of every row of the log after the first `learned` steps."""
        counted = self._table[:, COUNTED].copy()
        entered = steps.first_token < learned
        before = np.where(self.window.entered, self.window.counted_steps, 0)
        now = before + learned - 1 - np.where(self.window.entered, -1, steps.first_token)
        most = self.window.osl_tokens - 1
        counted[self._rows] = np.where(entered, np.minimum(now, most), UNKNOWN)
        return counted

    def left_tokens(self, steps: LikelySteps, learned: int) -> IntArray:
        """`computed_tokens` of every row of the log that are still to be computed after these steps."""
        left = self._table[:, COMPUTED].copy()
        left[self._rows] -= steps.prefilled_tokens(learned)
        return left
