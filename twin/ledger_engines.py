"""How many engines there were, and would have been: engine-hours and reversals. Knows no targets and no requests.

Law: engine-hours are the integral of the count; a step and the same step again are no reversal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from schemas.actions import Action, Scale
from schemas.changes import Change

US_PER_HOUR = 3_600_000_000


class Stood(Protocol):
    """A proposal, from when to when it stood (None: to the end)."""

    action: Action
    opened_us: int
    ended_us: int | None


@dataclass(frozen=True, slots=True)
class Steps:
    """Engines over time: (from when, how many), rising in time; empty where engines are not known."""

    counts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, changes: Iterable[Change], first: Action | None, configured: int, start_us: int) -> "Steps":
        """From what changes tell; before the first of them from what it, a proposal, or configurations tell.

        An engine counts from when it was ordered: it costs from then on. A change told twice counts once.
        """
        told: dict[str, Change] = {}
        for number, change in enumerate(sorted(changes, key=lambda each: each.at_us)):
            whole = change.engines_before is not None and change.engines_after is not None
            if change.kind == "scale" and change.status != "rejected" and whole:
                told.setdefault(change.action_id or f"#{number}", change)
        steps = [(change.at_us, change.engines_before or 0, change.engines_after or 0) for change in told.values()]
        if steps:
            before = steps[0][1]
        elif first is not None and isinstance(first.what, Scale):
            before = first.what.engines_before
        else:
            before = configured
        if not before:
            return cls(())
        return cls(((start_us, before), *((at_us, after) for at_us, _, after in steps)))

    @property
    def count(self) -> int:
        """How often the number changed."""
        return sum(one[1] != two[1] for one, two in pairwise(self.counts))

    @property
    def reversals(self) -> int:
        """How often it turned."""
        return reversals([(two[0], float(two[1] - one[1])) for one, two in pairwise(self.counts)])

    def hours(self, end_us: int) -> float | None:
        """Engine-hours to the end."""
        return _hours(self.counts, end_us) if self.counts else None

    def hours_obeyed(self, end_us: int, proposals: Sequence[Stood]) -> float | None:
        """Engine-hours if every proposal of scale had been in force while it stood, in addition to what was done.

        One that was obeyed ends with that; what was done then counts.
        """
        if not self.counts:
            return None
        extra = 0.0
        for each in proposals:
            what = each.action.what
            if isinstance(what, Scale):
                until_us = end_us if each.ended_us is None else min(each.ended_us, end_us)
                extra += (what.engines_after - what.engines_before) * max(until_us - each.opened_us, 0) / US_PER_HOUR
        return max(_hours(self.counts, end_us) + extra, 0.0)


def _hours(counts: Sequence[tuple[int, int]], end_us: int) -> float:
    ends = [at_us for at_us, _ in counts[1:]] + [max(end_us, counts[-1][0])]
    return sum(number * max(end - at_us, 0) for (at_us, number), end in zip(counts, ends, strict=True)) / US_PER_HOUR


def reversals(steps: Iterable[tuple[int, float]]) -> int:
    """How often steps (time, change) turned: one up after one down, or the other way round.

    >>> reversals([(0, 1.0), (1, 2.0), (2, -1.0), (3, 1.0)])
    2
    """
    ways = [change > 0 for _, change in sorted(steps) if change]
    return sum(one != two for one, two in pairwise(ways))
