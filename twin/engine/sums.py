"""Decodes that advance together, as sums: how many, their context, when each finishes and when it needs a block.

A decoding request advances by one token per step, so its computed tokens are `clock + request.clock`. Where that is a
multiple of the block size it needs a block. Knows no time and no queue.
Law: what `settle` writes down is what stepping one by one would have led to.
"""

from bisect import insort
from heapq import heappush

from twin.engine.memory import BlockMemory, RunMemory
from twin.engine.request import Request
from twin.engine.types import UNDEFINED_PS


class DecodeSums:
    """The decodes of one engine. `prefilling` has the running requests that are not among them, in order.

    `phase[p]` counts decodes that need a block when `clock % size == p`, twice over, so that any stretch of it is a
    slice. `context` sums the computed tokens of the `decodes` decoding requests. `finish` is a heap of (clock at which
    it finishes, order of admission, request); entries of requests that left in another way have a stale order. Blocks
    are named only where `caching` prefixes that requests have `shared` keys for.
    """

    def __init__(self, usable_blocks: int, size: int, *, caching: bool, shared: bool) -> None:
        self.counted = RunMemory(usable_blocks, size, keeps=caching)
        named = caching and shared
        self.memory = BlockMemory(usable_blocks, size, caching=True) if named else self.counted
        self.size = size
        self.clock = 0
        self.decodes = 0
        self.context = 0
        self.finish: list[tuple[int, int, Request]] = []
        self.phase = [0] * (2 * size)
        self.prefilling: list[Request] = []
        self._growing: list[list[tuple[int, Request]]] | None = [[] for _ in range(size)] if named else None

    def sort_out(self, requests: list[Request]) -> None:
        """Requests whose next step is a decode join the sums, the others are prefilling."""
        self.prefilling.clear()
        for request in requests:
            if request.generated and request.isl + request.generated - request.computed == 1:
                self.join(request)
            else:
                self.prefilling.append(request)

    def join(self, request: Request) -> None:
        """Add a request whose next step is a decode."""
        request.clock = request.computed - self.clock
        self.decodes += 1
        self.context += request.computed
        place = -request.clock % self.size
        self.phase[place] += 1
        self.phase[place + self.size] += 1
        if self._growing is not None:
            insort(self._growing[place], (request.order, request))
        heappush(self.finish, (request.isl + request.osl - 1 - request.clock, request.order, request))

    def settle(self, request: Request) -> None:
        """Take a decode out of the sums and write its progress down."""
        place = -request.clock % self.size
        computed = self.clock + request.clock
        self.decodes -= 1
        self.context -= computed
        self.phase[place] -= 1
        self.phase[place + self.size] -= 1
        if self._growing is not None:
            self._growing[place].remove((request.order, request))
        request.clock = UNDEFINED_PS
        request.computed = computed
        request.generated = computed - request.isl + 1
        request.held = -(-computed // self.size)

    def until_blocks_run_out(self, most: int, free: int, decodes: int, clock: int) -> int:
        """Steps, at most `most`, whose blocks are all there; the first one's are taken already."""
        cycles, left = divmod(free, decodes)
        steps = 1 + cycles * self.size
        place = (clock + 1) % self.size
        for need in self.phase[place : place + self.size]:
            left -= need
            if left < 0 or steps >= most:
                break
            steps += 1
        return min(steps, most)

    def grow(self, clock: int) -> None:
        """Blocks for the decodes that need one in the step at this clock."""
        if self._growing is None:
            self.counted.take(self.phase[clock % self.size])
            return
        for _, request in self._growing[clock % self.size]:
            self.memory.grow(request, 1)

    def grown(self, steps: int) -> int:
        """Blocks that the decodes need in so many steps after the flight's first one."""
        cycles, rest = divmod(steps, self.size)
        place = (self.clock + 1) % self.size
        return cycles * self.decodes + sum(self.phase[place : place + rest])
