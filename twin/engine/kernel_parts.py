"""Compiled parts of the kernel: heaps of rows, the running list, the free queue of blocks and the prefix cache.

Same answers as `kv`, `memory` and `request`; checks nothing, for `prepare` has. Arrays are those of `kernel_state`.
"""

from twin.engine.compiled import compiled
from twin.engine.kernel_state import (
    ADMISSIONS,
    AFTER,
    B_AFTER,
    B_BEFORE,
    B_KEY,
    B_REFERENCES,
    B_SAME_KEY_AFTER,
    BEFORE,
    COMPUTED,
    FREE,
    FRONT,
    HELD,
    HITS,
    KEPT,
    KEPT_AFTER,
    KEPT_BEFORE,
    KEPT_FIRST,
    KEPT_LAST,
    KEYS,
    KEYS_AT,
    ORDER,
    P_CACHED,
    P_CACHED_AT,
    P_KEEPS,
    P_KEYS_AT,
    P_NAMED,
    P_SIZE,
    PRIVATE_AT,
    PRIVATE_KEY,
    REGISTERED,
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    SENTINEL,
    SLOT,
    SLOTS,
    W_FIELDS,
    W_FREE_SLOT,
)
from twin.engine.types import Int64Array


@compiled
def heap_push(heap: Int64Array, count: int, r: Int64Array, key: int, row: int) -> None:
    """Add a row to a heap of `count` rows, smallest column `key` first; the caller counts."""
    at, mine = count, r[row + key]
    while at > 0:
        up = (at - 1) >> 1
        if r[heap[up] + key] <= mine:
            break
        heap[at] = heap[up]
        at = up
    heap[at] = row


@compiled
def heap_fill(heap: Int64Array, count: int, r: Int64Array, key: int, at: int, row: int) -> None:
    """Put a row into the hole `at`, which has nothing larger above it, and let it sink."""
    mine = r[row + key]
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count and r[heap[down + 1] + key] < r[heap[down] + key]:
            down += 1
        if r[heap[down] + key] >= mine:
            break
        heap[at] = heap[down]
        at = down
    heap[at] = row


@compiled
def heap_pop(heap: Int64Array, count: int, r: Int64Array, key: int) -> int:
    """Take the row with the smallest key; the caller counts."""
    top = int(heap[0])
    if count > 1:
        heap_fill(heap, count - 1, r, key, 0, heap[count - 1])
    return top


@compiled
def heap_remove(heap: Int64Array, count: int, r: Int64Array, key: int, row: int) -> None:
    """Take this row, wherever it is; the caller counts."""
    at = 0
    while heap[at] != row:
        at += 1
    last = heap[count - 1]
    if at == count - 1:
        return
    # The last row may belong above the hole, when it comes from another branch.
    while at > 0 and r[heap[(at - 1) >> 1] + key] > r[last + key]:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap_fill(heap, count - 1, r, key, at, last)


@compiled
def run(s: Int64Array, r: Int64Array, row: int) -> None:
    """Append to the running list."""
    r[row + ORDER] = s[ADMISSIONS]
    s[ADMISSIONS] += 1
    tail = s[RUN_TAIL]
    r[row + BEFORE] = tail
    r[row + AFTER] = -1
    if tail < 0:
        s[RUN_HEAD] = row
    else:
        r[tail + AFTER] = row
    s[RUN_TAIL] = row
    s[RUNNING] += 1


@compiled
def stop_running(s: Int64Array, r: Int64Array, row: int) -> None:
    """Take out of the running list."""
    before, after = r[row + BEFORE], r[row + AFTER]
    if before < 0:
        s[RUN_HEAD] = after
    else:
        r[before + AFTER] = after
    if after < 0:
        s[RUN_TAIL] = before
    else:
        r[after + BEFORE] = before
    r[row + ORDER] = -1
    s[RUNNING] -= 1


@compiled
def key_of(s: Int64Array, r: Int64Array, keys: Int64Array, row: int, index: int) -> int:
    """Key of its block; -1 where it has none."""
    shared = r[row + KEYS]
    if index < shared:
        return int(s[P_KEYS_AT] + keys[r[row + KEYS_AT] + index])
    if r[row + PRIVATE_KEY] < 0:
        return -1
    return int(r[row + PRIVATE_KEY] + index - shared)


@compiled
def find(
    s: Int64Array, r: Int64Array, keys: Int64Array, by_key: Int64Array, table: Int64Array, row: int, n: int
) -> int:
    """How many blocks from the first on, at most n, are cached; the last row of `table` names them."""
    count = 0
    while count < n:
        key = key_of(s, r, keys, row, count)
        if key < 0 or by_key[key] < 0:
            break
        table[s[HITS] + count] = by_key[key]
        count += 1
    return count


@compiled
def evictable(s: Int64Array, b: Int64Array, table: Int64Array, hits: int) -> int:
    """How many of the hits are in the free queue."""
    count = 0
    for i in range(hits):
        if b[table[s[HITS] + i] + B_REFERENCES] == 0:
            count += 1
    return count


@compiled
def unlink(b: Int64Array, block: int) -> None:
    """Out of the free queue."""
    before, after = b[block + B_BEFORE], b[block + B_AFTER]
    b[before + B_AFTER] = after
    b[after + B_BEFORE] = before


@compiled
def link_after(b: Int64Array, place: int, block: int) -> None:
    """Into the free queue, behind this place."""
    after = b[place + B_AFTER]
    b[place + B_AFTER] = block
    b[block + B_BEFORE] = place
    b[block + B_AFTER] = after
    b[after + B_BEFORE] = block


@compiled
def register(b: Int64Array, by_key: Int64Array, block: int, key: int) -> None:
    """Findable under this key, after those that are already."""
    b[block + B_KEY] = key
    b[block + B_SAME_KEY_AFTER] = -1
    other = by_key[key]
    if other < 0:
        by_key[key] = block
        return
    while b[other + B_SAME_KEY_AFTER] >= 0:
        other = b[other + B_SAME_KEY_AFTER]
    b[other + B_SAME_KEY_AFTER] = block


@compiled
def forget(b: Int64Array, by_key: Int64Array, block: int) -> None:
    """No longer findable."""
    key = b[block + B_KEY]
    b[block + B_KEY] = -1
    other = by_key[key]
    if other == block:
        by_key[key] = b[block + B_SAME_KEY_AFTER]
        return
    while b[other + B_SAME_KEY_AFTER] != block:
        other = b[other + B_SAME_KEY_AFTER]
    b[other + B_SAME_KEY_AFTER] = b[block + B_SAME_KEY_AFTER]


@compiled
def unlink_run(s: Int64Array, r: Int64Array, row: int) -> None:
    """A request's run of blocks leaves the free queue."""
    before, after = r[row + KEPT_BEFORE], r[row + KEPT_AFTER]
    if before < 0:
        s[KEPT_FIRST] = after
    else:
        r[before + KEPT_AFTER] = after
    if after < 0:
        s[KEPT_LAST] = before
    else:
        r[after + KEPT_BEFORE] = before
    r[row + KEPT] = 0


@compiled
def take(s: Int64Array, r: Int64Array, n: int) -> None:
    """Take n free blocks that nobody names: those without content, then of the oldest run, its last ones first."""
    s[FREE] -= n
    s[FRONT] -= n
    while s[FRONT] < 0:
        row = s[KEPT_FIRST]
        left = r[row + KEPT] + s[FRONT]
        if left > 0:
            r[row + KEPT] = left
            s[FRONT] = 0
            return
        unlink_run(s, r, row)
        s[FRONT] = left


@compiled
def grow(s: Int64Array, r: Int64Array, b: Int64Array, by_key: Int64Array, table: Int64Array, row: int, n: int) -> None:
    """Take n free blocks for a request that holds some."""
    if not s[P_NAMED]:
        take(s, r, n)
    else:
        s[FREE] -= n
        sentinel, slot, held = s[SENTINEL], r[row + SLOT], r[row + HELD]
        for i in range(n):
            block = b[sentinel + B_AFTER]
            unlink(b, block)
            if b[block + B_KEY] >= 0:
                forget(b, by_key, block)
            b[block + B_REFERENCES] = 1
            table[slot + held + i] = block
    r[row + HELD] += n


@compiled
def hold(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    row: int,
    hits: int,
    blocks: int,
) -> None:
    """Give a request the hits and as many free blocks as make up `blocks`."""
    r[row + HELD] = hits
    if not s[P_NAMED]:
        if hits > 0:
            s[FREE] -= hits
            unlink_run(s, r, row)
    else:
        s[SLOTS] -= 1
        slot = w[s[SLOTS] * W_FIELDS + W_FREE_SLOT]
        r[row + SLOT] = slot
        r[row + REGISTERED] = hits
        for i in range(hits):
            block = table[s[HITS] + i]
            if b[block + B_REFERENCES] == 0:
                unlink(b, block)
                s[FREE] -= 1
            b[block + B_REFERENCES] += 1
            table[slot + i] = block
    grow(s, r, b, by_key, table, row, blocks - hits)


@compiled
def cache_prompt(
    s: Int64Array,
    r: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    row: int,
    computed: int,
) -> None:
    """Its full prompt blocks that have a hash are findable."""
    full = min(computed // s[P_SIZE], r[row + KEYS])
    for i in range(r[row + REGISTERED], full):
        register(b, by_key, table[r[row + SLOT] + i], s[P_KEYS_AT] + keys[r[row + KEYS_AT] + i])
    if full > r[row + REGISTERED]:
        r[row + REGISTERED] = full


@compiled
def release(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    row: int,
    resumes: bool,
) -> None:
    """Give all its blocks back; if it resumes, it may find them again."""
    held, size = r[row + HELD], s[P_SIZE]
    r[row + HELD] = 0
    if not s[P_NAMED]:
        kept = r[row + COMPUTED] // size if s[P_KEEPS] else 0
        s[FREE] += held
        s[FRONT] += held - kept
        if kept > 0:
            last = s[KEPT_LAST]
            r[row + KEPT], r[row + KEPT_AFTER], r[row + KEPT_BEFORE] = kept, -1, last
            if last < 0:
                s[KEPT_FIRST] = row
            else:
                r[last + KEPT_AFTER] = row
            s[KEPT_LAST] = row
        return
    full = max(r[row + COMPUTED] // size, r[row + REGISTERED])
    slot = r[row + SLOT]
    if resumes:
        if r[row + PRIVATE_KEY] < 0:
            r[row + PRIVATE_KEY] = r[row + PRIVATE_AT]
        for i in range(r[row + REGISTERED], full):
            register(b, by_key, table[slot + i], key_of(s, r, keys, row, i))
    sentinel = s[SENTINEL]
    for place in range(held - 1, -1, -1):
        block = table[slot + place]
        b[block + B_REFERENCES] -= 1
        if b[block + B_REFERENCES] == 0:
            s[FREE] += 1
            link_after(b, b[sentinel + B_BEFORE] if place < full else sentinel, block)
    r[row + REGISTERED] = 0
    w[s[SLOTS] * W_FIELDS + W_FREE_SLOT] = slot
    s[SLOTS] += 1


@compiled
def park(s: Int64Array, b: Int64Array, by_key: Int64Array, cached: Int64Array) -> None:
    """Let the last free blocks hold these keys, least recently used first; surplus old keys drop."""
    count = min(s[P_CACHED], s[FREE])
    block = s[SENTINEL]
    for _ in range(count):
        block = b[block + B_BEFORE]
    for i in range(s[P_CACHED] - count, s[P_CACHED]):
        register(b, by_key, block, s[P_KEYS_AT] + cached[s[P_CACHED_AT] + i])
        block = b[block + B_AFTER]
