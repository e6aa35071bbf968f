"""Step costs straight from a step time that is not affine: looked up step by step, so nothing can be jumped over.

Slower to simulate than `FrozenStepCost` and closer to what was measured. Unlike it, it may fall where a shape grows in
a way that no step does. Law: > 0 for every shape, and the same shape always costs the same.
"""

from dataclasses import dataclass, field

from twin.cost.freeze import StepSeconds
from twin.cost.frozen import PS_PER_S
from twin.cost.shape import StepShape


@dataclass(frozen=True, slots=True, eq=False)
class ExactStepCost:
    """A `StepCost` from seconds per shape. Raises ValueError for a step time that is not finite and > 0."""

    step_s: StepSeconds
    _known: dict[StepShape, int] = field(default_factory=dict)

    def step_ps(self, shape: StepShape) -> int:
        """Picoseconds of one step."""
        found = self._known.get(shape)
        if found is None:
            seconds = self.step_s(shape)
            if not 0.0 < seconds < 1e6:
                raise ValueError(f"step time of {shape} must be finite and > 0 s, got {seconds}")
            found = self._known[shape] = max(round(seconds * PS_PER_S), 1)
        return found
