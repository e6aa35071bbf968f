"""Step costs learned online: duration = level(t) x shape(batch), starting from a prior.

Follows river's protocol (`learn_one`, `predict_one`), and takes blocks of steps by the same path. Time comes in with
the call. Refuses bad rows before they touch any state. Does not schedule, simulate or read a clock.
Laws: predictions are > 0, and within a role never fall when a count of the shape grows; a refused row changes counters
only; rows one by one and in blocks lead to the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from river import base

from twin.cost import learner, residuals, storage
from twin.cost.block import FEATURES, FloatArray, StepBlock, shape_row
from twin.cost.classes import ClassCosts
from twin.cost.fit import linearise, predict_rows, prior_gram, stratum_of, to_role_cost
from twin.cost.frozen import FrozenStepCost, StepCost
from twin.cost.learner import ACCEPTED, REASONS
from twin.cost.noise import StepNoise
from twin.cost.shape import StepShape
from twin.cost.strata import Prior

GENERIC_PRIOR = FrozenStepCost.uniform(
    fixed_ps=5_000_000_000,
    decode_request_ps=100_000_000,
    prefill_request_ps=100_000_000,
    prefill_token_ps=50_000_000,
    prefill_attention_pair_ps=10_000,
    decode_context_token_ps=100_000,
)
"""Where nothing is known of the hardware: the order of magnitude of a small server. Its efficiency is learned."""
MAX_NUM_SEQS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What learning a block told, per row (n,). NaN where the row was refused.

    `predicted_s`: seconds expected before the row was learned. `shape_s`: the same at level 1, so observed / `shape_s`
    follows the level; NaN also where the row says nothing of the level: in the first 512 steps, and for shapes seldom
    met before. `p99_s`: the 99th percentile expected. `outcome`: place in `REASONS`, 0 for learned.
    """

    predicted_s: FloatArray
    shape_s: FloatArray
    p99_s: FloatArray
    outcome: NDArray[np.int64]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Rows that were learned."""
        return np.asarray(self.outcome == ACCEPTED)


class StepCostModel(base.Regressor):  # type: ignore[misc]
    """Online cost model of one engine.

    Parameters
    ----------
    prior
        Any `StepCost`: the number given before any step was seen, and the form of the cost where none was seen. Its
        overall efficiency is learned. None stands for `GENERIC_PRIOR`.
    level_half_life_s, shape_half_life_s
        Seconds of event time to lose half the weight.
    jump_ratio
        A lasting change of the level by more than this starts the level anew.

    Examples
    --------
    >>> model = StepCostModel()
    >>> for step in range(1, 200):
    ...     model.learn_one({"decode_requests": 4, "decode_context_tokens": 400}, 0.02, at_us=step * 20_000)
    >>> round(model.predict_one({"decode_requests": 4, "decode_context_tokens": 400}), 4)
    0.02
    >>> model.learn_one({"decode_requests": 4}, float("nan"), at_us=4_000_000)
    >>> model.refused
    {'not_finite': 1}

    """

    def __init__(
        self,
        prior: StepCost | None = None,
        level_half_life_s: float = 20.0,
        shape_half_life_s: float = 300.0,
        jump_ratio: float = 0.2,
    ) -> None:
        for name, value in (
            ("level_half_life_s", level_half_life_s),
            ("shape_half_life_s", shape_half_life_s),
            ("jump_ratio", jump_ratio),
        ):
            if not 0.0 < value < 1e9:
                raise ValueError(f"{name} must be a finite number > 0, got {value}")
        self.prior = prior
        self.level_half_life_s = level_half_life_s
        self.shape_half_life_s = shape_half_life_s
        self.jump_ratio = jump_ratio
        self._settings = np.array([level_half_life_s, shape_half_life_s, np.log1p(jump_ratio)])
        roles = linearise(prior or GENERIC_PRIOR)
        self._prior = Prior(roles, np.stack([prior_gram(role, roles[role]) for role in range(3)]))
        self._state = learner.empty(self._prior)
        self._classes = ClassCosts(shape_half_life_s)

    def learn_one(self, x: Mapping[str, float], y: float, *, at_us: int | None = None, gap_s: float = np.nan) -> None:
        """Learn one step: features as in `FEATURES` (missing ones are 0), y in seconds, event time of its end.

        Without `at_us` the clock moves by y. A bad row is refused and counted, see `refused`.
        """
        if at_us is None:
            moved_s = y if 0.0 < y < learner.MAX_STEP_S else 0.0
            at_us = int(self._state.whole[learner.LAST_US]) + max(round(moved_s * 1e6), 1)
        block = StepBlock(
            at_us=np.array([at_us], dtype=np.int64),
            shapes=_features_row(x)[None, :],
            duration_s=np.array([y], dtype=np.float64),
            gap_s=np.array([gap_s], dtype=np.float64),
        )
        self.learn_block(block)

    def predict_one(self, x: Mapping[str, float]) -> float:
        """Seconds of a step of this shape if it ran now, > 0. Counts that are not finite or < 0 are taken as 0."""
        row = _features_row(x)
        row[~(np.isfinite(row) & (row >= 0.0))] = 0.0
        return float(self.predict_many(row[None, :])[0])

    def predict(self, shape: StepShape) -> float:
        """`predict_one` of a `StepShape`."""
        return float(self.predict_many(np.array([shape_row(shape)], dtype=np.float64))[0])

    def learn_many(self, block: StepBlock) -> FloatArray:
        """Learn a block; returns for every row the seconds predicted before it was learned (n,), NaN where refused."""
        return self.learn_block(block).predicted_s

    def learn_block(self, block: StepBlock) -> Learned:
        """Learn a block of consecutive steps, predict first. Tells what detectors and scores need, row by row."""
        out = learner.output(len(block))
        learner.learn_rows(
            self._state, self._prior, self._settings, block.at_us, block.shapes, block.duration_s, block.gap_s, out
        )
        if block.class_s:
            self._learn_classes(block, out)
        return Learned(out.predicted_s, np.where(out.telling, out.shape_s, np.nan), out.p99_s, out.outcome)

    def _learn_classes(self, block: StepBlock, out: learner.Output) -> None:
        rows = np.flatnonzero(out.outcome == ACCEPTED)
        unsettled = learner.SETTLED_STEPS - (self.steps - len(rows))
        first, rest = rows[: max(unsettled, 0)], rows[max(unsettled, 0) :]
        for part in (first, rest):
            classes = {name: column[part] for name, column in block.class_s.items()}
            self._classes.learn_many(block.at_us[part], block.shapes[part], out.shape_s[part], out.level[part], classes)
            if part is first and 0 < unsettled <= len(rows):
                self._classes.rescale(float(self._state.numbers[learner.UNIT]))

    def predict_classes(self, shape: StepShape) -> dict[str, float]:
        """Seconds per span class of a step of this shape if it ran now; empty while no step has carried classes."""
        return self._classes.predict(np.array(shape_row(shape), dtype=np.float64), self.level)

    def predict_many(self, shapes: FloatArray) -> FloatArray:
        """Seconds (n,) of `shapes` (n, 5), columns as in `FEATURES`, if they ran now."""
        seconds = np.zeros(len(shapes))
        predict_rows(np.ascontiguousarray(shapes, dtype=np.float64), self._state.roles, seconds)
        numbers = self._state.numbers
        now = learner.level_of(numbers) * np.exp(learner.FAST_SHARE * numbers[learner.FAST_LOG])
        return np.asarray(seconds * now)

    def freeze(self, max_num_seqs: int, *, with_gap: bool = True) -> FrozenStepCost:
        """Costs for the next minute: expected level times learned shape, and the mean gap between steps, as integers.

        `with_gap` False leaves the gap out, for comparison with recorded step durations.
        Raises ValueError if `max_num_seqs` is not in 1 .. 65536.
        """
        if not 1 <= max_num_seqs <= MAX_NUM_SEQS:
            raise ValueError(f"max_num_seqs must be in 1 .. {MAX_NUM_SEQS}, got {max_num_seqs}")
        gap_s = self.gap_s if with_gap else 0.0
        level = learner.frozen_level_of(self._state.numbers)
        prefill, decode, mixed = (to_role_cost(role, level, gap_s, max_num_seqs) for role in self._state.roles)
        return FrozenStepCost(prefill=prefill, decode=decode, mixed=mixed)

    def noise(self) -> StepNoise:
        """What `freeze` leaves unexplained."""
        return residuals.summarise(self._state.noise)

    @property
    def level(self) -> float:
        """Present slowness against the learned shape; it is made 1 once, after the first 512 steps. > 1 is slower."""
        return float(learner.level_of(self._state.numbers))

    @property
    def gap_s(self) -> float:
        """Mean time between two steps while work waits; 0 before any was seen."""
        numbers = self._state.numbers
        weight = numbers[learner.GAP_WEIGHT]
        return float(numbers[learner.GAP_S] / weight) if weight > 0.0 else 0.0

    @property
    def steps(self) -> int:
        """Steps learned."""
        return int(self._state.whole[learner.LEARNED])

    @property
    def jumps(self) -> int:
        """Times the level started anew."""
        return int(self._state.whole[learner.JUMPS])

    @property
    def jumped_us(self) -> int | None:
        """Event time at which the level last started anew; None if it never did."""
        return int(self._state.whole[learner.LAST_JUMP_US]) if self.jumps else None

    @property
    def at_us(self) -> int:
        """Event time of the last step learned; 0 before the first."""
        return int(self._state.whole[learner.LAST_US])

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused, by reason; reasons never met are left out."""
        counts = self._state.refused
        return {name: int(counts[i]) for i, name in enumerate(REASONS) if i != ACCEPTED and counts[i]}

    def has_seen(self, shape: StepShape) -> bool:
        """Whether steps like this one were learned; where not, the prediction extrapolates."""
        stratum = stratum_of(np.array(shape_row(shape), dtype=np.float64))
        return bool(self._state.strata.weight[stratum] > 0.0)

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts, for JSON or msgpack. The prior is not in it."""
        settings = {
            "level_half_life_s": self.level_half_life_s,
            "shape_half_life_s": self.shape_half_life_s,
            "jump_ratio": self.jump_ratio,
        }
        return {
            "version": storage.VERSION,
            "settings": settings,
            "state": storage.dump(self._state),
            "classes": self._classes.snapshot(),
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any], prior: StepCost | None = None) -> Self:
        """The model of a snapshot; it goes on as the original would. Raises ValueError if the snapshot is of another
        version or damaged."""
        storage.check_version(data)
        settings = data.get("settings")
        if not isinstance(settings, Mapping) or set(settings) != set(storage.SETTINGS):
            raise ValueError(f"step cost snapshot: settings must hold {', '.join(storage.SETTINGS)}, got {settings!r}")
        model = cls(prior, *(float(settings[name]) for name in storage.SETTINGS))
        model._state = storage.load(data.get("state"), model._state)
        model._classes = ClassCosts.restore(data.get("classes", {}))
        return model


def _features_row(x: Mapping[str, float]) -> FloatArray:
    return np.array([x.get(name, 0.0) for name in FEATURES], dtype=np.float64)
