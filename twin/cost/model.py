"""Step costs learned online: duration = level(t) x shape(batch), starting from a prior.

Follows river's protocol (`learn_one`, `predict_one`), and takes blocks of steps by the same path. Time comes in with
the call. Refuses bad rows before they touch any state. Does not schedule, simulate or read a clock.
Law: predictions are > 0 and never fall when a count of the shape grows; a refused row changes counters only; rows
one by one and in blocks lead to the same state.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from river import base

from twin.cost.block import FloatArray, StepBlock
from twin.cost.frozen import FrozenStepCost, StepCost
from twin.cost.noise import StepNoise
from twin.cost.shape import StepShape

GENERIC_PRIOR = FrozenStepCost.uniform(
    fixed_ps=5_000_000_000,
    decode_request_ps=100_000_000,
    prefill_request_ps=100_000_000,
    prefill_token_ps=50_000_000,
    prefill_attention_pair_ps=1_000,
    decode_context_token_ps=10_000,
)
"""Where nothing is known of the hardware: the order of magnitude of a small server. Its efficiency is learned."""


class StepCostModel(base.Regressor):  # type: ignore[misc]
    """Online cost model of one engine.

    Parameters
    ----------
    prior
        Any `StepCost`: the number given before any step was seen, and where none was seen.
    level_half_life_s, shape_half_life_s
        Seconds of event time to lose half the weight.
    jump_ratio
        A lasting change of the level by more than this starts the level anew.
    """

    def __init__(
        self,
        prior: StepCost = GENERIC_PRIOR,
        level_half_life_s: float = 20.0,
        shape_half_life_s: float = 300.0,
        jump_ratio: float = 0.2,
    ) -> None:
        self.prior = prior
        self.level_half_life_s = level_half_life_s
        self.shape_half_life_s = shape_half_life_s
        self.jump_ratio = jump_ratio

    def learn_one(self, x: Mapping[str, float], y: float, *, at_us: int | None = None, gap_s: float = np.nan) -> None:
        """Learn one step: features as in `FEATURES` (missing ones are 0), y in seconds, event time of its end.

        Without `at_us` the clock moves by y. A bad row is refused and counted, see `refused`.
        """
        raise NotImplementedError

    def predict_one(self, x: Mapping[str, float]) -> float:
        """Seconds of a step of this shape at the present level, > 0."""
        raise NotImplementedError

    def predict(self, shape: StepShape) -> float:
        """`predict_one` of a `StepShape`."""
        raise NotImplementedError

    def learn_many(self, block: StepBlock) -> FloatArray:
        """Learn a block; returns for every row the seconds predicted before it was learned (n,), NaN where refused."""
        raise NotImplementedError

    def predict_many(self, shapes: FloatArray) -> FloatArray:
        """Seconds per row of `shapes` (n, 5) at the present level."""
        raise NotImplementedError

    def freeze(self, max_num_seqs: int) -> FrozenStepCost:
        """Costs for the next minute: level, learned shape and the mean gap between steps, as integers.

        Raises ValueError if `max_num_seqs` < 1.
        """
        raise NotImplementedError

    def noise(self) -> StepNoise:
        """What `freeze` leaves unexplained."""
        raise NotImplementedError

    @property
    def level(self) -> float:
        """Present speed of the engine against the learned shape; 1 at start, > 1 is slower."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Steps learned."""
        raise NotImplementedError

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused, by reason."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts, for JSON or msgpack. The prior is not in it."""
        raise NotImplementedError

    @classmethod
    def restore(cls, state: Mapping[str, Any], prior: StepCost = GENERIC_PRIOR) -> "StepCostModel":
        """The model of a snapshot. Raises ValueError if it is of another version or damaged."""
        raise NotImplementedError
