"""One engine in SimPy, one event per step, with any scheduler and any cost. The oracle of the faster engines.

It takes no short cut: every step asks the scheduler, every block is a block. Does not route between engines.
Law: at one instant arrivals come first (they still see the finishing step's requests in flight), then clients whose
deadline passed leave, then the step's tokens exist, then the next step is scheduled.
"""

from collections import deque
from collections.abc import Generator

import simpy

from twin.cost.shape import StepShape
from twin.engine.bell import Bell
from twin.engine.memory import BlockMemory
from twin.engine.prepare import Prepared
from twin.engine.record import Ledger, Recorder, single_result
from twin.engine.request import Request
from twin.engine.scheduler import Scheduled, Scheduler, VllmScheduler
from twin.engine.timing import ROLE_INDEX, Timing
from twin.engine.types import LATEST_PS, UNDEFINED_PS, EngineResult, Status
from twin.engine.warm import Rows, warm_up

Process = Generator[simpy.Event, object, None]


def run_plain(prepared: Prepared, fallback: str = "") -> EngineResult:
    """Simulate one engine to its end."""
    env = simpy.Environment(initial_time=0)
    engine = PlainEngine(env, prepared)
    env.process(engine.run())
    env.run()
    engine.stop()
    return single_result(prepared, engine.record, "plain", fallback)


class PlainEngine:
    """The step loop: arrivals in, schedule, wait for the step, tokens out."""

    def __init__(
        self, env: simpy.Environment, prepared: Prepared, ledger: Ledger | None = None, rows: Rows | None = None
    ) -> None:
        self.ledger = ledger or Ledger(prepared.table)
        self.record = Recorder(self.ledger, prepared.grid)
        self._env = env
        self._bell = Bell(env)
        self._given = prepared
        self._timing = Timing(prepared.cost, prepared.noise, prepared.config.max_num_seqs)
        self._rows = rows or Rows(prepared.table)
        coming = slice(prepared.first_new, prepared.first_new if prepared.routed else prepared.offered)
        self.inbox = list(range(coming.start, coming.stop))
        self._arrivals: list[int] = prepared.table.arrival_ps[coming].tolist()
        self._taken = 0
        self._steps = 0
        self._busy_ps = 0
        self._depth = 2 if prepared.config.async_scheduling else 1
        config = prepared.config
        memory = BlockMemory(prepared.usable_blocks, config.block_size_tokens, caching=config.enable_prefix_caching)
        self.scheduler: Scheduler = VllmScheduler(config, memory, prepared.watermark_blocks)
        self._present: list[Request] = warm_up(prepared, self._rows, self.scheduler)

    @property
    def _now(self) -> int:
        # Integers all through; SimPy's type says int or float.
        return int(self._env.now)

    def run(self) -> Process:
        """The engine's process."""
        chosen: deque[list[Scheduled]] = deque()
        if self._given.step_left_ps:
            rows = [Scheduled(r, 0, 0, True, r.placeholders > 0) for r in self.scheduler.running.values()]
            if self._depth > 1:
                self._choose(chosen)
            yield from self._wait(self._given.step_left_ps)
            self._end_step(rows)
        else:
            self._take_arrivals()
            self._drop_expired()
        while self._now < self._given.until_ps:
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
        return len(self._present) + len(self.inbox) - self._taken

    def offer(self, row: int) -> None:
        """A router sends a request, now."""
        self.inbox.append(row)
        self._arrivals.append(self._now)
        self._bell.ring()

    def stop(self) -> None:
        """The run is over: note how far everything came."""
        self._hold(LATEST_PS)
        for request in self._present:
            self.record.close(request, Status.UNFINISHED)

    def _step(self, chosen: deque[list[Scheduled]]) -> Process:
        # Async scheduling runs a step that was chosen one step ago, and chooses the next one before that ends.
        while len(chosen) < self._depth and self._choose(chosen):
            pass
        # Under the priority policy the first of the running list may give up itself, and the step is empty: vLLM
        # schedules again at once.
        tries = len(self._present)
        while not chosen and not self._choose(chosen):
            tries -= 1
            if tries < 0:
                raise RuntimeError(f"nothing to schedule at {self._now} ps, {len(self._present)} requests present")
        rows = chosen.popleft()
        duration_ps = self._account(rows)
        yield from self._wait(duration_ps)
        self._end_step(rows)

    def _wait(self, duration_ps: int) -> Process:
        start, saturated = self._now, len(self.scheduler.waiting) > 0
        counts = self._counts()
        sampler = self.record.sampler
        yield self._env.timeout(duration_ps)
        while sampler is not None and sampler.next_ps < self._now:
            spent = sampler.next_ps - start
            sampler.put(*counts, self._busy_ps + spent, self.record.saturated_ps + spent * saturated)
        self._busy_ps += duration_ps
        self.record.saturated_ps += duration_ps * saturated

    def _counts(self) -> tuple[int, int, int]:
        scheduler = self.scheduler
        used = scheduler.memory.total - scheduler.memory.free
        return len(scheduler.waiting), len(scheduler.running), used

    def _hold(self, until_ps: int) -> None:
        if self.record.sampler is not None:
            self.record.sampler.hold(until_ps, *self._counts(), self._busy_ps, self.record.saturated_ps)

    def _choose(self, chosen: deque[list[Scheduled]]) -> bool:
        rows = self.scheduler.schedule()
        for scheduled in rows:
            request = scheduled.request
            if self.ledger.scheduled[request.row] == UNDEFINED_PS:
                self.ledger.scheduled[request.row] = self._now
                self.ledger.cached[request.row] = request.cached_tokens
        if rows:
            chosen.append(rows)
        return bool(rows)

    def _account(self, rows: list[Scheduled]) -> int:
        prefills = [r for r in rows if not r.decode]
        decodes = [r for r in rows if r.decode]
        shape = StepShape(
            prefill_requests=len(prefills),
            prefill_tokens=sum(r.tokens for r in prefills),
            prefill_attention_pairs=sum(r.tokens * r.before + r.tokens * (r.tokens + 1) // 2 for r in prefills),
            decode_requests=len(decodes),
            decode_context_tokens=sum(r.before + 1 for r in decodes),
        )
        duration_ps = self._timing.duration_ps(self._steps, shape)
        self._steps += 1
        self.record.add_work(ROLE_INDEX[shape.role], 1, shape, duration_ps)
        return duration_ps

    def _end_step(self, rows: list[Scheduled]) -> None:
        ledger, now = self.ledger, self._now
        self.record.end_ps = now
        self._take_arrivals()
        self._drop_expired()
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
        self._present.remove(request)
        self.scheduler.drop(request)
