"""One engine in SimPy that jumps over steps in which nothing is decided. Equal to `plain` bit for bit.

While only decodes run, nobody can be admitted, nobody finishes and no block runs out, step durations form an
arithmetic progression: their sum is known in closed form, and one event stands for all of them (a flight). Running
decodes are kept as sums, so that a step costs the same for one as for a thousand; what sums cannot say (preemption, a
budget smaller than the batch) is scheduled request by request. Does not do async scheduling or a prefill cadence.

Law: requests, totals and samples are those of `plain`, to the picosecond.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator
from heapq import heappop, heappush

import simpy

from twin.cost.shape import StepShape
from twin.engine.bell import Bell
from twin.engine.cruise import can_cruise, cruise
from twin.engine.flight import flight_ps, steps_to_reach
from twin.engine.memory import cached_blocks
from twin.engine.prepare import Prepared
from twin.engine.record import Ledger, Recorder, single_result
from twin.engine.request import Request
from twin.engine.scheduler import Barrier, Scheduled, VllmScheduler
from twin.engine.sums import DecodeSums
from twin.engine.timing import DECODE, MIXED, PREFILL, Timing
from twin.engine.types import LATEST_PS, STEPS_PER_EPOCH, UNDEFINED_PS, EngineResult, Status
from twin.engine.warm import Parts, Rows, Seat, warm_up

Process = Generator[simpy.Event, object, None]


def unsupported(prepared: Prepared) -> str:
    """Why this engine cannot do it; empty if it can."""
    if prepared.config.async_scheduling:
        return "async_scheduling"
    if prepared.config.prefill_schedule_interval_steps > 1:
        return "prefill_schedule_interval_steps > 1"
    if prepared.config.kv_tiers:
        return "kv_tiers"
    return ""


def run_fast(prepared: Prepared, fallback: str = "", *, cruising: bool = True) -> EngineResult:
    """Simulate one engine to its end; without `cruising`, through the general path only."""
    env = simpy.Environment(initial_time=0)
    engine = FastEngine(env, prepared)
    env.process(engine.run(cruising=cruising))
    env.run()
    engine.stop()
    return single_result(prepared, engine.record, "simpy", fallback)


class FastEngine(DecodeSums):
    """Plans a flight of one or more steps, waits for its end, takes what it yields. `cruise` shares its state."""

    def __init__(self, env: simpy.Environment, prepared: Prepared, parts: Parts | None = None) -> None:
        config, table = prepared.config, prepared.table
        caching, shared = config.enable_prefix_caching, table.distinct_keys > 0
        super().__init__(prepared.usable_blocks, config.block_size_tokens, caching=caching, shared=shared)
        self.on_finish: Callable[[int], None] | None = None
        self.env = env
        self.bell = Bell(env)
        self.ledger, self.rows, self.seat = parts or (Ledger(table), Rows(table), Seat([0], 0))
        self.record = Recorder(self.ledger, prepared.grid)
        self.timing = Timing(prepared.cost, prepared.noise, config.max_num_seqs)
        self.scheduler = VllmScheduler(config, self.memory, prepared.watermark_blocks)
        self.routed = prepared.routed
        # Who comes, and when; the last time stands for never.
        coming = slice(prepared.first_new, prepared.first_new if prepared.routed else prepared.offered)
        self.inbox = list(range(coming.start, coming.stop))
        self.arrivals: list[int] = [*table.arrival_ps[coming].tolist(), LATEST_PS]
        self.taken = 0
        self.expiring = table.expiring
        self.limit = 2**62 if config.max_queued_requests is None else config.max_queued_requests
        self.until_ps = prepared.until_ps
        # The step in flight at the start is not counted.
        self.steps = -1 if prepared.step_left_ps else 0
        self.busy_ps = 0
        self._late: list[tuple[int, int, Request]] = []
        self._share: list[Scheduled] = []
        self._explicit = False
        self.barrier = Barrier.NOBODY_WAITS
        # The flight under way: its start, its steps, the first one's duration and how much each is longer.
        self.start_ps = 0
        self.flight = 1
        self.first_ps = prepared.step_left_ps
        self.growth_ps = 0
        self._carry(warm_up(prepared, self.rows, self.scheduler))

    def run(self, *, cruising: bool) -> Process:
        """The engine's process: one event per flight, and one per idle spell."""
        now, until_ps = 0, self.until_ps
        cruising = cruising and can_cruise(self)
        if self.first_ps:
            yield self.bell.sleep(self.first_ps)
            now = self.first_ps
            self._land(now)
        else:
            self._take_arrivals(now)
            self._drop_expired(now)
        while now < until_ps:
            if cruising:
                now = yield from cruise(self, now)
                if now >= until_ps:
                    break
            if self.scheduler.running or self.scheduler.waiting:
                yield self.bell.sleep(self._plan(now))
                now += flight_ps(self.flight, self.first_ps, self.growth_ps)
                self._land(now)
                continue
            arrival = self.arrivals[self.taken]
            if arrival < LATEST_PS:
                yield self.env.timeout(arrival - now)
            elif self.routed:
                yield self.bell.wait()
            else:
                break
            now = int(self.env.now)
            self._hold(now)
            self._take_arrivals(now)

    @property
    def outstanding(self) -> int:
        """Requests sent here that have not left."""
        return self.seat.outstanding[self.seat.engine]

    def offer(self, row: int, now: int) -> None:
        """A router sends a request, now: who idles wakes, and a flight that it changes is cut short."""
        outstanding, engine = self.seat
        if outstanding[engine] >= self.limit:
            self.ledger.status[row] = Status.REJECTED
            return
        outstanding[engine] += 1
        self.inbox.append(row)
        self.arrivals[-1] = now
        self.arrivals.append(LATEST_PS)
        if self.bell.idle:
            self.bell.ring()
        elif self.flight > 1 and self._arrivals_matter():
            start, first, growth = self.start_ps, self.first_ps, self.growth_ps
            steps = steps_to_reach(now - start, first, growth)
            if steps < self.flight:
                self.flight = steps
                self.bell.bring_forward(start + flight_ps(steps, first, growth) - now)

    @property
    def kv_used_blocks(self) -> int:
        """KV blocks in use, those of steps that a flight has passed by now included."""
        steps = (
            steps_to_reach(int(self.env.now) - self.start_ps, self.first_ps, self.growth_ps) if self.flight > 1 else 1
        )
        return self.memory.total - self.memory.free + self.grown(min(steps, self.flight) - 1)

    def cached_blocks(self, row: int) -> int:
        """Leading prompt blocks of this request that the prefix cache holds."""
        return cached_blocks(self.memory, self.rows.request(row))

    def prompt_blocks(self, row: int) -> int:
        """KV blocks of this request's prompt."""
        return -(-self.rows.request(row).isl // self.size)

    def stop(self) -> None:
        """The run is over: note how far everything came."""
        self._hold(LATEST_PS)
        for request in [*self.scheduler.running.values(), *self.scheduler.waiting]:
            if request.clock != UNDEFINED_PS:
                self.settle(request)
            self.record.close(request, Status.UNFINISHED)

    def _plan(self, now: int) -> int:
        """Choose the next flight; how long it lasts."""
        scheduler, memory, share = self.scheduler, self.memory, self._share
        budget = scheduler.budget_tokens - self.decodes
        need = self.phase[self.clock % self.size]
        share.clear()
        self.start_ps = now
        if budget < 0 or need > memory.free or (self.prefilling and not self._fits(need, budget)):
            self._plan_explicitly(now)
            return self._single()
        if need:
            self.grow(self.clock)
        for request in self.prefilling:
            tokens = min(request.isl + request.generated - request.computed, scheduler.chunk_tokens, budget)
            if tokens:
                more = -(-(request.computed + tokens) // self.size) - request.held
                if more > 0:
                    memory.grow(request, more)
                memory.cache(request, request.computed + tokens)
                share.append(scheduler.advance(request, tokens))
                budget -= tokens
        chunks = len(share)
        self.barrier = scheduler.admit(share, budget)
        self._note_admitted(share[chunks:], now)
        return self._single() if share or not self.timing.affine else self._fly(now)

    def _fits(self, need: int, budget: int) -> bool:
        """Whether prefills can be served after all decodes, whatever their place among them, without preemption."""
        prefilling = self.prefilling
        wanted = 0
        for request in prefilling:
            tokens = min(request.isl + request.generated - request.computed, self.scheduler.chunk_tokens)
            wanted += tokens
            need += max(-(-(request.computed + tokens) // self.size) - request.held, 0)
        if need > self.memory.free:
            return False
        return wanted <= budget or list(self.scheduler.running.values())[-len(prefilling) :] == prefilling

    def _plan_explicitly(self, now: int) -> None:
        for request in self.scheduler.running.values():
            if request.clock != UNDEFINED_PS:
                self.settle(request)
        self.finish.clear()
        self._explicit = True
        # Under the priority policy the first of the running list may give up itself, and the step is empty.
        while not self._share:
            self._share += self.scheduler.schedule()
        self._note_admitted(self._share, now)

    def _note_admitted(self, share: list[Scheduled], now: int) -> None:
        ledger = self.ledger
        for scheduled in share:
            request = scheduled.request
            if ledger.scheduled[request.row] == UNDEFINED_PS:
                ledger.scheduled[request.row] = now
                ledger.cached[request.row] = request.cached_tokens

    def _single(self) -> int:
        """One step: the decodes kept as sums, and the requests with a share of their own."""
        decodes, context = self.decodes, self.context + self.decodes
        prefills = tokens = pairs = 0
        for _, count, before, decode, _ in self._share:
            if decode:
                decodes += 1
                context += before + 1
            else:
                prefills += 1
                tokens += count
                pairs += count * before + count * (count + 1) // 2
        role = DECODE if not tokens else MIXED if decodes else PREFILL
        shape = StepShape(prefills, tokens, pairs, decodes, context)
        duration_ps = self.timing.duration_ps(self.steps, shape)
        self.flight, self.first_ps, self.growth_ps = 1, duration_ps, 0
        if self._share:
            self.record.add_work(role, 1, shape, duration_ps)
        return duration_ps

    def _fly(self, now: int) -> int:
        """As many decode steps as nothing can change in; their durations are first, first + growth, ..."""
        decodes, finish = self.decodes, self.finish
        terms = self.timing.terms(self.steps, DECODE)
        growth = terms.decode_context_token_ps * decodes
        first = terms.decode_requests_ps[decodes] + terms.decode_context_token_ps * (self.context + decodes)
        while finish[0][2].order != finish[0][1]:
            heappop(finish)
        most = finish[0][0] - self.clock
        if self.timing.epochs > 1:
            most = min(most, STEPS_PER_EPOCH - self.steps % STEPS_PER_EPOCH)
        if self.memory.free < decodes * ((most - 1) // self.size + 1):
            most = self.until_blocks_run_out(most, self.memory.free, decodes, self.clock)
        cut = self._cut_ps() - now
        if cut < flight_ps(most, first, growth):
            most = steps_to_reach(cut, first, growth)
        duration_ps = flight_ps(most, first, growth)
        self.flight, self.first_ps, self.growth_ps = most, first, growth
        return duration_ps

    def _cut_ps(self) -> int:
        """The first instant whose step boundary must not be jumped over."""
        cut = self.until_ps
        if self._arrivals_matter():
            cut = min(cut, self.arrivals[self.taken])
        late = self._late
        while late and late[0][2].ended:
            heappop(late)
        return min(cut, late[0][0] + 1) if late else cut

    def _arrivals_matter(self) -> bool:
        # With a full batch or a blocked head an arrival changes nothing, unless it goes first or its client may leave.
        if self.barrier is Barrier.NOBODY_WAITS or self.expiring:
            return True
        return self.barrier is Barrier.HEAD_BLOCKED and self.scheduler.by_priority

    def _land(self, now: int) -> None:
        """The flight ends: count it, let arrivals in and late clients out, and hand out the last step's tokens."""
        flight, decodes = self.flight, self.decodes
        if self.record.sampler is not None and self.record.sampler.next_ps < now:
            self._sample(now)
        elapsed = now - self.start_ps
        self.busy_ps += elapsed
        if self.scheduler.waiting:
            self.record.saturated_ps += elapsed
        self.record.end_ps = now
        if not self._share:
            contexts = flight * (self.context + decodes) + decodes * (flight * (flight - 1) // 2)
            self.record.add_work(DECODE, flight, StepShape(0, 0, 0, flight * decodes, contexts), elapsed)
        for clock in range(self.clock + 1, self.clock + flight):
            self.grow(clock)
        if not self._explicit:
            self.clock += flight
            self.context += self.decodes * flight
        self.steps += flight
        if self.arrivals[self.taken] <= now:
            self._take_arrivals(now)
        if self._late:
            self._drop_expired(now)
        self._yield_tokens(now)
        self._explicit = False

    def _yield_tokens(self, now: int) -> None:
        finish = self.finish
        done: list[Request] = []
        while finish and finish[0][0] == self.clock:
            _, order, request = heappop(finish)
            if request.order == order:
                done.append(request)
        for scheduled in self._share:
            request = scheduled.request
            if scheduled.samples and not request.ended:
                request.placeholders = 0
                request.generated += 1
                if request.generated == 1:
                    self.ledger.first[request.row] = now
                if request.generated == request.osl:
                    done.append(request)
        # Blocks come back in the order in which the step was scheduled.
        done.sort(key=_order)
        for request in done:
            self.ledger.last[request.row] = now
            self._leave(request, Status.FINISHED)
            if self.on_finish is not None:
                self.on_finish(request.row)
        if self._share:
            share = (scheduled.request for scheduled in self._share)
            everyone = self.scheduler.running.values() if self._explicit else {*share, *self.prefilling}
            self.sort_out(sorted((r for r in everyone if r.order >= 0), key=_order))

    def _leave(self, request: Request, status: Status) -> None:
        if request.clock != UNDEFINED_PS:
            self.settle(request)
            if status is Status.TIMED_OUT and self.steps > 0:
                # The token of the step that just ended came too late.
                request.generated -= 1
        self.seat.outstanding[self.seat.engine] -= 1
        self.scheduler.drop(request)
        self.record.close(request, status)

    def _take_arrivals(self, now: int) -> None:
        ledger, scheduler = self.ledger, self.scheduler
        end = bisect_right(self.arrivals, now, self.taken)
        for i in range(self.taken, end):
            row = self.inbox[i]
            if len(scheduler.running) + len(scheduler.waiting) >= self.limit:
                ledger.status[row] = Status.REJECTED
                continue
            ledger.queued[row] = now
            if self.flight > 1 and self.arrivals[i] < now:
                # The boundary that took it in was jumped over.
                steps = steps_to_reach(self.arrivals[i] - self.start_ps, self.first_ps, self.growth_ps)
                ledger.queued[row] = self.start_ps + flight_ps(steps, self.first_ps, self.growth_ps)
            request = self.rows.request(row)
            scheduler.waiting.push(request)
            self._watch(request)
        self.taken = end

    def _watch(self, request: Request) -> None:
        deadline = self.rows.deadline[request.row]
        if deadline < LATEST_PS:
            heappush(self._late, (deadline, request.row, request))

    def _drop_expired(self, now: int) -> None:
        late: list[Request] = []
        while self._late and self._late[0][0] < now:
            request = heappop(self._late)[2]
            if not request.ended:
                late.append(request)
        for request in sorted(late, key=_order):
            self._leave(request, Status.TIMED_OUT)
            if request in self.prefilling:
                self.prefilling.remove(request)

    def _carry(self, requests: list[Request]) -> None:
        for request in requests:
            self._watch(request)
        running = list(self.scheduler.running.values())
        if self.first_ps:
            self._share = [Scheduled(r, 0, 0, True, r.placeholders > 0) for r in running]
            self._explicit = True
        else:
            self.sort_out(running)

    def _sample(self, now: int) -> None:
        """Samples of the flight that ends now; its blocks beyond the first step's are not taken yet."""
        sampler, start = self.record.sampler, self.start_ps
        waiting, running, used = self._counts()
        room = max(self.limit - running - waiting, 0)
        while sampler is not None and sampler.next_ps < now:
            spent = sampler.next_ps - start
            begun = steps_to_reach(spent + 1, self.first_ps, self.growth_ps) - 1
            boundary = start + flight_ps(begun, self.first_ps, self.growth_ps)
            came = bisect_right(self.arrivals, boundary, self.taken) - self.taken if begun else 0
            saturated = self.record.saturated_ps + (spent if waiting else 0)
            sampler.put(waiting + min(came, room), running, used + self.grown(begun), self.busy_ps + spent, saturated)

    def _counts(self) -> tuple[int, int, int]:
        return len(self.scheduler.waiting), len(self.scheduler.running), self.memory.total - self.memory.free

    def _hold(self, until_ps: int) -> None:
        if self.record.sampler is not None:
            self.record.sampler.hold(until_ps, *self._counts(), self.busy_ps, self.record.saturated_ps)


def _order(request: Request) -> int:
    return request.order
