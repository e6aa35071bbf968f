"""Compiled filling and reading of the kernel's arrays: requests in, an engine's starting state, outcomes out.

Arrays are those of `kernel_state`.
"""

from twin.engine.compiled import compiled
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
    ENGINE,
    FIRST,
    FREE,
    FRONT,
    G_FIRST_NEW,
    G_FIRST_ROW,
    G_KNOWN_AT,
    G_ROWS,
    GENERATED,
    HELD,
    HITS,
    ISL,
    KEPT,
    KEPT_FIRST,
    KEPT_LAST,
    KEYS,
    KEYS_AT,
    LANDING,
    LAST,
    NEVER,
    ORDER,
    OSL,
    P_CARRIED,
    P_DISTINCT_KEYS,
    P_FIRST_CARRIED,
    P_GRID_POINTS,
    P_KEYS_AT,
    P_MOST_BLOCKS,
    P_NAMED,
    P_RUNNING,
    P_SEQS,
    P_SIZE,
    P_STEP_LEFT,
    P_USABLE,
    PARAMS,
    PREEMPTIONS,
    PRIVATE_AT,
    PRIVATE_KEY,
    QUEUED,
    R_CLOCK,
    R_FIELDS,
    RANK,
    REGISTERED,
    RUN_HEAD,
    RUN_TAIL,
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
)
from twin.engine.types import Int64Array


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
        r[row + HELD] = r[row + REGISTERED] = r[row + KEPT] = 0
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
    s[FREE], s[FRONT], s[SLOTS] = usable, usable, seqs
    s[RUN_HEAD] = s[RUN_TAIL] = s[KEPT_FIRST] = s[KEPT_LAST] = -1
    s[DUE] = 0 if s[P_GRID_POINTS] > 0 else NEVER
    s[SENTINEL], s[HITS], s[LANDING] = usable * B_FIELDS, seqs * s[P_MOST_BLOCKS], NEVER
    for i in range(3 * size):
        phase[i] = 0 if i < 2 * size else -1
    if s[P_NAMED]:
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
    size, caching, in_flight = s[P_SIZE], s[P_NAMED] != 0, s[P_STEP_LEFT] > 0
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
