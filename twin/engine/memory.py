"""Who holds how much KV memory: requests against a pool. Decides nothing; does not know time.

Two implementations with the same answers: `BlockMemory` names every block; `RunMemory` counts, several times as fast,
and is for engines in which no two requests share a block.
Law: held blocks of all requests + free == total where no block is shared.
"""

from collections import OrderedDict
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


class RunMemory:
    """Counts, and the runs in which blocks came back: enough where no two requests share a block.

    The free queue is `front` blocks without content, then `runs`: the full blocks that each request gave back, by row,
    in order. Blocks are taken from the front, then from the oldest run, whose request loses its last blocks first.
    Without `keeps` (no prefix cache) nothing that comes back has content.
    """

    __slots__ = ("block_size_tokens", "free", "front", "keeps", "runs", "total")

    def __init__(self, total: int, block_size_tokens: int, *, keeps: bool) -> None:
        self.total = total
        self.free = total
        self.front = total
        self.runs: OrderedDict[int, int] = OrderedDict()
        self.keeps = keeps
        self.block_size_tokens = block_size_tokens

    def hits(self, request: Request, most: int) -> list[int]:
        if not request.preemptions:
            return []
        return list(range(min(self.runs.get(request.row, 0), most)))

    def evictable(self, hits: Sequence[int]) -> int:
        return len(hits)

    def admit(self, request: Request, hits: list[int], blocks: int) -> None:
        if blocks > self.free:
            raise ValueError(f"request row {request.row} needs {blocks} KV blocks, {self.free} are free")
        request.held = blocks
        if hits:
            self.free -= len(hits)
            del self.runs[request.row]
        self.take(blocks - len(hits))

    def grow(self, request: Request, blocks: int) -> None:
        request.held += blocks
        self.take(blocks)

    def take(self, blocks: int) -> None:
        """As `grow`, for requests that keep their own account."""
        self.free -= blocks
        self.front -= blocks
        if self.front < 0:
            self.evict(-self.front)
            self.front = 0

    def evict(self, blocks: int) -> None:
        """Take so many blocks from the oldest runs; what they held is gone."""
        runs = self.runs
        while blocks > 0:
            row, left = next(iter(runs.items()))
            if left > blocks:
                runs[row] = left - blocks
                return
            runs.popitem(last=False)
            blocks -= left

    def cache(self, request: Request, tokens: int) -> None:
        return

    def release(self, request: Request, *, resumes: bool) -> None:
        full = request.computed // self.block_size_tokens if self.keeps else 0
        self.free += request.held
        self.front += request.held - full
        if full:
            self.runs[request.row] = full
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
