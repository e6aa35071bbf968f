"""How well step costs were predicted: each step before it was learned, and costs frozen at a tick over the next minute.

Learns nothing. Laws: a step counts once per role; a frozen total is judged only over windows seen whole; refused steps
(zero tokens, absurd) count nowhere.
"""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from twin.cost.block import FloatArray, StepBlock
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost
from twin.cost.model import Learned
from twin.cost.shape import Role
from twin.metrics import BoolArray

WARM_UP_S = 60.0
FROZEN_SPAN_S = 60.0
US_PER_S = 1_000_000


class StepErrors:
    """Prequential errors of one engine's costs from 60 s after its first step: count and sum per role."""

    def __init__(self) -> None:
        self._first_us: int | None = None
        self._sums: dict[str, list[float]] = {role.value: [0.0, 0.0] for role in Role}

    def on_block(self, block: StepBlock, learned: Learned) -> None:
        """Count a block of steps that was just learned; blocks come in event order."""
        if not len(block):
            return
        if self._first_us is None:
            self._first_us = int(block.at_us[0])
        rows = learned.accepted & np.isfinite(learned.predicted_s)
        rows &= block.at_us > self._first_us + WARM_UP_S * US_PER_S
        error = np.abs(learned.predicted_s[rows] / block.duration_s[rows] - 1.0)
        for role, mask in zip(Role, _role_masks(block.shapes[rows]), strict=True):
            sums = self._sums[role.value]
            sums[0] += float(mask.sum())
            sums[1] += float(error[mask].sum())

    def as_dict(self) -> dict[str, Any]:
        """`n` steps judged and `mape`, a ratio, over all and per role (None without steps)."""
        n = sum(count for count, _ in self._sums.values())
        mape = {name: (total / count if count else None) for name, (count, total) in self._sums.items()}
        total = sum(total for _, total in self._sums.values())
        return {"n": int(n), "mape": {"all": total / n if n else None} | mape}

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"first_us": self._first_us, "sums": self._sums}

    @classmethod
    def restore(cls, data: dict[str, Any]) -> Self:
        """The errors of a snapshot."""
        errors = cls()
        errors._first_us = data["first_us"]
        errors._sums = {name: list(values) for name, values in data["sums"].items()}
        return errors


def frozen_total_errors(costs: Iterable[tuple[int, FrozenStepCost]], block: StepBlock) -> FloatArray:
    """|predicted / observed - 1| of the total step time of the 60 s after each freezing, gaps between steps included.

    `costs` are (event time of freezing in us, costs); `block` holds all steps of the engine. Windows that reach beyond
    the block, or hold no step, are left out.
    """
    worked = block.shapes[:, 1] + block.shapes[:, 3] > 0
    errors = []
    for at_us, cost in costs:
        end_us = at_us + round(FROZEN_SPAN_S * US_PER_S)
        inside = worked & (block.at_us > at_us) & (block.at_us <= end_us)
        if not inside.any() or int(block.at_us[-1]) < end_us:
            continue
        observed = float(block.duration_s[inside].sum() + np.nan_to_num(block.gap_s[inside]).sum())
        errors.append(abs(float(frozen_s(cost, block.shapes[inside]).sum()) / observed - 1.0))
    return np.array(errors)


def frozen_s(cost: FrozenStepCost, shapes: FloatArray) -> FloatArray:
    """Seconds of many steps, float64[n]; `shapes` (n, 5) as in `StepBlock`."""
    seconds = np.zeros(len(shapes))
    for role, mask in zip(Role, _role_masks(shapes), strict=True):
        seconds[mask] = _role_s(cost.role(role), shapes[mask])
    return seconds


def _role_s(cost: RoleCost, shapes: FloatArray) -> FloatArray:
    counts, places = np.unique(shapes[:, 3].astype(np.int64), return_inverse=True)
    table = np.array([cost.decodes_ps(n) for n in counts.tolist()], dtype=np.float64)
    slopes = np.array(
        [
            cost.prefill_request_ps,
            cost.prefill_token_ps,
            cost.prefill_attention_pair_ps,
            0,
            cost.decode_context_token_ps,
        ],
        dtype=np.float64,
    )
    return np.asarray((table[places] + shapes @ slopes) / PS_PER_S)


def _role_masks(shapes: FloatArray) -> tuple[BoolArray, ...]:
    """Rows of each role, in the order of `Role`."""
    prefill, decode = shapes[:, 1] > 0, shapes[:, 3] > 0
    return prefill & ~decode, ~prefill, prefill & decode
