"""Counts arrivals into slots of event time and hands finished slots to a rate forecaster. Forecasts nothing itself.

Law: an arrival is counted once, in the slot of its time; a slot that was handed over never changes.
"""

from collections.abc import Mapping
from typing import Any

from twin.traffic.counted import CountedArrivals
from twin.traffic.rate import RateForecaster

US_PER_S = 1_000_000
MOST_SILENT_SLOTS = 1_500
"""A longer silence is learned as this many empty slots: the forecaster has forgotten by then."""


class SlotCounter:
    """One forecaster and the slots that are still open."""

    def __init__(self, forecaster: RateForecaster) -> None:
        self.forecaster = forecaster
        self._slot_us = round(forecaster.slot_s * US_PER_S)
        self._open: dict[int, int] = {}
        self._next: int | None = None

    def count(self, at_us: int) -> None:
        """Count one arrival; one in a slot that was handed over comes too late and is left out."""
        slot = at_us // self._slot_us
        if self._next is None:
            self._next = slot + 1  # the first slot is seen only in part
        if slot >= self._next:
            self._open[slot] = self._open.get(slot, 0) + 1

    def advance(self, at_us: int) -> None:
        """Hand over every slot that ends at or before `at_us`."""
        end = at_us // self._slot_us
        if self._next is None or end <= self._next:
            return
        first = max(self._next, end - MOST_SILENT_SLOTS)
        for slot in range(first, end):
            self.forecaster.update(self._open.get(slot, 0), slot)
        self._open = {slot: count for slot, count in self._open.items() if slot >= end}
        self._next = end

    def advance_counted(self, counted: CountedArrivals, at_us: int) -> None:
        """Hand over slots that end at or before `at_us` as the engines' counts tell them, as far as these reach."""
        if self._next is None:
            return
        while (self._next + 1) * self._slot_us <= at_us:
            told = counted.between(self._next * self._slot_us, (self._next + 1) * self._slot_us)
            if told is None:
                return
            self.forecaster.update(max(round(told), self._open.pop(self._next, 0)), self._next)
            self._next += 1

    @property
    def handed_over_us(self) -> int:
        """Event time up to which slots were handed over; 0 before the first one."""
        return self._next * self._slot_us if self._next is not None and self.forecaster.slots else 0

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        return {"forecaster": self.forecaster.snapshot(), "open": sorted(self._open.items()), "next": self._next}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "SlotCounter":
        """The counter of a snapshot."""
        made = cls(RateForecaster.restore(state["forecaster"]))
        made._open = {int(slot): int(count) for slot, count in state["open"]}
        made._next = state["next"]
        return made
