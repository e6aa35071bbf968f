"""One engine, compiled: the same semantics as `fast`, on integers in flat arrays. `kernel_entry` starts it.

Does what `fast` does, except costs that are not affine in the step's counts. Arrays are those of `kernel_state`.
Law: equal to `fast` and `plain` bit for bit, request by request.
"""

from twin.engine.compiled import compiled
from twin.engine.kernel_events import (
    arrivals_matter,
    cut_ps,
    drop_expired,
    go_on,
    hold_samples,
    sample_flight,
    take_arrivals,
    yield_tokens,
)
from twin.engine.kernel_parts import take
from twin.engine.kernel_schedule import admit, fits, schedule_explicitly, serve_prefilling
from twin.engine.kernel_state import (
    AFTER,
    ARRIVAL,
    BARRIER,
    BUSY,
    CLOCK,
    CONTEXT,
    DECODE,
    DECODES,
    DUE,
    END,
    EXPLICIT,
    FINISH,
    FINISH_KEY,
    FIRST_ADMITTED,
    FIRST_PS,
    FLIGHT,
    FREE,
    GROWTH_PS,
    LANDING,
    LATE,
    NEVER,
    NOBODY_WAITS,
    NOW,
    P_BUDGET,
    P_EPOCHS,
    P_NAMED,
    P_SIZE,
    P_STEP_LEFT,
    P_UNTIL,
    PREFILLING,
    R_CLOCK,
    RUN_HEAD,
    RUNNING,
    SATURATED,
    SHARES,
    START,
    STEPS,
    TAKEN,
    TOLD,
    UNDEFINED,
    WAITING,
)
from twin.engine.kernel_sums import (
    cost_at,
    count_decodes,
    flight_ps,
    grow_decodes,
    grown,
    multiplier_of,
    scaled,
    settle,
    single,
    steps_to_reach,
    until_blocks_run_out,
)
from twin.engine.types import STEPS_PER_EPOCH, Int64Array


@compiled
def fly(
    s: Int64Array,
    r: Int64Array,
    inbox: Int64Array,
    phase: Int64Array,
    late: Int64Array,
    finish: Int64Array,
    costs: Int64Array,
    noise: Int64Array,
) -> None:
    """A flight of as many decode steps as nothing can change in."""
    decodes, context = s[DECODES], s[CONTEXT]
    m = multiplier_of(s, noise, DECODE)
    at = cost_at(s, DECODE)
    per_context = scaled(costs[at - 1], m)
    growth = per_context * decodes
    first = max(scaled(costs[at + decodes], m), 1) + per_context * (context + decodes)
    most = (r[finish[0] + FINISH_KEY] >> 32) - s[CLOCK]
    if s[P_EPOCHS] > 1:
        most = min(most, STEPS_PER_EPOCH - s[STEPS] % STEPS_PER_EPOCH)
    if s[FREE] < decodes * ((most - 1) // s[P_SIZE] + 1):
        most = until_blocks_run_out(s, phase, most)
    cut = cut_ps(s, r, inbox, late) - s[NOW]
    if cut < flight_ps(most, first, growth):
        most = steps_to_reach(cut, first, growth)
    s[FLIGHT], s[FIRST_PS], s[GROWTH_PS] = most, first, growth


@compiled
def plan(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
) -> None:
    """Choose who has a share of his own in the next step."""
    s[START] = s[NOW]
    s[EXPLICIT] = 0
    budget = s[P_BUDGET] - s[DECODES]
    need = phase[s[CLOCK] % s[P_SIZE]]
    if budget < 0 or need > s[FREE] or (s[PREFILLING] > 0 and not fits(s, r, w, need, budget)):
        row = s[RUN_HEAD]
        while row >= 0:
            if r[row + R_CLOCK] != UNDEFINED:
                settle(s, r, phase, row)
            row = r[row + AFTER]
        s[FINISH] = 0
        schedule_explicitly(s, r, w, b, keys, by_key, table, queue, stack)
        s[EXPLICIT] = 1
        return
    if need > 0:
        grow_decodes(s, r, b, by_key, table, phase, s[CLOCK])
    if s[PREFILLING] > 0:
        budget = serve_prefilling(s, r, w, b, keys, by_key, table, budget)
    s[FIRST_ADMITTED] = s[SHARES]
    s[BARRIER] = NOBODY_WAITS
    if s[WAITING] > 0:
        s[BARRIER] = admit(s, r, w, b, keys, by_key, table, queue, stack, budget)


@compiled
def land(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    inbox: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
    late: Int64Array,
    finish: Int64Array,
    work: Int64Array,
    grid: Int64Array,
) -> None:
    """The flight ends: count it, let arrivals in and late clients out, and hand out the last step's tokens."""
    flight = s[FLIGHT]
    duration = flight_ps(flight, s[FIRST_PS], s[GROWTH_PS])
    s[NOW] = s[END] = s[START] + duration
    if s[DUE] < s[NOW]:
        sample_flight(s, r, inbox, phase, grid)
    s[BUSY] += duration
    if s[WAITING] > 0:
        s[SATURATED] += duration
    if s[SHARES] == 0:
        count_decodes(s, work, duration)
    if flight > 1:
        if s[P_NAMED]:
            for clock in range(s[CLOCK] + 1, s[CLOCK] + flight):
                grow_decodes(s, r, b, by_key, table, phase, clock)
        else:
            take(s, r, grown(s, phase, flight - 1))
    if not s[EXPLICIT]:
        s[CLOCK] += flight
        s[CONTEXT] += s[DECODES] * flight
    s[STEPS] += flight
    if s[TAKEN] < s[TOLD]:
        take_arrivals(s, r, inbox, queue, stack, late)
    if s[LATE] > 0:
        drop_expired(s, r, w, b, keys, by_key, table, phase, finish, late)
    yield_tokens(s, r, w, b, keys, by_key, table, phase, finish)
    if s[SHARES] > 0:
        go_on(s, r, w, finish, phase)


@compiled
def take_off(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    inbox: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
    late: Int64Array,
    finish: Int64Array,
    costs: Int64Array,
    noise: Int64Array,
    work: Int64Array,
) -> None:
    """At a step boundary: the next flight, if there is anything to do and time left; `LANDING` is when it ends."""
    s[LANDING] = NEVER
    if s[NOW] >= s[P_UNTIL] or s[RUNNING] + s[WAITING] == 0:
        return
    plan(s, r, w, b, keys, by_key, table, phase, queue, stack)
    if s[SHARES] > 0:
        single(s, w, costs, noise, work)
    else:
        fly(s, r, inbox, phase, late, finish, costs, noise)
    s[LANDING] = s[START] + flight_ps(s[FLIGHT], s[FIRST_PS], s[GROWTH_PS])


@compiled
def begin(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    inbox: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
    late: Int64Array,
    finish: Int64Array,
    costs: Int64Array,
    noise: Int64Array,
    work: Int64Array,
) -> None:
    """From the starting state to the first flight."""
    if s[P_STEP_LEFT] > 0:
        # The step in flight at the start is not counted.
        s[STEPS] = -1
        s[FLIGHT], s[FIRST_PS], s[EXPLICIT], s[LANDING] = 1, s[P_STEP_LEFT], 1, s[P_STEP_LEFT]
        return
    take_arrivals(s, r, inbox, queue, stack, late)
    drop_expired(s, r, w, b, keys, by_key, table, phase, finish, late)
    take_off(s, r, w, b, keys, by_key, table, phase, inbox, queue, stack, late, finish, costs, noise, work)


@compiled
def stop(s: Int64Array, r: Int64Array, phase: Int64Array, grid: Int64Array) -> None:
    """The run is over: note how far everything came."""
    hold_samples(s, grid, NEVER)
    row = s[RUN_HEAD]
    while row >= 0:
        if r[row + R_CLOCK] != UNDEFINED:
            settle(s, r, phase, row)
        row = r[row + AFTER]


@compiled
def offer(s: Int64Array, r: Int64Array, inbox: Int64Array, row: int) -> None:
    """A router sends a request: a flight that it changes is cut short."""
    inbox[s[TOLD]] = row
    s[TOLD] += 1
    if s[LANDING] < NEVER and s[FLIGHT] > 1 and arrivals_matter(s):
        steps = steps_to_reach(r[row + ARRIVAL] - s[START], s[FIRST_PS], s[GROWTH_PS])
        if steps < s[FLIGHT]:
            s[FLIGHT] = steps
            s[LANDING] = s[START] + flight_ps(steps, s[FIRST_PS], s[GROWTH_PS])
