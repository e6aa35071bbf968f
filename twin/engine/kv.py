"""KV blocks of one engine, block by block, after vLLM's BlockPool. Knows nothing of time, tokens or queues.

Law: after every call each block is either free or referenced: free + used == total, and a block is free exactly when
its reference count is 0.

References: vLLM, vllm/v1/core/block_pool.py and kv_cache_manager.py.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Blocks with reference counts, a free queue in order of eviction, and a prefix cache by key.

    Keys are whatever hashes to the content of a full block and all before it.

    >>> pool = BlockPool(3)
    >>> held = pool.take(2)
    >>> pool.register(held[0], 7)
    >>> pool.release(held, full=1)
    >>> pool.find([7, 8]), pool.free
    ([0], 3)
    """

    __slots__ = ("_by_key", "_free", "_key", "_references", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._references = [0] * total
        self._key: list[int | None] = [None] * total
        self._by_key: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        """Blocks nobody references; some of them may still be found by their key."""
        return len(self._free)

    def find(self, keys: Iterable[int]) -> list[int]:
        """The longest run of cached blocks from the first key on; references nothing."""
        found = []
        for key in keys:
            blocks = self._by_key.get(key)
            if blocks is None:
                break
            # Several blocks may hold the same content (computed at the same time); vLLM takes the first registered.
            found.append(blocks[0])
        return found

    def evictable(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are in the free queue now; referencing them takes them out of it."""
        return sum(1 for block in blocks if not self._references[block])

    def touch(self, blocks: Iterable[int]) -> None:
        """Reference cached blocks; those in the free queue leave it."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Reference `count` free blocks, first to be evicted first; what they cached is forgotten.

        Raises ValueError and changes nothing if fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"{count} KV blocks asked for, {len(self._free)} free; check before taking")
        blocks = []
        for _ in range(count):
            block = self._free.popitem(last=False)[0]
            if self._key[block] is not None:
                self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def register(self, block: int, key: int) -> None:
        """Let `find` see this full block under `key`."""
        self._key[block] = key
        self._by_key.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[int], full: int) -> None:
        """Drop one reference each; the first `full` blocks are worth keeping.

        The last block goes first, so that the tail of a prefix is evicted before its head. Blocks not worth keeping
        are the next to be taken. The content of registered blocks stays findable until they are taken.
        """
        references, free = self._references, self._free
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            references[block] -= 1
            if not references[block]:
                free[block] = None
                if place >= full:
                    free.move_to_end(block, last=False)

    def park(self, keys: Sequence[int]) -> None:
        """Let the last free blocks hold `keys`, least recently used first; for a warm start. Surplus old keys drop."""
        blocks = list(self._free)
        kept = keys[max(len(keys) - len(blocks), 0) :]
        for block, key in zip(blocks[len(blocks) - len(kept) :], kept, strict=True):
            self.register(block, key)

    def _forget(self, block: int) -> None:
        key = self._key[block]
        if key is None:
            return
        self._key[block] = None
        holders = self._by_key[key]
        holders.remove(block)
        if not holders:
            del self._by_key[key]
