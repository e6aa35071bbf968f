"""What runs in the next step: vLLM V1's scheduler, request by request. Policy only: no clock, no cost, no SimPy.

The scheduler of another serving engine is one more class with the methods of `Scheduler`, given to
`twin.engine.run.simulate`.
Law: a step's tokens never exceed the budget, its sequences never exceed `max_num_seqs`, its blocks never the memory.

References: vLLM, vllm/v1/core/sched/scheduler.py (`schedule`, `_preempt_request`, `update_from_output`) and
vllm/v1/core/kv_cache_manager.py (`get_computed_blocks`, `allocate_slots`).
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol

from schemas.engines import EngineConfig
from twin.engine.memory import Memory
from twin.engine.request import FcfsQueue, PriorityQueue, Request, WaitingQueue


class Scheduled(NamedTuple):
    """One request's share of a step: `tokens` computed after `before`; it yields a token if `samples`."""

    request: Request
    tokens: int
    before: int
    decode: bool
    samples: bool


class Barrier(IntEnum):
    """Why admission stopped."""

    NOBODY_WAITS = 0
    NO_PLACE = 1
    """Token budget or `max_num_seqs` is used up: whoever comes, nobody is admitted until something changes."""
    HEAD_BLOCKED = 2
    """The next one does not fit; another one might, if it came before it."""


class Scheduler(Protocol):
    """A serving engine's policy over its queues and KV memory."""

    memory: Memory
    running: dict[int, Request]
    """By number of admission, in that order."""
    waiting: WaitingQueue

    def restore(self, request: Request, *, in_flight: bool) -> None:
        """A request that was running when the window started, its `computed` tokens set; give it its blocks.

        With a step `in_flight` its tokens count as computed already.
        """
        ...

    def drop(self, request: Request) -> None:
        """Forget a request and free its blocks: it finished, or its client left."""
        ...

    def idle(self) -> None:
        """Nothing is left to do until the next request."""
        ...

    def schedule(self) -> list[Scheduled]:
        """Choose the next step's work, taking it as done in all queues and counts."""
        ...


SchedulerOf = Callable[[EngineConfig, Memory, int], Scheduler]
"""Makes a scheduler for an engine with empty memory; the number is of blocks that admissions leave free."""


class VllmScheduler:
    """vLLM V1: running requests first, then waiting ones, from one token budget."""

    def __init__(self, config: EngineConfig, memory: Memory, watermark_blocks: int) -> None:
        self.memory = memory
        self.running: dict[int, Request] = {}
        self.by_priority = config.policy == "priority"
        self.waiting: WaitingQueue = PriorityQueue() if self.by_priority else FcfsQueue()
        self.budget_tokens = config.max_num_batched_tokens
        self.chunk_tokens = config.long_prefill_threshold_tokens or 2**62
        self.max_num_seqs = config.max_num_seqs
        self._size = config.block_size_tokens
        self._caching = config.enable_prefix_caching
        self.chunked = config.enable_chunked_prefill
        self.reserve_whole = config.reserve_full_isl
        self._interval = config.prefill_schedule_interval_steps
        self.watermark_blocks = watermark_blocks
        self.admissions = 0
        self._steps = 0
        self._capacity_bound = False

    def restore(self, request: Request, *, in_flight: bool) -> None:
        hits = self.memory.hits(request, request.computed // self._size)
        self.memory.admit(request, hits, -(-request.computed // self._size))
        self.memory.cache(request, request.computed)
        remaining = request.known - request.computed
        request.placeholders = int(in_flight and remaining == 0)
        request.prefilling = remaining > 0 if in_flight else remaining > 1 or request.generated == 0
        self._run(request)

    def drop(self, request: Request) -> None:
        request.ended = True
        if request.order < 0:
            self.waiting.remove(request)
            return
        del self.running[request.order]
        request.order = -1
        self.memory.release(request, resumes=False)

    def idle(self) -> None:
        # The cadence of `prefill_schedule_interval` starts anew with every wave of requests.
        self._steps = 0

    def schedule(self) -> list[Scheduled]:
        defer = self._defers_prefill()
        chosen, budget, preempted = self._serve_running(defer)
        for request, tokens in chosen:
            self.memory.cache(request, request.computed + tokens)
        rows = [self.advance(request, tokens) for request, tokens in chosen]
        # Not in the textbook: a step that preempted somebody admits nobody.
        if not preempted:
            self.admit(rows, budget, defer=defer)
            if not defer:
                self._capacity_bound = len(self.waiting) > 0
        self._steps += 1
        return rows

    def admit(self, rows: list[Scheduled], budget: int, *, defer: bool = False) -> Barrier:
        """Admit from the waiting queue while `budget` tokens last, adding to the step's `rows`; say why it ended."""
        memory, waiting, size = self.memory, self.waiting, self._size
        while waiting:
            if budget <= 0 or len(self.running) >= self.max_num_seqs:
                return Barrier.NO_PLACE
            request = waiting.head()
            known = request.isl + request.generated
            # At least one token is computed, or there would be nothing to sample from.
            hits = memory.hits(request, (known - 1) // size) if self._caching else []
            computed = max(len(hits) * size, request.arrived_tokens)
            if defer and computed < known - 1:
                return Barrier.HEAD_BLOCKED
            tokens = min(known - computed, self.chunk_tokens)
            if tokens > budget:
                if not self.chunked:
                    return Barrier.HEAD_BLOCKED
                tokens = budget
            # The watermark holds back admissions only while something runs.
            free = memory.free - (self.watermark_blocks if self.running else 0) - memory.evictable(hits)
            # Not in the textbook: all known tokens must fit, though only the first chunk's blocks are taken now.
            whole = known if self.reserve_whole else computed + tokens
            if -(-whole // size) - len(hits) > free:
                return Barrier.HEAD_BLOCKED
            waiting.pop()
            memory.admit(request, hits, -(-(computed + tokens) // size))
            request.computed = computed
            if request.cached_tokens < 0:
                request.cached_tokens = len(hits) * size
            # Full blocks are findable from scheduling on, so the next one admitted in this step may share them.
            memory.cache(request, computed + tokens)
            self._run(request)
            rows.append(self.advance(request, tokens))
            budget -= tokens
        return Barrier.NOBODY_WAITS

    def advance(self, request: Request, tokens: int) -> Scheduled:
        """Count a request's tokens of this step as computed."""
        before = request.computed
        remaining = request.isl + request.generated + request.placeholders - before
        # The last token after a preemption costs what a decode costs.
        decode = remaining == 1 and request.generated + request.placeholders > 0
        samples = tokens == remaining
        request.computed = before + tokens
        request.placeholders += samples
        request.prefilling = not samples
        return Scheduled(request, tokens, before, decode, samples)

    def _defers_prefill(self) -> bool:
        # Off the cadence prefills wait, but only while decodes run, and not if the last cadence left a backlog.
        if self._steps % self._interval == 0 or self._capacity_bound:
            return False
        return any(not r.prefilling for r in self.running.values())

    def _serve_running(self, defer: bool) -> tuple[list[tuple[Request, int]], int, bool]:
        chosen: list[tuple[Request, int]] = []
        budget = self.budget_tokens
        running = list(self.running.values())
        preempted = False
        at = 0
        while at < len(running) and budget > 0:
            request = running[at]
            tokens = min(self._wanted(request, defer), budget)
            if tokens == 0:
                at += 1
                continue
            need = -(-(request.computed + tokens) // self._size) - request.held
            while need > self.memory.free:
                preempted = True
                # FCFS gives up the last of the running list, priority the least urgent and latest.
                victim = max(running, key=lambda r: r.rank) if self.by_priority else running[-1]
                place = running.index(victim)
                del running[place]
                at -= place < at
                budget += sum(t for r, t in chosen if r is victim)
                chosen = [share for share in chosen if share[0] is not victim]
                self._preempt(victim)
                if victim is request:
                    return chosen, budget, True
            if need > 0:
                self.memory.grow(request, need)
            chosen.append((request, tokens))
            budget -= tokens
            at += 1
        return chosen, budget, preempted

    def _wanted(self, request: Request, defer: bool) -> int:
        if defer and request.prefilling:
            return 0
        # With async scheduling, no further step for a request whose last token is already on its way.
        if request.placeholders and request.computed + 2 - request.placeholders >= request.isl + request.osl:
            return 0
        return min(request.known + request.placeholders - request.computed, self.chunk_tokens)

    def _preempt(self, request: Request) -> None:
        # Not in the textbook: nothing is copied out, but full blocks stay findable until they are taken by others,
        # so the request usually resumes from them.
        del self.running[request.order]
        request.order = -1
        request.preemptions += 1
        self.memory.release(request, resumes=True)
        request.computed = 0
        request.arrived_tokens = 0
        request.prefilling = True
        self.waiting.push_back(request)

    def _run(self, request: Request) -> None:
        request.order = self.admissions
        self.running[self.admissions] = request
        self.admissions += 1
