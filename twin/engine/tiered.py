"""vLLM V1's scheduler with KV tiers behind its memory. Knows which blocks to load, not how long that takes.

Law: a request holds blocks for all its known tokens from the moment its load begins, so that whoever was loaded can
run; with no tier holding anything it schedules as `VllmScheduler` does.

References: vLLM, vllm/v1/core/sched/scheduler.py (WAITING_FOR_REMOTE_KVS).
"""

from schemas.engines import EngineConfig
from twin.engine.memory import Memory
from twin.engine.request import Request
from twin.engine.scheduler import Barrier, Scheduled, VllmScheduler
from twin.engine.tiers import Tiers


class TieredScheduler(VllmScheduler):
    """As `VllmScheduler`; a request whose blocks are in a tier waits for its load, and others pass it meanwhile.

    `begun` are the loads to begin now, with the tier of each block; `stalls` those that the next step must wait for.
    Whoever runs the steps takes both after `schedule`, and tells when a load is through.
    """

    def __init__(self, config: EngineConfig, memory: Memory, watermark_blocks: int, tiers: Tiers) -> None:
        super().__init__(config, memory, watermark_blocks)
        self.begun: list[tuple[Request, list[int]]] = []
        self.stalls: list[int] = []
        self._tiers = tiers
        self._loading: dict[int, tuple[int, list[int]]] = {}
        self._loaded: dict[int, list[int]] = {}
        self._kept: dict[int, int] = {}

    @property
    def loading(self) -> int:
        """Waiting requests whose load is under way."""
        return len(self._loading)

    def load_ended(self, request: Request) -> None:
        """Its blocks are here; who left meanwhile is not missed."""
        if request.row not in self._loading:
            return
        request.computed, self._loaded[request.row] = self._loading.pop(request.row)

    def keep(self, rows: list[Scheduled]) -> None:
        """A step has ended: its full blocks go to the tiers."""
        for request, tokens, before, _, _ in rows:
            first, full = self._kept.get(request.row, 0), (before + tokens) // self._size
            if full > first:
                self._tiers.keep([request.key(i) for i in range(first, full)])
                self._kept[request.row] = full

    def drop(self, request: Request) -> None:
        waits = request.order < 0
        super().drop(request)
        self._kept.pop(request.row, None)
        self._loading.pop(request.row, None)
        self._loaded.pop(request.row, None)
        if waits and request.held:
            self.memory.release(request, resumes=False)

    def admit(self, rows: list[Scheduled], budget: int, *, defer: bool = False) -> Barrier:
        passed: list[Request] = []
        barrier = self._admit(rows, budget, defer, passed)
        # Who is passed keeps his place.
        for request in reversed(passed):
            self.waiting.push_back(request)
        return barrier

    def _admit(self, rows: list[Scheduled], budget: int, defer: bool, passed: list[Request]) -> Barrier:
        memory, waiting, size = self.memory, self.waiting, self._size
        while waiting:
            if budget <= 0 or len(self.running) >= self.max_num_seqs:
                return Barrier.NO_PLACE
            request = waiting.head()
            if request.row in self._loading:
                passed.append(waiting.pop())
                continue
            known = request.isl + request.generated
            loaded = self._loaded.get(request.row)
            hits: list[int] = []
            if loaded is None:
                most = (known - 1) // size
                hits = memory.hits(request, most)
                found = self._tiers.find(request.key(i) for i in range(len(hits), most))
                computed = max((len(hits) + len(found)) * size, request.arrived_tokens)
            else:
                found, computed = loaded, request.computed
            begins = loaded is None and len(self._tiers.overlapped(found)) > 0
            if defer and computed < known - 1:
                return Barrier.HEAD_BLOCKED
            tokens = min(known - computed, self.chunk_tokens)
            if tokens > budget and not begins:
                if not self.chunked:
                    return Barrier.HEAD_BLOCKED
                tokens = budget
            whole = known if self.reserve_whole or begins else computed + tokens
            if loaded is None:
                free = memory.free - (self.watermark_blocks if self.running else 0) - memory.evictable(hits)
                if -(-whole // size) - len(hits) > free:
                    return Barrier.HEAD_BLOCKED
                # Not as in vLLM, which takes the blocks of the rest later: two half-loaded requests could wait for
                # each other for ever.
                memory.admit(request, hits, -(-(known if begins else computed + tokens) // size))
            waiting.pop()
            if request.cached_tokens < 0:
                request.cached_tokens = (len(hits) + len(found)) * size
            if begins:
                self._loading[request.row] = (computed, found)
                self.begun.append((request, found))
                passed.append(request)
                continue
            self._loaded.pop(request.row, None)
            self.stalls += found
            request.computed = computed
            memory.cache(request, computed + tokens)
            self._run(request)
            rows.append(self.advance(request, tokens))
            budget -= tokens
        return Barrier.NOBODY_WAITS
