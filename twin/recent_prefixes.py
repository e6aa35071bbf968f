"""Prompt blocks that an engine's prefix cache probably holds unused: those of requests that left last. Knows no engine.

Blocks of a request are freed from its tail, and taken from the oldest: so the heads of prompts, which others share,
stay longest. Law: never more than `CAPACITY` blocks, each once, least recently used first.
"""

from collections import OrderedDict
from collections.abc import Iterable

CAPACITY = 65_536


class RecentPrefixes:
    """Hashes of blocks of one size; blocks of another size start the memory anew."""

    def __init__(self) -> None:
        self.block_tokens = 0
        self._hashes: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, block_hashes: Iterable[int], block_tokens: int) -> None:
        """A request with these prompt blocks left."""
        if block_tokens != self.block_tokens:
            self._hashes.clear()
            self.block_tokens = block_tokens
        for value in reversed(tuple(block_hashes)):
            self._hashes[value] = None
            self._hashes.move_to_end(value)
        while len(self._hashes) > CAPACITY:
            self._hashes.popitem(last=False)

    def newest(self, most: int) -> tuple[int, ...]:
        """At most so many, least recently used first.

        >>> seen = RecentPrefixes()
        >>> seen.add((1, 2, 3), 16)
        >>> seen.add((1, 9), 16)
        >>> seen.newest(3)
        (2, 9, 1)
        """
        values = tuple(self._hashes)
        return values[max(len(values) - most, 0) :]

    def snapshot(self) -> list[int]:
        """Block size, then hashes."""
        return [self.block_tokens, *self._hashes]

    def restore(self, data: list[int]) -> None:
        """Take over what `snapshot` gave."""
        self.block_tokens = data[0]
        self._hashes = OrderedDict.fromkeys(data[1:])
