"""The kernel's one entry: all jobs of a call, one engine after the other, without the interpreter's lock.

Fills and reads the arrays of `kernel_state`; what happens between is in `kernel`.
"""

from collections.abc import Callable
from typing import NamedTuple

from twin.engine import kernel, kernel_events, kernel_parts, kernel_schedule, kernel_state, kernel_sums
from twin.engine.compiled import cached, compiled, fingerprint, pointer
from twin.engine.kernel import run_engine
from twin.engine.kernel_events import sort_out, watch
from twin.engine.kernel_parts import cache_prompt, find, hold, park, run
from twin.engine.kernel_schedule import wait
from twin.engine.kernel_state import (
    ARRIVAL,
    B_AFTER,
    B_BEFORE,
    B_FIELDS,
    B_KEY,
    B_REFERENCES,
    CACHED,
    COMPUTED,
    DEADLINE,
    DUE,
    END,
    END_ROW,
    FIRST,
    FREE,
    GENERATED,
    HELD,
    HITS,
    ISL,
    KEYS,
    KEYS_AT,
    LAST,
    NEVER,
    NEXT_PRIVATE_KEY,
    NEXT_ROW,
    ORDER,
    OSL,
    P_CACHING,
    P_CARRIED,
    P_DISTINCT_KEYS,
    P_FIRST_CARRIED,
    P_FIRST_KEY,
    P_FIRST_ROW,
    P_GRID_POINTS,
    P_MOST_BLOCKS,
    P_PRIVATE_KEYS,
    P_ROWS,
    P_RUNNING,
    P_SEQS,
    P_SIZE,
    P_STEP_LEFT,
    P_USABLE,
    PARAMS,
    PREEMPTIONS,
    PRIVATE_KEY,
    QUEUED,
    R_CLOCK,
    R_FIELDS,
    RANK,
    REGISTERED,
    RUN_HEAD,
    RUN_TAIL,
    SATURATED,
    SCALARS,
    SCHEDULED,
    SENTINEL,
    SHARE_ROW,
    SHARE_SAMPLES,
    SHARES,
    SLOTS,
    STATUS,
    UNDEFINED,
    UNFINISHED,
    W_FIELDS,
    W_FREE_SLOT,
    WORK,
)
from twin.engine.types import Int64Array


class Columns(NamedTuple):
    """All jobs' requests, one job behind the other."""

    arrival: Int64Array
    isl: Int64Array
    osl: Int64Array
    deadline: Int64Array
    rank: Int64Array
    key_offsets: Int64Array
    keys: Int64Array
    cached: Int64Array
    known: Int64Array


class Room(NamedTuple):
    """State of one engine at a time; see `kernel_state`."""

    s: Int64Array
    r: Int64Array
    w: Int64Array
    b: Int64Array
    by_key: Int64Array
    table: Int64Array
    phase: Int64Array
    queue: Int64Array
    stack: Int64Array
    late: Int64Array
    finish: Int64Array


@compiled
def load(
    s: Int64Array,
    r: Int64Array,
    arrival: Int64Array,
    isl: Int64Array,
    osl: Int64Array,
    deadline: Int64Array,
    rank: Int64Array,
    key_offsets: Int64Array,
    known: Int64Array,
    job: int,
) -> None:
    """Write the job's requests; `known` has 7 fields for each carried one."""
    for i in range(s[P_ROWS]):
        row, at = i * R_FIELDS, s[P_FIRST_ROW] + i
        r[row + ARRIVAL] = arrival[at]
        r[row + ISL] = isl[at]
        r[row + OSL] = osl[at]
        r[row + DEADLINE] = deadline[at]
        r[row + RANK] = rank[at]
        r[row + KEYS_AT] = s[P_FIRST_KEY] + key_offsets[at + job]
        r[row + KEYS] = key_offsets[at + job + 1] - key_offsets[at + job]
        r[row + GENERATED] = r[row + COMPUTED] = r[row + CACHED] = r[row + PREEMPTIONS] = 0
        r[row + QUEUED] = r[row + SCHEDULED] = r[row + FIRST] = r[row + LAST] = r[row + R_CLOCK] = UNDEFINED
        r[row + STATUS] = UNFINISHED
        r[row + ORDER] = r[row + PRIVATE_KEY] = -1
        r[row + HELD] = r[row + REGISTERED] = 0
    for i in range(s[P_CARRIED]):
        row, at = i * R_FIELDS, (s[P_FIRST_CARRIED] + i) * 7
        r[row + QUEUED] = known[at]
        r[row + SCHEDULED] = known[at + 1]
        r[row + FIRST] = known[at + 2]
        r[row + GENERATED] = known[at + 3]
        r[row + CACHED] = known[at + 4]
        r[row + PREEMPTIONS] = known[at + 5]
        r[row + COMPUTED] = known[at + 6]


@compiled
def store(s: Int64Array, r: Int64Array, out: Int64Array, total: int) -> None:
    """The outcomes of the job's requests, `total` places for each field in the order of `Outcomes`."""
    for i in range(s[P_ROWS]):
        row, at = i * R_FIELDS, s[P_FIRST_ROW] + i
        out[at] = r[row + QUEUED]
        out[at + total] = r[row + SCHEDULED]
        out[at + 2 * total] = r[row + FIRST]
        out[at + 3 * total] = r[row + LAST]
        out[at + 4 * total] = r[row + GENERATED]
        out[at + 5 * total] = r[row + CACHED]
        out[at + 6 * total] = r[row + PREEMPTIONS]
        out[at + 7 * total] = r[row + STATUS]


@compiled
def reset(
    s: Int64Array, w: Int64Array, b: Int64Array, by_key: Int64Array, phase: Int64Array, params: Int64Array, job: int
) -> None:
    """An empty engine with this job's settings: all blocks free, first to last."""
    for i in range(SCALARS):
        s[i] = params[job * PARAMS + i] if i < PARAMS else 0
    usable, size, seqs = s[P_USABLE], s[P_SIZE], s[P_SEQS]
    s[FREE], s[SLOTS], s[NEXT_PRIVATE_KEY] = usable, seqs, s[P_DISTINCT_KEYS]
    s[RUN_HEAD] = s[RUN_TAIL] = -1
    s[NEXT_ROW], s[END_ROW] = s[P_CARRIED] * R_FIELDS, s[P_ROWS] * R_FIELDS
    s[DUE] = 0 if s[P_GRID_POINTS] > 0 else NEVER
    s[SENTINEL], s[HITS], s[WORK] = usable * B_FIELDS, seqs * s[P_MOST_BLOCKS], job * 21
    for i in range(3 * size):
        phase[i] = 0 if i < 2 * size else -1
    if s[P_CACHING]:
        for i in range(seqs):
            w[i * W_FIELDS + W_FREE_SLOT] = i * s[P_MOST_BLOCKS]
        for i in range(s[P_DISTINCT_KEYS] + s[P_PRIVATE_KEYS]):
            by_key[i] = -1
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
        row = i * R_FIELDS
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


Entry = Callable[..., None]


def _entry(version: int) -> Entry:
    @cached
    def run_jobs(
        params: Int64Array,
        columns: Columns,
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
        table, phase, queue, stack = pointer(room.table), pointer(room.phase), pointer(room.queue), pointer(room.stack)
        late, finish, keys, free_keys = (
            pointer(room.late),
            pointer(room.finish),
            pointer(columns.keys),
            pointer(columns.cached),
        )
        arrival, isl, osl, deadline = (
            pointer(columns.arrival),
            pointer(columns.isl),
            pointer(columns.osl),
            pointer(columns.deadline),
        )
        rank, offsets, known = pointer(columns.rank), pointer(columns.key_offsets), pointer(columns.known)
        c, n, o, k, g = pointer(costs), pointer(noise), pointer(out), pointer(work), pointer(grid)
        for job in range(len(params)):
            reset(s, w, b, by_key, phase, pointer(params), job)
            load(s, r, arrival, isl, osl, deadline, rank, offsets, known, job)
            warm_up(s, r, w, b, keys, by_key, table, phase, queue, stack, late, finish, free_keys)
            run_engine(s, r, w, b, keys, by_key, table, phase, queue, stack, late, finish, c, n, k, g)
            store(s, r, o, len(columns.arrival))
            totals[job, 0], totals[job, 1] = s[END], s[SATURATED]

    return run_jobs


_MODULES = (kernel_state, kernel_parts, kernel_sums, kernel_schedule, kernel_events, kernel)
run_jobs = _entry(fingerprint(*(vars(module) for module in _MODULES), globals()))
"""All jobs, one after the other: `run_jobs(params, columns, costs, noise, out, work, totals, grid, room)`.

`params` has PARAMS settings per job, which say where its part of the other arrays begins; `out` has a row for each
field of `Outcomes`; `room` has space for the largest job's state. The arrays outlive the call, so that their pointers
may stand for them.
"""
