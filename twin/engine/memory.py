"""Who holds how much KV memory: requests against a pool. Decides nothing; does not know time.

Two implementations with the same answers: `BlockMemory` names every block and caches prefixes, `CountMemory` only
counts and is for engines without a prefix cache.
Law: held blocks of all requests + free == total where no block is shared.
"""

from collections.abc import Sequence
from typing import Protocol

from twin.engine.kv import BlockPool
from twin.engine.request import Request


class Memory(Protocol):
    """What a scheduler asks of KV memory. `total` blocks, of which `free` are free now."""

    total: int
    block_size_tokens: int

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        ...

    def hits(self, request: Request, most: int) -> list[int]:
        """Cached blocks that a request not holding any can start from, at most `most`."""
        ...

    def evictable(self, hits: Sequence[int]) -> int:
        """How many of the hits count as free until they are admitted."""
        ...

    def admit(self, request: Request, hits: list[int], blocks: int) -> None:
        """Give a request the hits and as many new blocks as make up `blocks`; ValueError if they are not free."""
        ...

    def grow(self, request: Request, blocks: int) -> None:
        """Give `blocks` more."""
        ...

    def cache(self, request: Request, tokens: int) -> None:
        """The first `tokens` tokens are computed or being computed: their full blocks may be found by others."""
        ...

    def release(self, request: Request, *, resumes: bool) -> None:
        """Take all its blocks back; if it `resumes` later, it may find their content again."""
        ...

    def park(self, keys: Sequence[int]) -> None:
        """Free blocks hold these keys at a warm start, least recently used first."""
        ...


class CountMemory:
    """Counts only; nothing is ever found again."""

    __slots__ = ("block_size_tokens", "free", "total")

    def __init__(self, total: int, block_size_tokens: int) -> None:
        self.total = total
        self.free = total
        self.block_size_tokens = block_size_tokens

    def hits(self, request: Request, most: int) -> list[int]:
        return []

    def evictable(self, hits: Sequence[int]) -> int:
        return 0

    def admit(self, request: Request, hits: list[int], blocks: int) -> None:
        if blocks > self.free:
            raise ValueError(f"request row {request.row} needs {blocks} KV blocks, {self.free} are free")
        request.held = blocks
        self.free -= blocks

    def grow(self, request: Request, blocks: int) -> None:
        request.held += blocks
        self.free -= blocks

    def cache(self, request: Request, tokens: int) -> None:
        return

    def release(self, request: Request, *, resumes: bool) -> None:
        self.free += request.held
        request.held = 0

    def park(self, keys: Sequence[int]) -> None:
        return


class BlockMemory:
    """Named blocks. With `caching`, full blocks are found by key: prompt blocks by anyone, others by their owner."""

    __slots__ = ("_caching", "_pool", "block_size_tokens", "total")

    def __init__(self, total: int, block_size_tokens: int, *, caching: bool) -> None:
        self.total = total
        self.block_size_tokens = block_size_tokens
        self._pool = BlockPool(total)
        self._caching = caching

    @property
    def free(self) -> int:
        return self._pool.free

    def hits(self, request: Request, most: int) -> list[int]:
        if not self._caching or (request.keys is None and not request.preemptions):
            return []
        return self._pool.find(request.key(i) for i in range(most))

    def evictable(self, hits: Sequence[int]) -> int:
        return self._pool.evictable(hits)

    def admit(self, request: Request, hits: list[int], blocks: int) -> None:
        if blocks - len(hits) > self.free - self._pool.evictable(hits):
            raise ValueError(f"request row {request.row} needs {blocks} KV blocks, {self.free} are free")
        self._pool.touch(hits)
        request.blocks = hits + self._pool.take(blocks - len(hits))
        request.held = blocks
        request.registered = len(hits)

    def grow(self, request: Request, blocks: int) -> None:
        request.blocks += self._pool.take(blocks)
        request.held += blocks

    def cache(self, request: Request, tokens: int) -> None:
        if not self._caching or request.keys is None:
            return
        # Only prompt blocks have keys that others may ask for; own ones are registered when it is preempted.
        full = min(tokens // self.block_size_tokens, len(request.keys))
        for i in range(request.registered, full):
            self._pool.register(request.blocks[i], request.keys[i])
        request.registered = max(request.registered, full)

    def release(self, request: Request, *, resumes: bool) -> None:
        full = 0
        if self._caching:
            # The token of a step that did not end is not there, and neither is the block that it would have filled.
            full = max(request.computed // self.block_size_tokens, request.registered)
            if resumes:
                for i in range(request.registered, full):
                    self._pool.register(request.blocks[i], request.key(i))
        self._pool.release(request.blocks, full)
        request.blocks = []
        request.held = 0
        request.registered = 0

    def park(self, keys: Sequence[int]) -> None:
        self._pool.park(keys)


def cached_blocks(memory: Memory, request: Request) -> int:
    """Leading prompt blocks that a request not here yet would find."""
    return len(memory.hits(request, (request.isl - 1) // memory.block_size_tokens))
