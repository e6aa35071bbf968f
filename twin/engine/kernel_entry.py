"""The kernel's one entry: all groups of engines of a call, one after the other, without the interpreter's lock.

Fills and reads the arrays of `kernel_state`, and routes requests to the engines of a group; what happens in an engine
is in `kernel`.
"""

from collections.abc import Callable
from typing import NamedTuple

from twin.engine import kernel, kernel_events, kernel_parts, kernel_schedule, kernel_state, kernel_sums
from twin.engine.compiled import cached, compiled, fingerprint, moved, pointer
from twin.engine.kernel import begin, land, offer, stop, take_off
from twin.engine.kernel_events import hold_samples, sort_out, take_arrivals, watch
from twin.engine.kernel_parts import cache_prompt, find, hold, park, run
from twin.engine.kernel_schedule import wait
from twin.engine.kernel_state import (
    ALONE,
    ARRIVAL,
    B_AFTER,
    B_BEFORE,
    B_FIELDS,
    B_KEY,
    B_REFERENCES,
    CACHED,
    COMPUTED,
    D_CLOSES,
    D_DUE,
    D_OPENS,
    D_OUTSTANDING,
    DEADLINE,
    DUE,
    END,
    ENGINE,
    FIRST,
    FREE,
    G_ENGINES,
    G_FIRST_ENGINE,
    G_FIRST_NEW,
    G_FIRST_ROW,
    G_KNOWN_AT,
    G_OFFERED,
    G_PRIVATE_KEYS,
    G_ROUTING,
    G_ROWS,
    G_SETTINGS,
    GENERATED,
    HELD,
    HITS,
    ISL,
    KEYS,
    KEYS_AT,
    LANDING,
    LAST,
    NEVER,
    NOW,
    ORDER,
    OSL,
    P_B_AT,
    P_CACHING,
    P_CARRIED,
    P_DISTINCT_KEYS,
    P_DRAIN,
    P_FINISH_AT,
    P_FIRST_CARRIED,
    P_FROM,
    P_GRID_POINTS,
    P_KEYS_AT,
    P_LIMIT,
    P_MOST_BLOCKS,
    P_PHASE_AT,
    P_QUEUE_AT,
    P_RUNNING,
    P_SEQS,
    P_SIZE,
    P_STEP_LEFT,
    P_TABLE_AT,
    P_UNTIL,
    P_USABLE,
    P_W_AT,
    PARAMS,
    PREEMPTIONS,
    PRIVATE_AT,
    PRIVATE_KEY,
    QUEUED,
    R_CLOCK,
    R_FIELDS,
    RANK,
    REGISTERED,
    REJECTED,
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    SATURATED,
    SCALARS,
    SCHEDULED,
    SENTINEL,
    SHARE_ROW,
    SHARE_SAMPLES,
    SHARES,
    SLOTS,
    STARTED,
    STATUS,
    TAKEN,
    TOLD,
    UNDEFINED,
    UNFINISHED,
    W_FIELDS,
    W_FREE_SLOT,
    WAITING,
)
from twin.engine.types import Int64Array


class Columns(NamedTuple):
    """All groups' requests, one group behind the other; `known` has 7 numbers of each, in the order of `load`."""

    arrival: Int64Array
    isl: Int64Array
    osl: Int64Array
    deadline: Int64Array
    rank: Int64Array
    keys_at: Int64Array
    keys_count: Int64Array
    known: Int64Array


class Room(NamedTuple):
    """State of one group at a time; see `kernel_state`."""

    s: Int64Array
    r: Int64Array
    w: Int64Array
    b: Int64Array
    by_key: Int64Array
    table: Int64Array
    phase: Int64Array
    inbox: Int64Array
    queue: Int64Array
    stack: Int64Array
    late: Int64Array
    finish: Int64Array
    desk: Int64Array


@compiled
def load(
    r: Int64Array,
    group: Int64Array,
    arrival: Int64Array,
    isl: Int64Array,
    osl: Int64Array,
    deadline: Int64Array,
    rank: Int64Array,
    keys_at: Int64Array,
    keys_count: Int64Array,
    known: Int64Array,
    size: int,
) -> None:
    """Write the group's requests; those before G_FIRST_NEW are carried, and something is known of them."""
    private = 0
    for i in range(group[G_ROWS]):
        row, at = i * R_FIELDS, group[G_FIRST_ROW] + i
        r[row + ARRIVAL] = arrival[at]
        r[row + ISL] = isl[at]
        r[row + OSL] = osl[at]
        r[row + DEADLINE] = deadline[at]
        r[row + RANK] = rank[at]
        r[row + KEYS_AT] = keys_at[at]
        r[row + KEYS] = keys_count[at]
        r[row + PRIVATE_AT] = private
        private += (isl[at] + osl[at] - 2 + size) // size - keys_count[at]
        r[row + GENERATED] = r[row + COMPUTED] = r[row + CACHED] = r[row + PREEMPTIONS] = 0
        r[row + QUEUED] = r[row + SCHEDULED] = r[row + FIRST] = r[row + LAST] = r[row + R_CLOCK] = UNDEFINED
        r[row + STATUS] = UNFINISHED
        r[row + ORDER] = r[row + PRIVATE_KEY] = r[row + ENGINE] = -1
        r[row + HELD] = r[row + REGISTERED] = 0
    for i in range(group[G_FIRST_NEW]):
        row, at = i * R_FIELDS, group[G_KNOWN_AT] + i * 7
        r[row + QUEUED] = known[at]
        r[row + SCHEDULED] = known[at + 1]
        r[row + FIRST] = known[at + 2]
        r[row + GENERATED] = known[at + 3]
        r[row + CACHED] = known[at + 4]
        r[row + PREEMPTIONS] = known[at + 5]
        r[row + COMPUTED] = known[at + 6]


@compiled
def store(r: Int64Array, group: Int64Array, out: Int64Array, total: int) -> None:
    """The outcomes of the group's requests, `total` places for each field of `Outcomes`, and then the engine."""
    for i in range(group[G_ROWS]):
        row, at = i * R_FIELDS, group[G_FIRST_ROW] + i
        out[at] = r[row + QUEUED]
        out[at + total] = r[row + SCHEDULED]
        out[at + 2 * total] = r[row + FIRST]
        out[at + 3 * total] = r[row + LAST]
        out[at + 4 * total] = r[row + GENERATED]
        out[at + 5 * total] = r[row + CACHED]
        out[at + 6 * total] = r[row + PREEMPTIONS]
        out[at + 7 * total] = r[row + STATUS]
        out[at + 8 * total] = r[row + ENGINE]


@compiled
def reset(
    s: Int64Array, w: Int64Array, b: Int64Array, by_key: Int64Array, phase: Int64Array, params: Int64Array
) -> None:
    """An empty engine with these settings: all blocks free, first to last."""
    for i in range(SCALARS):
        s[i] = params[i] if i < PARAMS else 0
    usable, size, seqs = s[P_USABLE], s[P_SIZE], s[P_SEQS]
    s[FREE], s[SLOTS] = usable, seqs
    s[RUN_HEAD] = s[RUN_TAIL] = -1
    s[DUE] = 0 if s[P_GRID_POINTS] > 0 else NEVER
    s[SENTINEL], s[HITS], s[LANDING] = usable * B_FIELDS, seqs * s[P_MOST_BLOCKS], NEVER
    for i in range(3 * size):
        phase[i] = 0 if i < 2 * size else -1
    if s[P_CACHING]:
        for i in range(seqs):
            w[i * W_FIELDS + W_FREE_SLOT] = i * s[P_MOST_BLOCKS]
        for i in range(s[P_DISTINCT_KEYS]):
            by_key[s[P_KEYS_AT] + i] = -1
        for i in range(usable + 1):
            block = i * B_FIELDS
            b[block + B_AFTER] = block + B_FIELDS if i < usable else 0
            b[block + B_BEFORE] = block - B_FIELDS if i > 0 else usable * B_FIELDS
            b[block + B_REFERENCES] = 0
            b[block + B_KEY] = -1


@compiled
def warm_up(
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
    late: Int64Array,
    finish: Int64Array,
    cached: Int64Array,
) -> None:
    """Put the carried requests and cached blocks into an empty engine; `prepare` saw that they fit."""
    size, caching, in_flight = s[P_SIZE], s[P_CACHING] != 0, s[P_STEP_LEFT] > 0
    for i in range(s[P_CARRIED]):
        row = (s[P_FIRST_CARRIED] + i) * R_FIELDS
        watch(s, r, late, row)
        if i >= s[P_RUNNING]:
            wait(s, r, queue, stack, row, False)
            continue
        computed = r[row + COMPUTED]
        hits = find(s, r, keys, by_key, table, row, computed // size) if caching else 0
        hold(s, r, w, b, by_key, table, row, hits, (computed + size - 1) // size)
        if caching:
            cache_prompt(s, r, b, keys, by_key, table, row, computed)
        run(s, r, row)
        if not in_flight:
            sort_out(s, r, w, finish, phase, row)
            continue
        at = s[SHARES]
        w[at * W_FIELDS + SHARE_ROW] = row
        w[at * W_FIELDS + SHARE_SAMPLES] = r[row + ISL] + r[row + GENERATED] == computed
        s[SHARES] = at + 1
    if caching:
        park(s, b, by_key, cached)


@compiled
def least_outstanding(s: Int64Array, desk: Int64Array, engines: int, now: int, last: int) -> int:
    """The engine with the fewest requests that takes any now, ties going round from the last one chosen; or -1."""
    best, fewest = -1, NEVER
    for i in range(engines):
        # From the one after the last one on, and then from the first.
        engine = last + 1 + i
        if engine >= engines:
            engine -= engines
        at = 4 * engine
        if desk[at + D_OUTSTANDING] < fewest and desk[at + D_OPENS] <= now < desk[at + D_CLOSES]:
            best, fewest = engine, desk[at + D_OUTSTANDING]
    return best


@compiled
def next_event(s: Int64Array, r: Int64Array, inbox: Int64Array) -> int:
    """When this engine next does anything by itself; it starts at 0, after the first arrivals of that instant."""
    if not s[STARTED]:
        return 0
    if s[LANDING] == NEVER and s[TAKEN] < s[TOLD] and s[NOW] < s[P_UNTIL]:
        return int(r[inbox[s[TAKEN]] + ARRIVAL])
    return int(s[LANDING])


@compiled
def start_engine(
    all_s: Int64Array,
    r: Int64Array,
    all_w: Int64Array,
    all_b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    all_table: Int64Array,
    all_phase: Int64Array,
    all_inbox: Int64Array,
    all_queue: Int64Array,
    all_stack: Int64Array,
    all_late: Int64Array,
    all_finish: Int64Array,
    free_keys: Int64Array,
    params: Int64Array,
    engine: int,
    row: int,
    end: int,
) -> None:
    """An engine of the group with its settings in its starting state; requests from `row` to `end` come to it."""
    s, w, b = moved(all_s, engine * SCALARS), moved(all_w, params[P_W_AT]), moved(all_b, params[P_B_AT])
    table, phase = moved(all_table, params[P_TABLE_AT]), moved(all_phase, params[P_PHASE_AT])
    inbox, queue = moved(all_inbox, params[P_QUEUE_AT]), moved(all_queue, params[P_QUEUE_AT])
    stack, late = moved(all_stack, params[P_QUEUE_AT]), moved(all_late, params[P_QUEUE_AT])
    finish = moved(all_finish, params[P_FINISH_AT])
    reset(s, w, b, by_key, phase, params)
    warm_up(s, r, w, b, keys, by_key, table, phase, queue, stack, late, finish, free_keys)
    while row < end:
        r[row + ENGINE] = engine
        offer(s, r, inbox, row)
        row += R_FIELDS


@compiled
def advance_engine(
    all_s: Int64Array,
    r: Int64Array,
    all_w: Int64Array,
    all_b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    all_table: Int64Array,
    all_phase: Int64Array,
    all_inbox: Int64Array,
    all_queue: Int64Array,
    all_stack: Int64Array,
    all_late: Int64Array,
    all_finish: Int64Array,
    costs: Int64Array,
    noise: Int64Array,
    work: Int64Array,
    grid: Int64Array,
    desk: Int64Array,
    engine: int,
    until: int,
) -> None:
    """All that this engine of the group does before `until`."""
    s = moved(all_s, engine * SCALARS)
    at = s[P_QUEUE_AT]
    inbox = moved(all_inbox, at)
    w, b, table, phase = (
        moved(all_w, s[P_W_AT]),
        moved(all_b, s[P_B_AT]),
        moved(all_table, s[P_TABLE_AT]),
        moved(all_phase, s[P_PHASE_AT]),
    )
    queue, stack, late = moved(all_queue, at), moved(all_stack, at), moved(all_late, at)
    finish = moved(all_finish, s[P_FINISH_AT])
    while next_event(s, r, inbox) < until:
        if not s[STARTED]:
            s[STARTED] = 1
            begin(s, r, w, b, keys, by_key, table, phase, inbox, queue, stack, late, finish, costs, noise, work)
            continue
        if s[LANDING] < NEVER:
            land(s, r, w, b, keys, by_key, table, phase, inbox, queue, stack, late, finish, work, grid)
        else:
            s[NOW] = r[inbox[s[TAKEN]] + ARRIVAL]
            hold_samples(s, grid, s[NOW])
            take_arrivals(s, r, inbox, queue, stack, late)
        take_off(s, r, w, b, keys, by_key, table, phase, inbox, queue, stack, late, finish, costs, noise, work)
    look(s, r, inbox, desk, engine)


@compiled
def look(s: Int64Array, r: Int64Array, inbox: Int64Array, desk: Int64Array, engine: int) -> None:
    """Write down what the router asks of every engine for every request, where it is quick to read."""
    desk[4 * engine + D_DUE] = next_event(s, r, inbox)
    desk[4 * engine + D_OUTSTANDING] = s[RUNNING] + s[WAITING] + s[TOLD] - s[TAKEN]
    desk[4 * engine + D_OPENS], desk[4 * engine + D_CLOSES] = s[P_FROM], s[P_DRAIN]


@compiled
def route(s: Int64Array, r: Int64Array, inbox: Int64Array, desk: Int64Array, engines: int, row: int, last: int) -> int:
    """Send a request to an engine, or refuse it; the engine that was chosen last."""
    chosen = least_outstanding(s, desk, engines, r[row + ARRIVAL], last)
    if chosen < 0:
        r[row + STATUS] = REJECTED
        return last
    mine = moved(s, chosen * SCALARS)
    r[row + ENGINE] = chosen
    if desk[4 * chosen + D_OUTSTANDING] >= mine[P_LIMIT]:
        r[row + STATUS] = REJECTED
    else:
        offer(mine, r, moved(inbox, mine[P_QUEUE_AT]), row)
        look(mine, r, moved(inbox, mine[P_QUEUE_AT]), desk, chosen)
    return chosen


Entry = Callable[..., None]


def _entry(version: int) -> Entry:
    @cached
    def run_groups(
        groups: Int64Array,
        params: Int64Array,
        columns: Columns,
        keys: Int64Array,
        free_keys: Int64Array,
        costs: Int64Array,
        noise: Int64Array,
        out: Int64Array,
        work: Int64Array,
        totals: Int64Array,
        grid: Int64Array,
        room: Room,
    ) -> None:
        # What a cached machine code was made from must be among what this function closes over.
        if version < 0:
            return
        s, r, w, b, by_key = pointer(room.s), pointer(room.r), pointer(room.w), pointer(room.b), pointer(room.by_key)
        t, p, i, q = pointer(room.table), pointer(room.phase), pointer(room.inbox), pointer(room.queue)
        st, la, f, d = pointer(room.stack), pointer(room.late), pointer(room.finish), pointer(room.desk)
        c, n, k, k2 = pointer(costs), pointer(noise), pointer(keys), pointer(free_keys)
        x, y = pointer(work), pointer(grid)
        arrival, isl, osl = pointer(columns.arrival), pointer(columns.isl), pointer(columns.osl)
        deadline, rank, known = pointer(columns.deadline), pointer(columns.rank), pointer(columns.known)
        keys_at, keys_count = pointer(columns.keys_at), pointer(columns.keys_count)
        for g in range(len(groups)):
            group = moved(pointer(groups), g * G_SETTINGS)
            settings, engines = moved(pointer(params), group[G_FIRST_ENGINE] * PARAMS), group[G_ENGINES]
            load(r, group, arrival, isl, osl, deadline, rank, keys_at, keys_count, known, settings[P_SIZE])
            for at in range(group[G_PRIVATE_KEYS]):
                by_key[at] = -1
            alone = group[G_ROUTING] == ALONE
            row, end = group[G_FIRST_NEW] * R_FIELDS, group[G_OFFERED] * R_FIELDS
            own = end if alone else row
            for e in range(engines):
                mine = moved(settings, e * PARAMS)
                start_engine(s, r, w, b, k, by_key, t, p, i, q, st, la, f, k2, mine, e, row, own)
                look(moved(s, e * SCALARS), r, moved(i, mine[P_QUEUE_AT]), d, e)
            row = own
            last = engines - 1
            while row < end:
                now = r[row + ARRIVAL]
                for e in range(engines):
                    if d[4 * e + D_DUE] < now:
                        advance_engine(s, r, w, b, k, by_key, t, p, i, q, st, la, f, c, n, x, y, d, e, now)
                last = route(s, r, i, d, engines, row, last)
                row += R_FIELDS
            for e in range(engines):
                advance_engine(s, r, w, b, k, by_key, t, p, i, q, st, la, f, c, n, x, y, d, e, NEVER)
                mine = moved(s, e * SCALARS)
                stop(mine, r, moved(p, mine[P_PHASE_AT]), y)
                totals[group[G_FIRST_ENGINE] + e, 0] = mine[END]
                totals[group[G_FIRST_ENGINE] + e, 1] = mine[SATURATED]
            store(r, group, pointer(out), out.shape[1])

    return run_groups


_MODULES = (kernel_state, kernel_parts, kernel_sums, kernel_schedule, kernel_events, kernel)
run_groups = _entry(fingerprint(*(vars(module) for module in _MODULES), globals()))
"""All groups: `run_groups(groups, params, columns, keys, free_keys, costs, noise, out, work, totals, grid, room)`.

`groups` has G_SETTINGS numbers per group, `params` PARAMS per engine; they say where each one's part of the other
arrays begins. `out` has a row for each field of `Outcomes` and one for the engine; `room` has space for the largest
group's state. The arrays outlive the call, so that their pointers may stand for them.
"""
