"""Compiled events of the kernel: arrivals, deadlines, tokens, samples. As in `fast`.

Arrays are those of `kernel_state`.
"""

from twin.engine.compiled import compiled
from twin.engine.kernel_parts import heap_pop, heap_push, heap_remove, release, stop_running
from twin.engine.kernel_schedule import wait
from twin.engine.kernel_state import (
    AFTER,
    ARRIVAL,
    BARRIER,
    BUSY,
    CLOCK,
    COMPUTED,
    DEADLINE,
    DUE,
    EXPLICIT,
    FINISH,
    FINISH_KEY,
    FINISHED,
    FIRST,
    FIRST_ADMITTED,
    FIRST_PS,
    FLIGHT,
    FREE,
    GENERATED,
    GROWTH_PS,
    HEAD_BLOCKED,
    ISL,
    LAST,
    LATE,
    NEVER,
    NOBODY_WAITS,
    NOW,
    ORDER,
    OSL,
    P_EXPIRING,
    P_GRID_POINTS,
    P_GRID_STEP,
    P_LIMIT,
    P_PRIORITY,
    P_SAMPLE_AT,
    P_UNTIL,
    P_USABLE,
    PREFILLING,
    QUEUED,
    R_CLOCK,
    REJECTED,
    RUN_HEAD,
    RUNNING,
    SAMPLED,
    SATURATED,
    SHARE_ROW,
    SHARE_SAMPLES,
    SHARES,
    START,
    STATUS,
    STEPS,
    TAKEN,
    TIMED_OUT,
    TOLD,
    UNDEFINED,
    UNFINISHED,
    W_DONE,
    W_FIELDS,
    W_PREFILLING,
    WAITING,
)
from twin.engine.kernel_sums import flight_ps, grown, join, settle, steps_to_reach
from twin.engine.types import Int64Array


@compiled
def watch(s: Int64Array, r: Int64Array, late: Int64Array, row: int) -> None:
    """Remember its deadline, if it has one."""
    if s[P_EXPIRING] and r[row + DEADLINE] < NEVER:
        heap_push(late, s[LATE], r, DEADLINE, row)
        s[LATE] += 1


@compiled
def arrivals_matter(s: Int64Array) -> bool:
    """With a full batch or a blocked head they change nothing, unless one goes first or a client may leave."""
    barrier = s[BARRIER]
    return bool(barrier == NOBODY_WAITS or s[P_EXPIRING] != 0 or (barrier == HEAD_BLOCKED and s[P_PRIORITY] != 0))


@compiled
def cut_ps(s: Int64Array, r: Int64Array, inbox: Int64Array, late: Int64Array) -> int:
    """The first instant whose step boundary must not be jumped over."""
    cut = s[P_UNTIL]
    if s[TAKEN] < s[TOLD] and arrivals_matter(s):
        cut = min(cut, r[inbox[s[TAKEN]] + ARRIVAL])
    while s[LATE] > 0 and r[late[0] + STATUS] != UNFINISHED:
        heap_pop(late, s[LATE], r, DEADLINE)
        s[LATE] -= 1
    if s[LATE] > 0:
        cut = min(cut, r[late[0] + DEADLINE] + 1)
    return int(cut)


@compiled
def take_arrivals(
    s: Int64Array,
    r: Int64Array,
    inbox: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
    late: Int64Array,
) -> None:
    """Requests that arrived by now wait, or are refused."""
    now, first, growth = s[NOW], s[FIRST_PS], s[GROWTH_PS]
    while s[TAKEN] < s[TOLD] and r[inbox[s[TAKEN]] + ARRIVAL] <= now:
        row = inbox[s[TAKEN]]
        s[TAKEN] += 1
        if s[RUNNING] + s[WAITING] >= s[P_LIMIT]:
            r[row + STATUS] = REJECTED
        else:
            r[row + QUEUED] = now
            if s[FLIGHT] > 1 and r[row + ARRIVAL] < now:
                # The boundary that took it in was jumped over.
                steps = steps_to_reach(r[row + ARRIVAL] - s[START], first, growth)
                r[row + QUEUED] = s[START] + flight_ps(steps, first, growth)
            wait(s, r, queue, stack, row, False)
            watch(s, r, late, row)


@compiled
def insert_by_order(r: Int64Array, w: Int64Array, count: int, row: int) -> None:
    """Into the first `count` rows that are done, sorted by order of admission."""
    at = count
    while at > 0 and r[w[(at - 1) * W_FIELDS + W_DONE] + ORDER] > r[row + ORDER]:
        w[at * W_FIELDS + W_DONE] = w[(at - 1) * W_FIELDS + W_DONE]
        at -= 1
    w[at * W_FIELDS + W_DONE] = row


@compiled
def leave(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    row: int,
    status: int,
) -> None:
    """A running request ends."""
    if r[row + R_CLOCK] != UNDEFINED:
        settle(s, r, phase, row)
        if status == TIMED_OUT and s[STEPS] > 0:
            # The token of the step that just ended came too late.
            r[row + GENERATED] -= 1
    stop_running(s, r, row)
    release(s, r, w, b, keys, by_key, table, row, False)
    r[row + STATUS] = status


@compiled
def drop_expired(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    finish: Int64Array,
    late: Int64Array,
) -> None:
    """Clients whose deadline has passed leave."""
    count = 0
    while s[LATE] > 0 and r[late[0] + DEADLINE] < s[NOW]:
        row = heap_pop(late, s[LATE], r, DEADLINE)
        s[LATE] -= 1
        if r[row + STATUS] != UNFINISHED:
            continue
        if r[row + ORDER] >= 0:
            insert_by_order(r, w, count, row)
            count += 1
        else:
            s[WAITING] -= 1
            r[row + STATUS] = TIMED_OUT
    for i in range(count):
        row = w[i * W_FIELDS + W_DONE]
        if r[row + R_CLOCK] != UNDEFINED:
            heap_remove(finish, s[FINISH], r, FINISH_KEY, row)
            s[FINISH] -= 1
        leave(s, r, w, b, keys, by_key, table, phase, row, TIMED_OUT)
    kept = 0
    for i in range(s[PREFILLING]):
        row = w[i * W_FIELDS + W_PREFILLING]
        if r[row + STATUS] == UNFINISHED:
            w[kept * W_FIELDS + W_PREFILLING] = row
            kept += 1
    s[PREFILLING] = kept


@compiled
def sort_out(s: Int64Array, r: Int64Array, w: Int64Array, finish: Int64Array, phase: Int64Array, row: int) -> None:
    """A request whose next step is a decode joins the sums, another one is prefilling."""
    if r[row + GENERATED] > 0 and r[row + ISL] + r[row + GENERATED] - r[row + COMPUTED] == 1:
        join(s, r, finish, phase, row)
    else:
        w[s[PREFILLING] * W_FIELDS + W_PREFILLING] = row
        s[PREFILLING] += 1


@compiled
def yield_tokens(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    phase: Int64Array,
    finish: Int64Array,
) -> None:
    """Hand out the last step's tokens; requests finish."""
    done = 0
    while s[FINISH] > 0 and r[finish[0] + FINISH_KEY] >> 32 == s[CLOCK]:
        w[done * W_FIELDS + W_DONE] = heap_pop(finish, s[FINISH], r, FINISH_KEY)
        s[FINISH] -= 1
        done += 1
    for i in range(s[SHARES]):
        row = w[i * W_FIELDS + SHARE_ROW]
        if w[i * W_FIELDS + SHARE_SAMPLES] and r[row + STATUS] == UNFINISHED:
            r[row + GENERATED] += 1
            if r[row + GENERATED] == 1:
                r[row + FIRST] = s[NOW]
            if r[row + GENERATED] == r[row + OSL]:
                insert_by_order(r, w, done, row)
                done += 1
    # Blocks come back in the order in which the step was scheduled.
    for i in range(done):
        row = w[i * W_FIELDS + W_DONE]
        r[row + LAST] = s[NOW]
        leave(s, r, w, b, keys, by_key, table, phase, row, FINISHED)


@compiled
def go_on(s: Int64Array, r: Int64Array, w: Int64Array, finish: Int64Array, phase: Int64Array) -> None:
    """Sort out who is a decode and who is still prefilling among those with a share in the step that ended."""
    count, shares = s[PREFILLING], s[SHARES]
    s[PREFILLING] = s[SHARES] = 0
    if s[EXPLICIT]:
        row = s[RUN_HEAD]
        while row >= 0:
            sort_out(s, r, w, finish, phase, row)
            row = r[row + AFTER]
        return
    # Those that were prefilling come before the newly admitted in the running list, served or not.
    for i in range(count):
        row = w[i * W_FIELDS + W_PREFILLING]
        if r[row + STATUS] == UNFINISHED:
            sort_out(s, r, w, finish, phase, row)
    for i in range(s[FIRST_ADMITTED], shares):
        row = w[i * W_FIELDS + SHARE_ROW]
        if r[row + STATUS] == UNFINISHED:
            sort_out(s, r, w, finish, phase, row)


@compiled
def put_sample(s: Int64Array, grid: Int64Array, waiting: int, used: int, busy: int, saturated: int) -> None:
    """One sample, of the time that is due."""
    at = s[SAMPLED]
    place, points = s[P_SAMPLE_AT] + at, s[P_GRID_POINTS]
    grid[place] = waiting
    grid[place + points] = s[RUNNING]
    grid[place + 2 * points] = used
    grid[place + 3 * points] = busy
    grid[place + 4 * points] = saturated
    s[SAMPLED] = at + 1
    s[DUE] = (at + 1) * s[P_GRID_STEP] if at + 1 < points else NEVER


@compiled
def hold_samples(s: Int64Array, grid: Int64Array, until: int) -> None:
    """The same sample, with no step running, for all grid times before `until`."""
    while s[DUE] < until:
        put_sample(s, grid, s[WAITING], s[P_USABLE] - s[FREE], s[BUSY], s[SATURATED])


@compiled
def sample_flight(s: Int64Array, r: Int64Array, inbox: Int64Array, phase: Int64Array, grid: Int64Array) -> None:
    """Samples of the flight that ends now; its blocks beyond the first step's are not taken yet."""
    waiting, used, start = s[WAITING], s[P_USABLE] - s[FREE], s[START]
    room = max(s[P_LIMIT] - s[RUNNING] - waiting, 0)
    while s[DUE] < s[NOW]:
        spent = s[DUE] - start
        begun = steps_to_reach(spent + 1, s[FIRST_PS], s[GROWTH_PS]) - 1
        came = 0
        if begun > 0:
            boundary = start + flight_ps(begun, s[FIRST_PS], s[GROWTH_PS])
            at = s[TAKEN]
            while at + came < s[TOLD] and r[inbox[at + came] + ARRIVAL] <= boundary and came < room:
                came += 1
        saturated = s[SATURATED] + (spent if waiting > 0 else 0)
        put_sample(s, grid, waiting + came, used + grown(s, phase, begun), s[BUSY] + spent, saturated)
