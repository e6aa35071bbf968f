"""Which prompts shared which prefix blocks: hashes per arrival, and who came first with each. Knows no lengths or time.

Laws: at most `MAX_KNOWN` hashes are remembered as seen and `MAX_HELD` are held by arrivals, oldest forgotten first;
an arrival whose hashes were forgotten counts as a prompt of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twin.metrics import IntArray

MAX_KNOWN = 131_072
MAX_HELD = 131_072
_ALL_BITS = 2**64 - 1


class PrefixMemory:
    """Hashes of the last `capacity` arrivals, addressed by their running number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._hashes: list[tuple[int, ...]] = [()] * capacity
        self._first: list[tuple[int, ...]] = [()] * capacity
        self._first_with: dict[int, int] = {}
        self._held = 0
        self._oldest = 0

    def add(self, sequence: int, hashes: Sequence[int]) -> int:
        """Hold the hashes of arrival `sequence`; numbers come in order, each once. Returns how many were known."""
        self._drop(sequence - self._capacity)
        values = tuple(value & _ALL_BITS for value in hashes)
        self._hashes[sequence % self._capacity] = values
        first = tuple(self._seen(value, sequence) for value in values)
        self._first[sequence % self._capacity] = first
        self._held += len(values)
        while self._held > MAX_HELD:
            self._drop(self._oldest)
        while len(self._first_with) > MAX_KNOWN:
            del self._first_with[next(iter(self._first_with))]
        return sum(number < sequence for number in first)

    def _seen(self, value: int, sequence: int) -> int:
        """Number of the first arrival with this hash; using it makes it the last to be forgotten."""
        first = self._first_with.pop(value, sequence)
        self._first_with[value] = first
        return first

    def _drop(self, sequence: int) -> None:
        """Forget the hashes of one arrival and of all before it."""
        while self._oldest <= sequence:
            slot = self._oldest % self._capacity
            self._held -= len(self._hashes[slot])
            self._hashes[slot] = self._first[slot] = ()
            self._oldest += 1

    def columns(self, sequences: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Offsets int64[n + 1], hash values and first arrivals of n arrivals, in the order asked.

        First arrivals are places in `sequences`, -1 where that arrival is not among them.
        """
        slots = (sequences % self._capacity).tolist()
        offsets = np.concatenate(([0], np.cumsum([len(self._hashes[slot]) for slot in slots]))).astype(np.int64)
        if not offsets[-1]:
            none = np.zeros(0, np.int64)
            return offsets, none, none
        values = np.array([value for slot in slots for value in self._hashes[slot]], np.uint64).view(np.int64)
        first = np.array([number for slot in slots for number in self._first[slot]], np.int64)
        order = np.argsort(sequences)
        found = np.searchsorted(sequences[order], first)
        place = order[np.minimum(found, sequences.size - 1)]
        return offsets, values, np.where(sequences[place] == first, place, -1)

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, lists and dicts."""
        return {
            "capacity": self._capacity,
            "rows": [[slot, list(h), list(self._first[slot])] for slot, h in enumerate(self._hashes) if h],
            "first_with": list(self._first_with.items()),
            "held": self._held,
            "oldest": self._oldest,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> "PrefixMemory":
        """The memory of a snapshot."""
        made = cls(state["capacity"])
        for slot, values, first in state["rows"]:
            made._hashes[slot], made._first[slot] = tuple(values), tuple(first)
        made._first_with = dict(state["first_with"])
        made._held, made._oldest = state["held"], state["oldest"]
        return made
