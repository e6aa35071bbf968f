"""Engine steps of two windows against one set of costs: which span class did how much work, and what it cost.

Work is counted by the shapes of steps; its time is that of the base's fitted costs, so a change of class time here is
a change of work. What the same work took beside those costs is the level of each role. A fit cannot tell classes apart
within a role's level: kernel profiles can. Law: fitted class times of a window add up to its fitted step time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.evidence import ClassChange
from twin.cost.block import StepBlock
from twin.cost.frozen import PS_PER_S, FrozenStepCost, RoleCost
from twin.cost.shape import Role
from twin.cost.taxonomy import SpanClass
from twin.evidence.class_guide import UNKNOWN
from twin.evidence.window import Window
from twin.metrics import BoolArray, FloatArray

LEAST_STEPS = 50
"""A role with fewer steps on either side has no level."""
Work = Mapping[str, FrozenStepCost]
"""Fitted costs by engine."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Totals of one window: fitted seconds by class, fitted and recorded seconds and steps by role, counts."""

    class_s: dict[SpanClass, float]
    fitted_s: dict[Role, float]
    recorded_s: dict[Role, float]
    steps: dict[Role, int]
    prefill_tokens: int
    decode_tokens: int

    @property
    def total_s(self) -> float:
        """Recorded step time."""
        return sum(self.recorded_s.values())


def work_of(window: Window, costs: Work) -> StepWork:
    """Work of all engines; one without costs of its own takes the first one's. Raises ValueError without costs."""
    if not costs:
        raise ValueError("work needs fitted costs of at least one engine")
    first = next(iter(costs.values()))
    class_s = dict.fromkeys((SpanClass.COMPUTE, SpanClass.ATTENTION, SpanClass.LAUNCH), 0.0)
    fitted, recorded, steps = (dict.fromkeys(Role, 0.0) for _ in range(3))
    tokens = [0, 0]
    for engine, rows in window.steps.items():
        used = [step for step in rows if step.prefill_tokens or step.decode_requests]
        block = StepBlock.from_steps(used)
        for role, which in _by_role(block).items():
            for span_class, seconds in _class_seconds(costs.get(engine, first).role(role), block.shapes[which]).items():
                class_s[span_class] += seconds
                fitted[role] += seconds
            recorded[role] += float(block.duration_s[which].sum())
            steps[role] += int(np.count_nonzero(which))
        tokens[0] += sum(step.prefill_tokens for step in used)
        tokens[1] += sum(step.decode_requests for step in used)
    return StepWork(class_s, fitted, recorded, {role: int(n) for role, n in steps.items()}, tokens[0], tokens[1])


def role_levels(base: StepWork, candidate: StepWork) -> dict[Role, float]:
    """What the candidate's steps took at the same work, over what the base's took; 1.0 is the same.

    Roles with under `LEAST_STEPS` steps on a side are left out.
    """
    found = {}
    for role in Role:
        if min(base.steps[role], candidate.steps[role]) >= LEAST_STEPS:
            sides = [side.recorded_s[role] / side.fitted_s[role] for side in (base, candidate)]
            found[role] = sides[1] / sides[0]
    return found


def class_changes(base: StepWork, candidate: StepWork) -> tuple[ClassChange, ...]:
    """Fitted class time per step, and what the levels add that no class can be given."""
    sides = base, candidate
    steps = [max(sum(side.steps.values()), 1) for side in sides]
    rows: list[tuple[str, list[float]]] = [(str(name), [side.class_s[name] for side in sides]) for name in base.class_s]
    rows.append((UNKNOWN, [side.total_s - sum(side.class_s.values()) for side in sides]))
    total = candidate.total_s / steps[1] - base.total_s / steps[0]
    found = []
    for name, seconds in rows:
        before, after = (value / count for value, count in zip(seconds, steps, strict=True))
        found.append(
            ClassChange(
                span_class=name,
                level="engine",
                unit="ms per step",
                base=before * 1e3,
                candidate=after * 1e3,
                base_count=steps[0],
                candidate_count=steps[1],
                share_of_change_ratio=(after - before) / total if total else None,
                origin="fitted",
            )
        )
    return tuple(found)


def _by_role(block: StepBlock) -> dict[Role, BoolArray]:
    prefills, decodes = block.shapes[:, 1] > 0, block.shapes[:, 3] > 0
    return {Role.PREFILL: prefills & ~decodes, Role.DECODE: ~prefills, Role.MIXED: prefills & decodes}


def _class_seconds(cost: RoleCost, shapes: FloatArray) -> dict[SpanClass, float]:
    """Prompt tokens and sequences are matrix products, pairs and context attention, the rest is launching."""
    requests, tokens, pairs, _, context = shapes.sum(axis=0) if len(shapes) else np.zeros(5)
    counts, repeats = np.unique(shapes[:, 3].astype(np.int64), return_counts=True)
    fixed = cost.decode_requests_ps[0]
    sequences = sum((cost.decodes_ps(int(n)) - fixed) * int(times) for n, times in zip(counts, repeats, strict=True))
    in_ps = {
        SpanClass.COMPUTE: tokens * cost.prefill_token_ps + sequences,
        SpanClass.ATTENTION: pairs * cost.prefill_attention_pair_ps + context * cost.decode_context_token_ps,
        SpanClass.LAUNCH: len(shapes) * fixed + requests * cost.prefill_request_ps,
    }
    return {name: float(value) / PS_PER_S for name, value in in_ps.items()}
