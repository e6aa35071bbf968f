"""One engine in SimPy that jumps over steps in which nothing is decided. Equal to `plain` bit for bit.

While only decodes run, nobody can be admitted, nobody finishes and no block runs out, step durations form an
arithmetic progression: their sum is known in closed form, and one event stands for all of them. Running decodes are
kept as sums, so that a step costs the same for one as for a thousand; what sums cannot say (preemption, a budget
smaller than the batch) is scheduled request by request. Does not do async scheduling or a prefill cadence.

Law: requests, totals and samples are those of `plain`, to the picosecond.
"""

from bisect import bisect_right, insort
from collections.abc import Generator
from heapq import heappop, heappush
from math import sqrt

import simpy

from twin.cost.shape import StepShape
from twin.engine.memory import BlockMemory, CountMemory
from twin.engine.prepare import Prepared
from twin.engine.record import Recorder
from twin.engine.request import Request
from twin.engine.scheduler import Barrier, Scheduled, VllmScheduler
from twin.engine.timing import DECODE, MIXED, PREFILL, Timing
from twin.engine.types import LATEST_PS, STEPS_PER_EPOCH, UNDEFINED_PS, EngineResult, Status
from twin.engine.warm import new_request, warm_up

Process = Generator[simpy.Event, object, None]


def unsupported(prepared: Prepared) -> str:
    """Why this engine cannot do it; empty if it can."""
    if prepared.config.async_scheduling:
        return "async_scheduling"
    if prepared.config.prefill_schedule_interval_steps > 1:
        return "prefill_schedule_interval_steps > 1"
    return ""


def run_fast(prepared: Prepared, fallback: str = "") -> EngineResult:
    """Simulate one engine to its end."""
    env = simpy.Environment(initial_time=0)
    engine = FastEngine(env, prepared)
    env.process(engine.run())
    env.run()
    return engine.record.result(prepared, "simpy", fallback)


class FastEngine:
    """Plans a flight of one or more steps, waits for its end, takes what it yields.

    A decoding request advances by one token per step, so its computed tokens are `clock + request.clock`. Where that
    is a multiple of the block size it needs a block: `_phase[p]` counts those that do when `clock % size == p`.
    """

    def __init__(self, env: simpy.Environment, prepared: Prepared) -> None:
        config = prepared.config
        self.record = Recorder(prepared)
        self._env = env
        self._given = prepared
        self._timing = Timing(prepared.cost, prepared.noise, config.max_num_seqs)
        self._arrival: list[int] = prepared.arrival_ps.tolist()
        self._deadline: list[int] = prepared.deadline_ps.tolist()
        self._expiring = bool((prepared.deadline_ps < LATEST_PS).any())
        self._next_row = prepared.carried
        size, usable = config.block_size_tokens, prepared.usable_blocks
        caching = config.enable_prefix_caching
        self._memory = BlockMemory(usable, size, caching=True) if caching else CountMemory(usable, size)
        self._scheduler = VllmScheduler(config, self._memory, prepared.watermark_blocks)
        self._limit = 2**62 if config.max_queued_requests is None else config.max_queued_requests
        self._size = size
        self._clock = 0
        # The step in flight at the start is not counted.
        self._steps = -1 if prepared.step_left_ps else 0
        self._busy_ps = 0
        self._present = prepared.carried
        self._decodes = 0
        self._context = 0
        self._finish: list[tuple[int, int, Request]] = []
        self._phase = [0] * (2 * size)
        self._growing: list[list[tuple[int, Request]]] | None = [[] for _ in range(size)] if caching else None
        self._prefilling: list[Request] = []
        self._late: list[tuple[int, int, Request]] = []
        self._rows: list[Scheduled] = []
        self._explicit = False
        self._barrier = Barrier.NOBODY_WAITS
        self._start_ps = 0
        self._first_ps = 0
        self._growth_ps = 0
        self._flight = 1
        self._warm = warm_up(prepared, self._scheduler)
        self._carry()

    def run(self) -> Process:
        """The engine's process: one event per flight, and one per idle spell."""
        timeout, until_ps = self._env.timeout, self._given.until_ps
        now = 0
        if self._given.step_left_ps:
            self._start_ps, self._first_ps = 0, self._given.step_left_ps
            yield timeout(self._first_ps)
            now = self._first_ps
            self._land(now)
        else:
            self._take_arrivals(now)
            self._drop_expired(now)
        while now < until_ps:
            if self._present:
                flight_ps = self._plan(now)
                yield timeout(flight_ps)
                now += flight_ps
                self._land(now)
                continue
            arrival = self._arrival[self._next_row] if self._next_row < len(self._arrival) else LATEST_PS
            if arrival >= until_ps:
                break
            self._hold(arrival)
            yield timeout(arrival - now)
            now = arrival
            self._take_arrivals(now)
        self._hold(LATEST_PS)
        self._note_unfinished()

    # Planning

    def _plan(self, now: int) -> int:
        scheduler, memory = self._scheduler, self._memory
        decodes = self._decodes
        budget = scheduler.budget_tokens - decodes
        need = self._phase[self._clock % self._size]
        rows: list[Scheduled] = []
        self._rows = rows
        self._start_ps = now
        if budget < 0 or need > memory.free or (self._prefilling and not self._fits(need, budget)):
            self._plan_explicitly(rows)
        else:
            if need:
                self._grow(self._clock)
            for request in self._prefilling:
                tokens = min(request.isl + request.generated - request.computed, scheduler.chunk_tokens, budget)
                if tokens:
                    more = -(-(request.computed + tokens) // self._size) - request.held
                    if more > 0:
                        memory.grow(request, more)
                    memory.cache(request, request.computed + tokens)
                    rows.append(scheduler.advance(request, tokens))
                    budget -= tokens
            if scheduler.waiting:
                chunks = len(rows)
                self._barrier = scheduler.admit(rows, budget)
                if len(rows) > chunks:
                    self._note_admitted(rows, chunks, now)
            else:
                self._barrier = Barrier.NOBODY_WAITS
            if not rows and self._timing.affine:
                return self._fly(now)
        return self._single(rows)

    def _fits(self, need: int, budget: int) -> bool:
        """Whether prefills can be served after all decodes, whatever their place among them, without preemption."""
        chunk, size, prefilling = self._scheduler.chunk_tokens, self._size, self._prefilling
        wanted = 0
        for request in prefilling:
            tokens = min(request.isl + request.generated - request.computed, chunk)
            wanted += tokens
            need += max(-(-(request.computed + tokens) // size) - request.held, 0)
        if need > self._memory.free:
            return False
        return wanted <= budget or self._scheduler.running[-len(prefilling) :] == prefilling

    def _plan_explicitly(self, rows: list[Scheduled]) -> None:
        for request in self._scheduler.running:
            if request.clock != UNDEFINED_PS:
                self._settle(request)
        self._finish.clear()
        self._explicit = True
        # Under the priority policy the first of the running list may give up itself, and the step is empty.
        while not rows:
            rows += self._scheduler.schedule()
        self._note_admitted(rows, 0, self._start_ps)

    def _note_admitted(self, rows: list[Scheduled], first: int, now: int) -> None:
        record = self.record
        for request, _, _, _, _ in rows[first:]:
            if record.scheduled[request.row] == UNDEFINED_PS:
                record.scheduled[request.row] = now
                record.cached[request.row] = request.cached_tokens

    def _single(self, rows: list[Scheduled]) -> int:
        """One step: the decodes, if they are not among the rows, and the rows."""
        decodes, context = self._decodes, self._context + self._decodes
        prefills = tokens = pairs = 0
        for _, count, before, decode, _ in rows:
            if decode:
                decodes += 1
                context += before + 1
            else:
                prefills += 1
                tokens += count
                pairs += count * before + count * (count + 1) // 2
        role = DECODE if not tokens else MIXED if decodes else PREFILL
        if self._timing.affine:
            terms = self._timing.terms(self._steps, role)
            flight_ps = (
                terms.decode_requests_ps[decodes]
                + terms.prefill_request_ps * prefills
                + terms.prefill_token_ps * tokens
                + terms.prefill_attention_pair_ps * pairs
                + terms.decode_context_token_ps * context
            )
        else:
            flight_ps = self._timing.duration_ps(self._steps, StepShape(prefills, tokens, pairs, decodes, context))
        self._flight, self._first_ps, self._growth_ps = 1, flight_ps, 0
        work = self.record.work[role]
        work[0] += 1
        work[1] += prefills
        work[2] += tokens
        work[3] += pairs
        work[4] += decodes
        work[5] += context
        work[6] += flight_ps
        return flight_ps

    def _fly(self, now: int) -> int:
        """As many decode steps as nothing can change in; their durations are first, first + growth, ..."""
        decodes, context, steps, finish = self._decodes, self._context, self._steps, self._finish
        terms = self._timing.terms(steps, DECODE)
        growth = terms.decode_context_token_ps * decodes
        first = terms.decode_requests_ps[decodes] + terms.decode_context_token_ps * (context + decodes)
        while finish[0][2].order != finish[0][1]:
            heappop(finish)
        most = finish[0][0] - self._clock
        if self._timing.epochs > 1:
            most = min(most, STEPS_PER_EPOCH - steps % STEPS_PER_EPOCH)
        if self._memory.free < decodes * ((most - 1) // self._size + 1):
            most = self._until_blocks_run_out(most)
        flight_ps = most * first + growth * (most * (most - 1) // 2)
        cut = self._cut_ps() - now
        if cut < flight_ps:
            most = steps_to_reach(cut, first, growth)
            flight_ps = most * first + growth * (most * (most - 1) // 2)
        self._flight, self._first_ps, self._growth_ps = most, first, growth
        work = self.record.work[DECODE]
        work[0] += most
        work[4] += most * decodes
        work[5] += most * (context + decodes) + decodes * (most * (most - 1) // 2)
        work[6] += flight_ps
        return flight_ps

    def _cut_ps(self) -> int:
        """The first instant at which a step boundary must not be jumped over."""
        cut = self._given.until_ps
        barrier = self._barrier
        # With a full batch or a blocked head an arrival changes nothing, unless it goes first or its client may leave.
        if (
            barrier is Barrier.NOBODY_WAITS
            or self._expiring
            or (barrier is Barrier.HEAD_BLOCKED and self._scheduler.by_priority)
        ) and self._next_row < len(self._arrival):
            cut = min(cut, self._arrival[self._next_row])
        if self._expiring:
            late = self._late
            while late and late[0][2].ended:
                heappop(late)
            if late:
                cut = min(cut, late[0][0] + 1)
        return cut

    def _until_blocks_run_out(self, most: int) -> int:
        """Steps, at most `most`, whose blocks are all there; the first one's are taken already."""
        cycles, left = divmod(self._memory.free, self._decodes)
        steps = 1 + cycles * self._size
        place = (self._clock + 1) % self._size
        for need in self._phase[place : place + self._size]:
            left -= need
            if left < 0 or steps >= most:
                break
            steps += 1
        return min(steps, most)

    def _grow(self, clock: int) -> None:
        """Blocks for the decodes that need one in the step at this clock."""
        memory = self._memory
        if self._growing is None:
            memory.free -= self._phase[clock % self._size]  # type: ignore[misc]
            return
        for _, request in self._growing[clock % self._size]:
            memory.grow(request, 1)

    # Landing

    def _land(self, now: int) -> None:
        flight = self._flight
        sampler = self.record.sampler
        if sampler is not None and sampler.next_ps < now:
            self._sample(now)
        elapsed = now - self._start_ps
        self._busy_ps += elapsed
        if self._scheduler.waiting:
            self.record.saturated_ps += elapsed
        self.record.end_ps = now
        if flight > 1:
            self._grow_over(flight - 1)
        if not self._explicit:
            self._clock += flight
            self._context += self._decodes * flight
        if self._next_row < len(self._arrival) and self._arrival[self._next_row] <= now:
            self._take_arrivals(now)
        self._steps += flight
        if self._expiring:
            self._drop_expired(now)
        finish = self._finish
        if self._rows or (finish and finish[0][0] == self._clock):
            self._yield_tokens(now)
        self._explicit = False

    def _grow_over(self, steps: int) -> None:
        if self._growing is not None:
            for clock in range(self._clock + 1, self._clock + 1 + steps):
                self._grow(clock)
            return
        cycles, rest = divmod(steps, self._size)
        place = (self._clock + 1) % self._size
        self._memory.free -= cycles * self._decodes + sum(self._phase[place : place + rest])  # type: ignore[misc]

    def _yield_tokens(self, now: int) -> None:
        record, finish, clock = self.record, self._finish, self._clock
        done: list[Request] = []
        while finish and finish[0][0] == clock:
            _, order, request = heappop(finish)
            if request.order == order:
                done.append(request)
        joining: list[Request] = []
        rows = self._rows
        for request, _, _, _, samples in rows:
            if request.ended:
                continue
            if samples:
                request.placeholders = 0
                request.generated += 1
                if request.generated == 1:
                    record.first[request.row] = now
                if request.generated == request.osl:
                    done.append(request)
                    continue
            joining.append(request)
        if self._explicit:
            self._prefilling = []
            joining = [request for request in self._scheduler.running if request not in done]
        elif rows:
            served = {row[0] for row in rows}
            self._prefilling = [request for request in self._prefilling if request not in served and not request.ended]
            joining += self._prefilling
            self._prefilling = []
            joining.sort(key=_order)
        if len(done) > 1:
            # Blocks come back in the order in which the step was scheduled.
            done.sort(key=_order)
        for request in done:
            self._leave(request, Status.FINISHED, now)
        for request in joining:
            if request.generated and request.isl + request.generated - request.computed == 1:
                self._join(request)
            else:
                self._prefilling.append(request)

    def _join(self, request: Request) -> None:
        clock, size = self._clock, self._size
        request.clock = request.computed - clock
        self._decodes += 1
        self._context += request.computed
        place = -request.clock % size
        self._phase[place] += 1
        self._phase[place + size] += 1
        if self._growing is not None:
            insort(self._growing[place], (request.order, request))
        heappush(self._finish, (request.isl + request.osl - 1 - request.clock, request.order, request))

    def _settle(self, request: Request) -> None:
        """Take a decode out of the sums and write its progress down."""
        size = self._size
        place = -request.clock % size
        computed = self._clock + request.clock
        self._decodes -= 1
        self._context -= computed
        self._phase[place] -= 1
        self._phase[place + size] -= 1
        if self._growing is not None:
            self._growing[place].remove((request.order, request))
        request.clock = UNDEFINED_PS
        request.computed = computed
        request.generated = computed - request.isl + 1
        request.held = -(-computed // size)

    def _leave(self, request: Request, status: Status, now: int) -> None:
        record, row = self.record, request.row
        if request.clock != UNDEFINED_PS:
            self._settle(request)
            if status is Status.TIMED_OUT:
                # The token of the step that just ended came too late.
                request.generated -= 1
        self._present -= 1
        self._scheduler.drop(request)
        request.order = -1
        record.status[row] = status
        record.preemptions[row] = request.preemptions
        record.generated[row] = request.generated
        if status is Status.FINISHED:
            record.last[row] = now

    def _take_arrivals(self, now: int) -> None:
        record, arrivals, waiting = self.record, self._arrival, self._scheduler.waiting
        end = bisect_right(arrivals, now, self._next_row)
        for row in range(self._next_row, end):
            if self._present >= self._limit:
                record.status[row] = Status.REJECTED
                continue
            record.queued[row] = self._boundary(arrivals[row], now)
            request = new_request(self._given, row)
            self._present += 1
            waiting.push(request)
            if self._expiring and self._deadline[row] < LATEST_PS:
                heappush(self._late, (self._deadline[row], row, request))
        self._next_row = end

    def _boundary(self, at_ps: int, now: int) -> int:
        """The first step boundary at or after this instant, which the flight ending now has passed."""
        if self._flight == 1 or at_ps >= now:
            return now
        steps = steps_to_reach(at_ps - self._start_ps, self._first_ps, self._growth_ps)
        return self._start_ps + steps * self._first_ps + self._growth_ps * (steps * (steps - 1) // 2)

    def _drop_expired(self, now: int) -> None:
        late: list[Request] = []
        while self._late and self._late[0][0] < now:
            request = heappop(self._late)[2]
            if not request.ended:
                late.append(request)
        late.sort(key=_order)
        for request in late:
            self._leave(request, Status.TIMED_OUT, now)
            if request in self._prefilling:
                self._prefilling.remove(request)

    # Bookkeeping

    def _carry(self) -> None:
        for request in self._warm:
            request.clock = UNDEFINED_PS
            if self._expiring and self._deadline[request.row] < LATEST_PS:
                heappush(self._late, (self._deadline[request.row], request.row, request))
        running = self._scheduler.running
        if self._given.step_left_ps:
            self._rows = [Scheduled(r, 0, 0, True, r.placeholders > 0) for r in running]
            self._explicit = True
            return
        for request in running:
            if request.generated and request.isl + request.generated - request.computed == 1:
                self._join(request)
            else:
                self._prefilling.append(request)

    def _sample(self, now: int) -> None:
        sampler, record = self.record.sampler, self.record
        if sampler is None:
            return
        scheduler, memory, start = self._scheduler, self._memory, self._start_ps
        waiting, running, size = len(scheduler.waiting), len(scheduler.running), self._size
        while sampler.next_ps < now:
            at = sampler.next_ps - start
            begun = 0 if self._flight == 1 else steps_to_reach(at + 1, self._first_ps, self._growth_ps) - 1
            boundary = start + begun * self._first_ps + self._growth_ps * (begun * (begun - 1) // 2)
            place = (self._clock + 1) % size
            cycles, rest = divmod(begun, size)
            grown = cycles * self._decodes + sum(self._phase[place : place + rest])
            came = bisect_right(self._arrival, boundary, self._next_row) - self._next_row if begun else 0
            came = min(came, max(self._limit - self._present, 0))
            spent = at if waiting else 0
            sampler.put(
                waiting + came,
                running,
                memory.total - memory.free + grown,
                self._busy_ps + at,
                record.saturated_ps + spent,
            )

    def _hold(self, until_ps: int) -> None:
        if self.record.sampler is not None:
            used = self._memory.total - self._memory.free
            counts = (len(self._scheduler.waiting), len(self._scheduler.running), used)
            self.record.sampler.hold(until_ps, *counts, self._busy_ps, self.record.saturated_ps)

    def _note_unfinished(self) -> None:
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            if request.clock != UNDEFINED_PS:
                self._settle(request)
            self.record.generated[request.row] = request.generated
            self.record.preemptions[request.row] = request.preemptions


def steps_to_reach(span_ps: int, first_ps: int, growth_ps: int) -> int:
    """The least number of steps >= 1, lasting first, first + growth, ..., that together last `span_ps` or longer.

    >>> steps_to_reach(30, 10, 0), steps_to_reach(31, 10, 0), steps_to_reach(32, 10, 1)
    (3, 4, 3)
    """
    if growth_ps == 0:
        return max(-(-span_ps // first_ps), 1)
    half = first_ps - growth_ps / 2
    steps = max(int((sqrt(half * half + 2.0 * growth_ps * max(span_ps, 0)) - half) / growth_ps), 1)
    # The root is a float; settle the last unit in integers.
    while steps * first_ps + growth_ps * (steps * (steps - 1) // 2) < span_ps:
        steps += 1
    while steps > 1 and (steps - 1) * first_ps + growth_ps * ((steps - 1) * (steps - 2) // 2) >= span_ps:
        steps -= 1
    return steps


def _order(request: Request) -> int:
    return request.order
