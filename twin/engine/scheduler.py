"""What runs in the next step: vLLM V1's scheduler, request by request. Policy only: no clock, no cost, no SimPy.

It is the plain reading of the rules, and the reference for the engines that take short cuts. The scheduler of another
serving engine is one more class with the methods of `Scheduler`.
Law: a step's tokens never exceed the budget, its sequences never exceed `max_num_seqs`, its blocks never the pool.

References: vLLM, vllm/v1/core/sched/scheduler.py (`schedule`, `_preempt_request`, `update_from_output`) and
vllm/v1/core/kv_cache_manager.py (`get_computed_blocks`, `allocate_slots`).
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from schemas.engines import EngineConfig
from twin.engine.kv import BlockPool


@dataclass(slots=True, eq=False)
class Request:
    """A request inside one engine. `computed` counts tokens scheduled so far, those of steps in flight included.

    `placeholders` are tokens of steps in flight that will exist when these steps end. `ended`: finished or dropped.
    """

    row: int
    isl: int
    osl: int
    rank: int
    keys: list[int]
    computed: int = 0
    generated: int = 0
    placeholders: int = 0
    preemptions: int = 0
    cached_tokens: int | None = None
    blocks: list[int] = field(default_factory=list)
    registered: int = 0
    prefilling: bool = True
    ended: bool = False

    @property
    def known(self) -> int:
        """Tokens whose value is known: the prompt and what was generated."""
        return self.isl + self.generated

    def key(self, index: int) -> int:
        """Prefix cache key of its block: shared for prompt blocks with a hash, else its own (negative)."""
        return self.keys[index] if index < len(self.keys) else -1 - (self.row << 32 | index)


@dataclass(slots=True, frozen=True)
class Scheduled:
    """One request's share of a step: `tokens` computed after `before`; it yields a token if `samples`."""

    request: Request
    tokens: int
    before: int
    decode: bool
    samples: bool


class Scheduler(Protocol):
    """A serving engine's policy over its queues and KV pool."""

    pool: BlockPool
    running: list[Request]

    @property
    def waiting(self) -> int:
        """Requests not running."""
        ...

    def add(self, request: Request) -> None:
        """A new request."""
        ...

    def restore(self, request: Request, *, in_flight: bool) -> None:
        """A request that was running when the window started, its `computed` tokens set; give it its blocks.

        With a step `in_flight` its tokens count as computed already. Raises ValueError if blocks run out.
        """
        ...

    def drop(self, request: Request) -> None:
        """Forget a request and free its blocks: it finished, or its client left."""
        ...

    def idle(self) -> None:
        """Nothing is left to do until the next `add`."""
        ...

    def schedule(self) -> list[Scheduled]:
        """Choose the next step's work, taking it as done in all queues and counts."""
        ...


class VllmScheduler:
    """vLLM V1: running requests first, then waiting ones, from one token budget."""

    def __init__(self, config: EngineConfig, pool: BlockPool, watermark_blocks: int) -> None:
        self.pool = pool
        self.running: list[Request] = []
        self._queue: deque[Request] = deque()
        self._config = config
        self._size = config.block_size_tokens
        self._threshold = config.long_prefill_threshold_tokens
        self._by_priority = config.policy == "priority"
        self._watermark_blocks = watermark_blocks
        self._steps = 0
        self._capacity_bound = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def queue(self) -> list[Request]:
        """The waiting requests, next one first."""
        return list(self._queue)

    def add(self, request: Request) -> None:
        self._enqueue(request, at_front=False)

    def restore(self, request: Request, *, in_flight: bool) -> None:
        blocks = self._hits(request, request.computed // self._size)
        self.pool.touch(blocks)
        request.registered = len(blocks)
        need = -(-request.computed // self._size)
        if need - len(blocks) > self.pool.free:
            raise ValueError(
                f"state.running[{request.row}] needs {need} KV blocks, {self.pool.free} are free;"
                " its computed_tokens or those before it are too many for this engine"
            )
        request.blocks = blocks + self.pool.take(need - len(blocks))
        self._register(request, request.computed)
        remaining = request.known - request.computed
        request.placeholders = int(in_flight and remaining == 0)
        request.prefilling = remaining > 0 if in_flight else remaining > 1 or request.generated == 0
        self.running.append(request)

    def drop(self, request: Request) -> None:
        request.ended = True
        if request in self.running:
            self.running.remove(request)
            self.pool.release(request.blocks)
            request.blocks = []
        else:
            self._queue.remove(request)

    def idle(self) -> None:
        # The cadence of `prefill_schedule_interval` starts anew with every wave of requests.
        self._steps = 0

    def schedule(self) -> list[Scheduled]:
        defer = self._defers_prefill()
        rows, budget, preempted = self._serve_running(defer)
        for request, tokens in rows:
            self._register(request, request.computed + tokens)
        # Not in the textbook: a step that preempted somebody admits nobody.
        if not preempted:
            self._admit(rows, budget, defer)
            if not defer:
                self._capacity_bound = bool(self._queue)
        self._steps += 1
        return [self._advance(request, tokens) for request, tokens in rows]

    def _defers_prefill(self) -> bool:
        # Off the cadence prefills wait, but only while decodes run, and not if the last cadence left a backlog.
        off_cadence = self._steps % self._config.prefill_schedule_interval_steps != 0
        return off_cadence and not self._capacity_bound and any(not r.prefilling for r in self.running)

    def _serve_running(self, defer: bool) -> tuple[list[tuple[Request, int]], int, bool]:
        rows: list[tuple[Request, int]] = []
        budget = self._config.max_num_batched_tokens
        preempted = False
        at = 0
        while at < len(self.running) and budget > 0:
            request = self.running[at]
            tokens = min(self._wanted(request, defer), budget)
            if tokens == 0:
                at += 1
                continue
            need = -(-(request.computed + tokens) // self._size) - len(request.blocks)
            while need > self.pool.free:
                preempted = True
                victim = self._victim()
                place = self.running.index(victim)
                del self.running[place]
                at -= place < at
                budget += sum(t for r, t in rows if r is victim)
                rows = [row for row in rows if row[0] is not victim]
                self._preempt(victim)
                if victim is request:
                    return rows, budget, True
            if need > 0:
                request.blocks += self.pool.take(need)
            rows.append((request, tokens))
            budget -= tokens
            at += 1
        return rows, budget, preempted

    def _wanted(self, request: Request, defer: bool) -> int:
        if defer and request.prefilling:
            return 0
        # With async scheduling, no further step for a request whose last token is already on its way.
        if request.placeholders and request.computed + 2 - request.placeholders >= request.isl + request.osl:
            return 0
        tokens = request.known + request.placeholders - request.computed
        return min(tokens, self._threshold) if self._threshold else tokens

    def _victim(self) -> Request:
        # FCFS gives up the last of the running list, priority the least urgent and latest.
        return max(self.running, key=lambda r: r.rank) if self._by_priority else self.running[-1]

    def _preempt(self, request: Request) -> None:
        # Not in the textbook: nothing is copied out, but full blocks stay findable until they are taken by others,
        # so the request usually resumes from them.
        self.pool.release(request.blocks)
        request.blocks = []
        request.registered = 0
        request.computed = 0
        request.prefilling = True
        request.preemptions += 1
        self._enqueue(request, at_front=True)

    def _admit(self, rows: list[tuple[Request, int]], budget: int, defer: bool) -> None:
        config = self._config
        while self._queue and budget > 0 and len(self.running) < config.max_num_seqs:
            request = self._queue[0]
            # At least one token is computed, or there would be nothing to sample from.
            hits = self._hits(request, (request.known - 1) // self._size)
            computed = len(hits) * self._size
            if defer and computed < request.known - 1:
                return
            tokens = request.known - computed
            if self._threshold:
                tokens = min(tokens, self._threshold)
            if not config.enable_chunked_prefill and tokens > budget:
                return
            tokens = min(tokens, budget)
            # The watermark holds back admissions only while something runs.
            free = self.pool.free - (self._watermark_blocks if self.running else 0) - self.pool.evictable(hits)
            # Not in the textbook: all known tokens must fit, though only the first chunk's blocks are taken now.
            whole = request.known if config.reserve_full_isl else computed + tokens
            if -(-whole // self._size) - len(hits) > free:
                return
            self._queue.popleft()
            self.pool.touch(hits)
            request.blocks = hits + self.pool.take(-(-(computed + tokens) // self._size) - len(hits))
            request.computed = computed
            request.registered = len(hits)
            if request.cached_tokens is None:
                request.cached_tokens = computed
            # Full blocks are findable from scheduling on, so the next one admitted in this step may share them.
            self._register(request, computed + tokens)
            self.running.append(request)
            rows.append((request, tokens))
            budget -= tokens

    def _hits(self, request: Request, most: int) -> list[int]:
        if not self._config.enable_prefix_caching:
            return []
        return self.pool.find(request.key(i) for i in range(most))

    def _register(self, request: Request, computed: int) -> None:
        if not self._config.enable_prefix_caching:
            return
        full = min(computed, request.known) // self._size
        for i in range(request.registered, full):
            self.pool.register(request.blocks[i], request.key(i))
        request.registered = max(request.registered, full)

    def _advance(self, request: Request, tokens: int) -> Scheduled:
        before = request.computed
        # A row is a decode if its request had caught up before; the last chunk after a preemption is not.
        decode = not request.prefilling
        request.computed += tokens
        samples = request.computed == request.known + request.placeholders
        request.placeholders += samples
        request.prefilling = not samples
        return Scheduled(request, tokens, before, decode, samples)

    def _enqueue(self, request: Request, *, at_front: bool) -> None:
        if self._by_priority:
            insort(self._queue, request, key=lambda r: r.rank)
        elif at_front:
            self._queue.appendleft(request)
        else:
            self._queue.append(request)
