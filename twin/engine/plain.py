"""One engine in SimPy, one event per step, with any scheduler and any cost. The oracle of the faster engines.

It takes no short cut: every step asks the scheduler, every block is a block. Does not route between engines. While
all that is here waits for loads from a KV tier, no step runs.
Law: at one instant arrivals come first (they still see the finishing step's requests in flight), then clients whose
deadline passed leave, then the step's tokens exist, then the next step is scheduled.
"""

from collections import deque
from collections.abc import Callable, Generator

import simpy

from twin.cost.shape import StepShape
from twin.engine.bell import Bell
from twin.engine.device import Use
from twin.engine.memory import BlockMemory, cached_blocks
from twin.engine.prepare import Prepared
from twin.engine.record import Ledger, Recorder, single_result
from twin.engine.request import Request
from twin.engine.scheduler import Scheduled, Scheduler, SchedulerOf, VllmScheduler
from twin.engine.tiered import TieredScheduler
from twin.engine.tiers import Loads, tiers_of
from twin.engine.timing import ROLE_INDEX, Timing
from twin.engine.types import LATEST_PS, UNDEFINED_PS, EngineResult, Status
from twin.engine.warm import Parts, Rows, Seat, warm_up

Process = Generator[simpy.Event, object, None]
Chosen = tuple[list[Scheduled], int]
"""A step's shares, and how much longer it lasts for blocks that are loaded within it."""


def run_plain(prepared: Prepared, fallback: str = "", scheduler_of: SchedulerOf = VllmScheduler) -> EngineResult:
    """Simulate one engine to its end. An own scheduler knows no KV tiers."""
    env = simpy.Environment(initial_time=0)
    engine = PlainEngine(env, prepared, scheduler_of=scheduler_of)
    env.process(engine.run())
    env.run()
    engine.stop()
    return single_result(prepared, engine.record, "plain", fallback)


class PlainEngine:
    """The step loop: arrivals in, schedule, wait for the step, tokens out."""

    def __init__(
        self,
        env: simpy.Environment,
        prepared: Prepared,
        parts: Parts | None = None,
        use: Use | None = None,
        scheduler_of: SchedulerOf = VllmScheduler,
    ) -> None:
        alone = (Ledger(prepared.table), Rows(prepared.table), Seat([0], 0))
        self.ledger, self._rows, self._seat = parts or alone
        self.record = Recorder(self.ledger, prepared.grid)
        self.on_finish: Callable[[int], None] | None = None
        self._env = env
        self._use = use
        self._gone = False
        self._bell = Bell(env)
        self._given = prepared
        self._timing = Timing(prepared.cost, prepared.noise, prepared.config.max_num_seqs)
        coming = slice(prepared.first_new, prepared.first_new if prepared.routed else prepared.offered)
        self.inbox = list(range(coming.start, coming.stop))
        self._arrivals: list[int] = prepared.table.arrival_ps[coming].tolist()
        self._taken = 0
        self._steps = 0
        self._busy_ps = 0
        self._depth = 2 if prepared.config.async_scheduling else 1
        config = prepared.config
        memory = BlockMemory(prepared.usable_blocks, config.block_size_tokens, caching=config.enable_prefix_caching)
        tiers = tiers_of(config)
        self._tiered = TieredScheduler(config, memory, prepared.watermark_blocks, tiers) if tiers else None
        self._tiers, self._loads = tiers, Loads()
        self.scheduler: Scheduler = self._tiered or scheduler_of(config, memory, prepared.watermark_blocks)
        self._present: list[Request] = warm_up(prepared, self._rows, self.scheduler)

    @property
    def _now(self) -> int:
        # Integers all through; SimPy's type says int or float.
        return int(self._env.now)

    def run(self, *, cruising: bool = False) -> Process:
        """The engine's process; it never cruises."""
        chosen: deque[Chosen] = deque()
        if self._given.step_left_ps:
            rows = [Scheduled(r, 0, 0, True, r.placeholders > 0) for r in self.scheduler.running.values()]
            if self._depth > 1:
                self._choose(chosen)
            yield from self._wait(self._given.step_left_ps)
            self._end_step(rows)
        else:
            self._take_arrivals()
            self._drop_expired()
        while self._now < self._given.until_ps and not self._gone:
            if self._present:
                yield from self._step(chosen)
                continue
            self.scheduler.idle()
            if self._taken < len(self.inbox):
                yield self._env.timeout(self._arrivals[self._taken] - self._now)
            elif self._given.routed:
                yield self._bell.wait()
            else:
                return
            self._hold(self._now)
            self._take_arrivals()

    @property
    def outstanding(self) -> int:
        """Requests sent here that have not left."""
        return self._seat.outstanding[self._seat.engine]

    def offer(self, row: int, now: int) -> None:
        """A router sends a request, now."""
        limit = self._given.config.max_queued_requests
        if limit is not None and self.outstanding >= limit:
            self.ledger.status[row] = Status.REJECTED
            return
        self._seat.outstanding[self._seat.engine] += 1
        self.inbox.append(row)
        self._arrivals.append(now)
        self._bell.ring()

    @property
    def kv_used_blocks(self) -> int:
        """KV blocks in use."""
        return self.scheduler.memory.total - self.scheduler.memory.free

    def cached_blocks(self, row: int) -> int:
        """Leading prompt blocks of this request that the prefix cache holds."""
        return cached_blocks(self.scheduler.memory, self._rows.request(row))

    def prompt_blocks(self, row: int) -> int:
        """KV blocks of this request's prompt."""
        return -(-self._rows.request(row).isl // self._given.config.block_size_tokens)

    def vanish(self) -> list[int]:
        """Disappear now, in the middle of a step; the requests that are lost."""
        lost = [request.row for request in self._present] + self.inbox[self._taken :]
        self._gone = True
        self._present.clear()
        self._taken = len(self.inbox)
        self._seat.outstanding[self._seat.engine] = 0
        self._bell.ring()
        return lost

    def stop(self) -> None:
        """The run is over: note how far everything came."""
        self._hold(LATEST_PS)
        for request in self._present:
            self.record.close(request, Status.UNFINISHED)

    def _step(self, chosen: deque[Chosen]) -> Process:
        # Async scheduling runs a step that was chosen one step ago, and chooses the next one before that ends.
        while len(chosen) < self._depth and self._choose(chosen):
            pass
        # Under the priority policy the first of the running list may give up itself, and the step is empty: vLLM
        # schedules again at once.
        tries = len(self._present)
        while not chosen and not self._choose(chosen):
            tries -= 1
            if tries < 0 and self._loads.next_ps < LATEST_PS:
                yield from self._wait_for_load()
                return
            if tries < 0:
                raise RuntimeError(f"nothing to schedule at {self._now} ps, {len(self._present)} requests present")
        rows, stall_ps = chosen.popleft()
        shape = shape_of(rows)
        duration_ps = self._timing.duration_ps(self._steps, shape) + stall_ps
        self._steps += 1
        elapsed_ps = yield from self._wait(duration_ps)
        self.record.add_work(ROLE_INDEX[shape.role], 1, shape, elapsed_ps)
        self._end_step(rows)

    def _wait(self, duration_ps: int) -> Generator[simpy.Event, object, int]:
        loading = self._tiered.loading if self._tiered else 0
        start, saturated = self._now, len(self.scheduler.waiting) > loading
        counts = self._counts()
        sampler = self.record.sampler
        if self._use is None:
            yield self._env.timeout(duration_ps)
        else:
            yield from self._use(duration_ps)
        duration_ps = self._now - start
        while sampler is not None and sampler.next_ps < self._now:
            spent = sampler.next_ps - start
            sampler.put(*counts, self._busy_ps + spent, self.record.saturated_ps + spent * saturated)
        self._busy_ps += duration_ps
        self.record.saturated_ps += duration_ps * saturated
        return duration_ps

    def _wait_for_load(self) -> Process:
        """Nothing can run before a load is through, or before somebody comes who need not wait for one."""
        wake_ps = self._loads.next_ps
        if self._taken < len(self.inbox):
            wake_ps = min(wake_ps, self._arrivals[self._taken])
        yield self._env.timeout(wake_ps - self._now) | self._bell.wait()
        self._hold(self._now)
        self._take_arrivals()
        self._drop_expired()

    def _counts(self) -> tuple[int, int, int]:
        if self._gone:
            return 0, 0, 0
        return len(self.scheduler.waiting), len(self.scheduler.running), self.kv_used_blocks

    def _hold(self, until_ps: int) -> None:
        if self.record.sampler is not None:
            self.record.sampler.hold(until_ps, *self._counts(), self._busy_ps, self.record.saturated_ps)

    def _choose(self, chosen: deque[Chosen]) -> bool:
        for request in self._loads.through(self._now):
            if self._tiered:
                self._tiered.load_ended(request)
        rows = self.scheduler.schedule()
        stall_ps = 0
        if self._tiered and self._tiers:
            for request, found in self._tiered.begun:
                self._loads.begin(request, self._tiers.load_until_ps(found, self._now))
            stall_ps = self._tiers.stall_ps(self._tiered.stalls)
            self._tiered.begun.clear()
            self._tiered.stalls.clear()
        for scheduled in rows:
            request = scheduled.request
            if self.ledger.scheduled[request.row] == UNDEFINED_PS:
                self.ledger.scheduled[request.row] = self._now
                self.ledger.cached[request.row] = request.cached_tokens
        if rows:
            chosen.append((rows, stall_ps))
        return bool(rows)

    def _end_step(self, rows: list[Scheduled]) -> None:
        ledger, now = self.ledger, self._now
        if self._gone:
            return
        self.record.end_ps = now
        self._take_arrivals()
        self._drop_expired()
        if self._tiered:
            self._tiered.keep(rows)
        for scheduled in rows:
            request = scheduled.request
            if request.ended or not scheduled.samples:
                continue
            request.placeholders -= 1
            request.generated += 1
            if request.generated == 1:
                ledger.first[request.row] = now
            if request.generated == request.osl:
                ledger.last[request.row] = now
                self._leave(request, Status.FINISHED)
                if self.on_finish is not None:
                    self.on_finish(request.row)

    def _take_arrivals(self) -> None:
        now, limit = self._now, self._given.config.max_queued_requests
        while self._taken < len(self.inbox) and self._arrivals[self._taken] <= now:
            row = self.inbox[self._taken]
            self._taken += 1
            # vLLM's max_num_queued_reqs counts all requests in flight, waiting or running.
            if limit is not None and len(self._present) >= limit:
                self.ledger.status[row] = Status.REJECTED
                continue
            self.ledger.queued[row] = now
            request = self._rows.request(row)
            self._present.append(request)
            self.scheduler.waiting.push(request)

    def _drop_expired(self) -> None:
        now = self._now
        late = [r for r in self.scheduler.running.values() if self._rows.deadline[r.row] < now]
        late += [r for r in self._present if self._rows.deadline[r.row] < now and r not in late]
        for request in late:
            self._leave(request, Status.TIMED_OUT)

    def _leave(self, request: Request, status: Status) -> None:
        self.record.close(request, status)
        self._seat.outstanding[self._seat.engine] -= 1
        self._present.remove(request)
        self.scheduler.drop(request)


def shape_of(rows: list[Scheduled]) -> StepShape:
    """The counts of a step with these shares."""
    prefills = [row for row in rows if not row.decode]
    decodes = [row for row in rows if row.decode]
    return StepShape(
        prefill_requests=len(prefills),
        prefill_tokens=sum(row.tokens for row in prefills),
        prefill_attention_pairs=sum(r.tokens * r.before + r.tokens * (r.tokens + 1) // 2 for r in prefills),
        decode_requests=len(decodes),
        decode_context_tokens=sum(row.before + 1 for row in decodes),
    )
