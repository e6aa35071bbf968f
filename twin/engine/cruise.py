"""The common case of `fast`, in one loop over local variables: first come first served, no shared blocks.

A flight costs a few microseconds here and several times that through methods, which is what a replay of a day is made
of: taking in arrivals and handing out first tokens as two functions made the whole 11 % slower. Whatever is rare
(preemption, several prefills at once) ends the cruise; `fast` does one flight and calls again.
Law: with and without cruising every result is the same.
"""

from bisect import bisect_right
from collections.abc import Generator, Mapping
from heapq import heappop, heappush
from itertools import takewhile
from typing import TYPE_CHECKING

import simpy

from twin.engine.flight import steps_to_reach
from twin.engine.request import FcfsQueue, Request
from twin.engine.scheduler import Barrier
from twin.engine.timing import DECODE, MIXED, PREFILL
from twin.engine.types import LATEST_PS, STEPS_PER_EPOCH, UNDEFINED_PS, Status

if TYPE_CHECKING:
    from twin.engine.fast import FastEngine


def can_cruise(engine: "FastEngine") -> bool:
    """Whether this engine's settings allow it at all."""
    return (
        engine.memory is engine.counted
        and isinstance(engine.scheduler.waiting, FcfsQueue)
        and engine.timing.affine
        and not engine.expiring
        and engine.record.sampler is None
        and engine.on_finish is None
    )


def cruise(engine: "FastEngine", now: int) -> Generator[simpy.Event, object, int]:
    """Fly on from a step boundary while the common case lasts; returns the time at which it no longer does."""
    scheduler, record, timing, memory = engine.scheduler, engine.record, engine.timing, engine.counted
    running, waiting, rows = scheduler.running, scheduler.waiting, engine.rows
    if not isinstance(waiting, FcfsQueue):
        return now
    phase, finish, prefilling = engine.phase, engine.finish, engine.prefilling
    arrivals, limit, until = engine.arrivals, engine.limit, engine.until_ps
    budget_most, chunk, seqs = scheduler.budget_tokens, scheduler.chunk_tokens, scheduler.max_num_seqs
    chunked, reserve, watermark = scheduler.chunked, scheduler.reserve_whole, scheduler.watermark_blocks
    ledger = engine.ledger
    queued, scheduled, first_token, last_token = ledger.queued, ledger.scheduled, ledger.first, ledger.last
    work, routed, sleep, size = record.work, engine.routed, engine.bell.sleep, engine.size
    clock, steps, n, context, free = engine.clock, engine.steps, engine.decodes, engine.context, memory.free
    front, runs, keeps, evict = memory.front, memory.runs, memory.keeps, memory.evict
    inbox, taken, busy, saturated = engine.inbox, engine.taken, engine.busy_ps, record.saturated_ps
    decode_work = work[DECODE]
    outstanding, seat = engine.seat
    epoch_end, end_ps = steps, record.end_ps
    started: list[Request] = []
    while now < until:
        if steps >= epoch_end:
            epoch_end = (steps // STEPS_PER_EPOCH + 1) * STEPS_PER_EPOCH if timing.epochs > 1 else 2**62
            terms = [timing.terms(steps, role) for role in (PREFILL, DECODE, MIXED)]
        if not running and not waiting:
            arrival = arrivals[taken]
            if arrival == LATEST_PS:
                break
            yield sleep(arrival - now)
            now = boundary = arrival
        else:
            # Running requests: all decodes, and at most one prefill, the last of the running list.
            need = phase[clock % size]
            budget = budget_most - n
            if (
                need > free
                or budget < 0
                or (runs and waiting and waiting[0].preemptions and _finds_blocks(waiting, runs))
            ):
                break
            prefills = tokens = pairs = more = 0
            if prefilling:
                request = prefilling[0]
                before = request.computed
                count = request.isl + request.generated - before
                if count > chunk:
                    count = chunk
                if count > budget:
                    count = budget
                more = -(-(before + count) // size) - request.held
                if len(prefilling) > 1 or request.order != scheduler.admissions - 1 or not count or need + more > free:
                    break
                request.held += more
                free -= more
                need += more
                request.computed = before + count
                budget -= count
                prefills, tokens, pairs = 1, count, count * before + count * (count + 1) // 2
                started.append(request)
            front -= need
            free -= need - more
            if front < 0:
                evict(-front)
                front = 0
            # Waiting requests: none has cached blocks, so each starts from its first token.
            while waiting:
                if budget <= 0 or len(running) >= seqs:
                    break
                request = waiting[0]
                known = count = request.isl + request.generated
                if count > chunk:
                    count = chunk
                if count > budget:
                    if not chunked:
                        break
                    count = budget
                room = free - watermark if running else free
                if -(-(known if reserve else count) // size) > room:
                    break
                waiting.popleft()
                held = -(-count // size)
                free -= held
                front -= held
                if front < 0:
                    evict(-front)
                    front = 0
                request.held = held
                request.computed = count
                request.order = scheduler.admissions
                running[scheduler.admissions] = request
                scheduler.admissions += 1
                budget -= count
                prefills += 1
                tokens += count
                pairs += count * (count + 1) // 2
                started.append(request)
                if scheduled[request.row] == UNDEFINED_PS:
                    scheduled[request.row] = now
                    ledger.cached[request.row] = request.cached_tokens = 0
            start = now
            if started:
                role = MIXED if n else PREFILL
                t = terms[role]
                length, most = context + n, 1
                flight = (
                    t.decode_requests_ps[n]
                    + t.prefill_request_ps * prefills
                    + t.prefill_token_ps * tokens
                    + t.prefill_attention_pair_ps * pairs
                    + t.decode_context_token_ps * length
                )
                totals = work[role]
                totals[0] += 1
                totals[1] += prefills
                totals[2] += tokens
                totals[3] += pairs
                totals[4] += n
                totals[5] += length
                totals[6] += flight
                engine.flight = 1
                yield sleep(flight)
                now = start + flight
                clock += 1
                steps += 1
                context = length
            else:
                t = terms[DECODE]
                growth = t.decode_context_token_ps * n
                first = t.decode_requests_ps[n] + t.decode_context_token_ps * (context + n)
                most = finish[0][0] - clock
                if steps + most > epoch_end:
                    most = epoch_end - steps
                if free < n * ((most - 1) // size + 1):
                    most = engine.until_blocks_run_out(most, free, n, clock)
                flight = most * first + growth * (most * (most - 1) // 2)
                # With a full batch or a blocked head an arrival changes nothing.
                cut = until if waiting else arrivals[taken]
                if cut > until:
                    cut = until
                if cut - now < flight:
                    most = steps_to_reach(cut - now, first, growth)
                    flight = most * first + growth * (most * (most - 1) // 2)
                if routed:
                    engine.barrier = Barrier.NO_PLACE if waiting else Barrier.NOBODY_WAITS
                    engine.start_ps, engine.flight, engine.first_ps, engine.growth_ps = now, most, first, growth
                    yield sleep(flight)
                    most = engine.flight
                    flight = most * first + growth * (most * (most - 1) // 2)
                else:
                    yield sleep(flight)
                decode_work[0] += most
                decode_work[4] += most * n
                decode_work[5] += most * (context + n) + n * (most * (most - 1) // 2)
                decode_work[6] += flight
                now = start + flight
                if most > 1:
                    cycles, rest = divmod(most - 1, size)
                    place = (clock + 1) % size
                    need = cycles * n + sum(phase[place : place + rest])
                    free -= need
                    front -= need
                    if front < 0:
                        evict(-front)
                        front = 0
                clock += most
                steps += most
                context += n * most
            busy += flight
            if waiting:
                saturated += flight
            end_ps = now
            boundary = start
        # Arrivals see the requests in flight before this step's tokens.
        if arrivals[taken] <= now:
            end = bisect_right(arrivals, now, taken)
            for i in range(taken, end):
                row = inbox[i]
                if len(running) + len(waiting) >= limit:
                    ledger.status[row] = Status.REJECTED
                    continue
                at = now
                if boundary != now and most > 1:
                    k = steps_to_reach(arrivals[i] - boundary, first, growth)
                    at = boundary + k * first + growth * (k * (k - 1) // 2)
                queued[row] = at
                waiting.append(rows.request(row))
            taken = engine.taken = end
        # Tokens of decodes that end here, then of requests that started or went on prefilling: in running order.
        while finish and finish[0][0] == clock:
            request = heappop(finish)[2]
            length = request.isl + request.osl - 1
            n -= 1
            context -= length
            place = -request.clock % size
            phase[place] -= 1
            phase[place + size] -= 1
            held = -(-length // size)
            free += held
            if keeps and length >= size:
                runs[request.row] = full = length // size
                held -= full
            front += held
            last_token[request.row] = now
            del running[request.order]
            outstanding[seat] -= 1
            if request.preemptions:
                ledger.preemptions[request.row] = request.preemptions
        if started:
            prefilling.clear()
            for request in started:
                known = request.isl + request.generated
                if request.computed == known:
                    request.generated += 1
                    known += 1
                    if request.generated == 1:
                        first_token[request.row] = now
                    if request.generated == request.osl:
                        last_token[request.row] = now
                        del running[request.order]
                        outstanding[seat] -= 1
                        held = request.held
                        free += held
                        if keeps and request.computed >= size:
                            runs[request.row] = full = request.computed // size
                            held -= full
                        front += held
                        if request.preemptions:
                            ledger.preemptions[request.row] = request.preemptions
                        continue
                if known - request.computed == 1 and request.generated:
                    request.prefilling = False
                    length = request.computed
                    request.clock = length - clock
                    n += 1
                    context += length
                    place = -request.clock % size
                    phase[place] += 1
                    phase[place + size] += 1
                    heappush(
                        finish, (known + request.osl - request.generated - 1 - request.clock, request.order, request)
                    )
                else:
                    prefilling.append(request)
            started.clear()
    memory.front = front
    engine.clock, engine.steps, engine.decodes, engine.context, memory.free = clock, steps, n, context, free
    engine.taken, engine.busy_ps, record.saturated_ps, record.end_ps = taken, busy, saturated, end_ps
    return now


def _finds_blocks(waiting: FcfsQueue, runs: Mapping[int, int]) -> bool:
    """Whether one of those waiting in front, who were preempted, would resume from blocks that it gave back."""
    return any(request.row in runs for request in takewhile(_was_preempted, waiting))


def _was_preempted(request: Request) -> bool:
    return request.preemptions > 0
