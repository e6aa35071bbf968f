"""The kernel's one entry: all groups of engines of a call, one after the other, without the interpreter's lock.

Fills and reads the arrays of `kernel_state`, and routes requests to the engines of a group; what happens in an engine
is in `kernel`.
"""

from collections.abc import Callable
from typing import NamedTuple

from twin.engine import kernel, kernel_events, kernel_load, kernel_parts, kernel_schedule, kernel_state, kernel_sums
from twin.engine.compiled import cached, compiled, fingerprint, moved, pointer
from twin.engine.kernel import begin, land, offer, stop, take_off
from twin.engine.kernel_events import hold_samples, take_arrivals
from twin.engine.kernel_load import load, reset, store, warm_up
from twin.engine.kernel_state import (
    ALONE,
    ARRIVAL,
    D_CLOSES,
    D_DUE,
    D_OPENS,
    D_OUTSTANDING,
    END,
    ENGINE,
    G_ENGINES,
    G_FIRST_ENGINE,
    G_FIRST_NEW,
    G_OFFERED,
    G_PRIVATE_KEYS,
    G_ROUTING,
    G_SETTINGS,
    LANDING,
    NEVER,
    NOW,
    P_B_AT,
    P_DRAIN,
    P_FINISH_AT,
    P_FROM,
    P_LIMIT,
    P_PHASE_AT,
    P_QUEUE_AT,
    P_SIZE,
    P_TABLE_AT,
    P_UNTIL,
    P_W_AT,
    PARAMS,
    R_FIELDS,
    REJECTED,
    RUNNING,
    SATURATED,
    SCALARS,
    STARTED,
    STATUS,
    TAKEN,
    TOLD,
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


_MODULES = (kernel_state, kernel_parts, kernel_sums, kernel_schedule, kernel_events, kernel, kernel_load)
run_groups = _entry(fingerprint(*(vars(module) for module in _MODULES), globals()))
"""All groups: `run_groups(groups, params, columns, keys, free_keys, costs, noise, out, work, totals, grid, room)`.

`groups` has G_SETTINGS numbers per group, `params` PARAMS per engine; they say where each one's part of the other
arrays begins. `out` has a row for each field of `Outcomes` and one for the engine; `room` has space for the largest
group's state. The arrays outlive the call, so that their pointers may stand for them.
"""
