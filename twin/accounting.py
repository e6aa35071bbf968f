"""What became of every input unit. Counts; does not decide.

Law: units in == sum of outcomes + units still held, after every call. Every unit ends as exactly one outcome.
"""

from collections import Counter
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """The eight ends of a unit."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    LATE = "late"
    TOMBSTONE = "tombstone"
    QUARANTINED = "quarantined"
    ORPHAN = "orphan"
    FORWARDED = "forwarded"
    DEAD_LETTER = "dead_letter"

    __hash__ = str.__hash__  # an enumeration's own is several times slower, and every record is counted


class Accounts:
    """Counters of units in and of their outcomes, with the reason where one was given."""

    def __init__(self) -> None:
        self.units_in = 0
        self._outcomes: Counter[Outcome] = Counter()
        self.reasons: Counter[str] = Counter()

    def receive(self, units: int = 1) -> None:
        """`units` more came in."""
        self.units_in += units

    def settle(self, outcome: Outcome, units: int = 1, reason: str = "") -> None:
        """`units` ended as `outcome`."""
        self._outcomes[outcome] += units
        if reason:
            self.reasons[f"{outcome}:{reason}"] += units

    def held(self) -> int:
        """Units that came in and have no outcome yet."""
        return self.units_in - self._outcomes.total()

    def as_dict(self) -> dict[str, int]:
        """`in` and every outcome, zeros included."""
        return {"in": self.units_in} | {outcome.value: self._outcomes[outcome] for outcome in Outcome}

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {"counts": self.as_dict(), "reasons": dict(self.reasons)}

    def restore(self, data: dict[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self.units_in = data["counts"]["in"]
        self._outcomes = Counter({outcome: data["counts"][outcome.value] for outcome in Outcome})
        self.reasons = Counter(data["reasons"])
