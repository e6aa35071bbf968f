"""Compiled scheduling of the kernel: who is admitted, who is served, who gives up his blocks. The rules of `scheduler`.

Law: on the same state it chooses what `VllmScheduler` chooses. Arrays are those of `kernel_state`.
"""

from twin.engine.compiled import compiled
from twin.engine.kernel_parts import (
    cache_prompt,
    evictable,
    find,
    grow,
    heap_pop,
    heap_push,
    hold,
    release,
    run,
    stop_running,
)
from twin.engine.kernel_state import (
    AFTER,
    BEFORE,
    CACHED,
    COMPUTED,
    FREE,
    GENERATED,
    HEAD_BLOCKED,
    HELD,
    ISL,
    KEPT,
    NO_PLACE,
    NOBODY_WAITS,
    NOW,
    P_BUDGET,
    P_CHUNK,
    P_CHUNKED,
    P_NAMED,
    P_PRIORITY,
    P_RESERVE,
    P_SEQS,
    P_SIZE,
    P_WATERMARK,
    PREEMPTIONS,
    PREFILLING,
    QUEUE_HEAD,
    QUEUE_TAIL,
    RANK,
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    SCHEDULED,
    SHARE_BEFORE,
    SHARE_DECODE,
    SHARE_ROW,
    SHARE_SAMPLES,
    SHARE_TOKENS,
    SHARES,
    STACK_TOP,
    STATUS,
    UNDEFINED,
    UNFINISHED,
    W_FIELDS,
    W_PREFILLING,
    WAITING,
)
from twin.engine.types import Int64Array


@compiled
def wait(s: Int64Array, r: Int64Array, queue: Int64Array, stack: Int64Array, row: int, at_front: bool) -> None:
    """Into the waiting queue: a heap by rank, or a stack of the preempted before the others in order of arrival."""
    s[WAITING] += 1
    if s[P_PRIORITY]:
        heap_push(queue, s[QUEUE_TAIL], r, RANK, row)
        s[QUEUE_TAIL] += 1
    elif at_front:
        stack[s[STACK_TOP]] = row
        s[STACK_TOP] += 1
    else:
        queue[s[QUEUE_TAIL]] = row
        s[QUEUE_TAIL] += 1


@compiled
def leave_queue(s: Int64Array, r: Int64Array, queue: Int64Array) -> None:
    """Take the next one out of the queue."""
    if s[P_PRIORITY]:
        heap_pop(queue, s[QUEUE_TAIL], r, RANK)
        s[QUEUE_TAIL] -= 1
    elif s[STACK_TOP] > 0:
        s[STACK_TOP] -= 1
    else:
        s[QUEUE_HEAD] += 1


@compiled
def next_waiting(s: Int64Array, r: Int64Array, queue: Int64Array, stack: Int64Array) -> int:
    """The request admitted next. Those that ended while waiting are dropped on the way."""
    while True:
        # A heap's smallest row is its first, and `QUEUE_HEAD` is 0 for it.
        row = stack[s[STACK_TOP] - 1] if s[STACK_TOP] > 0 else queue[s[QUEUE_HEAD]]
        if r[row + STATUS] == UNFINISHED:
            return int(row)
        leave_queue(s, r, queue)


@compiled
def share(s: Int64Array, r: Int64Array, w: Int64Array, row: int, tokens: int) -> None:
    """Count a request's tokens of this step as computed."""
    at = s[SHARES]
    s[SHARES] = at + 1
    before = r[row + COMPUTED]
    remaining = r[row + ISL] + r[row + GENERATED] - before
    w[at * W_FIELDS + SHARE_ROW] = row
    w[at * W_FIELDS + SHARE_TOKENS] = tokens
    w[at * W_FIELDS + SHARE_BEFORE] = before
    w[at * W_FIELDS + SHARE_DECODE] = remaining == 1 and r[row + GENERATED] > 0
    w[at * W_FIELDS + SHARE_SAMPLES] = tokens == remaining
    r[row + COMPUTED] = before + tokens


@compiled
def admit(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
    budget: int,
) -> int:
    """Admit from the waiting queue while `budget` tokens last; why it ended."""
    size, caching = s[P_SIZE], s[P_NAMED] != 0
    while s[WAITING] > 0:
        if budget <= 0 or s[RUNNING] >= s[P_SEQS]:
            return NO_PLACE
        row = next_waiting(s, r, queue, stack)
        known = r[row + ISL] + r[row + GENERATED]
        free = s[FREE]
        hits = 0
        if caching:
            hits = find(s, r, keys, by_key, table, row, (known - 1) // size)
            free -= evictable(s, b, table, hits)
        else:
            hits = min(r[row + KEPT], (known - 1) // size)
            free -= hits
        if s[RUNNING] > 0:
            free -= s[P_WATERMARK]
        computed = hits * size
        tokens = min(known - computed, s[P_CHUNK])
        if tokens > budget:
            if not s[P_CHUNKED]:
                return HEAD_BLOCKED
            tokens = budget
        whole = known if s[P_RESERVE] else computed + tokens
        if (whole + size - 1) // size - hits > free:
            return HEAD_BLOCKED
        leave_queue(s, r, queue)
        s[WAITING] -= 1
        hold(s, r, w, b, by_key, table, row, hits, (computed + tokens + size - 1) // size)
        r[row + COMPUTED] = computed
        if caching:
            cache_prompt(s, r, b, keys, by_key, table, row, computed + tokens)
        run(s, r, row)
        share(s, r, w, row, tokens)
        if r[row + SCHEDULED] == UNDEFINED:
            r[row + SCHEDULED] = s[NOW]
            r[row + CACHED] = computed
        budget -= tokens
    return NOBODY_WAITS


@compiled
def fits(s: Int64Array, r: Int64Array, w: Int64Array, need: int, budget: int) -> bool:
    """Whether prefills can be served after all decodes, whatever their place among them, without preemption."""
    size, count = s[P_SIZE], s[PREFILLING]
    wanted = 0
    for i in range(count):
        row = w[i * W_FIELDS + W_PREFILLING]
        tokens = min(r[row + ISL] + r[row + GENERATED] - r[row + COMPUTED], s[P_CHUNK])
        wanted += tokens
        need += max((r[row + COMPUTED] + tokens + size - 1) // size - r[row + HELD], 0)
    if need > s[FREE]:
        return False
    if wanted <= budget:
        return True
    row = s[RUN_TAIL]
    for i in range(count - 1, -1, -1):
        if w[i * W_FIELDS + W_PREFILLING] != row:
            return False
        row = r[row + BEFORE]
    return True


@compiled
def serve_prefilling(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    budget: int,
) -> int:
    """Give every prefilling request its share; what is left of the budget."""
    size = s[P_SIZE]
    for i in range(s[PREFILLING]):
        row = w[i * W_FIELDS + W_PREFILLING]
        computed = r[row + COMPUTED]
        tokens = min(r[row + ISL] + r[row + GENERATED] - computed, s[P_CHUNK], budget)
        if tokens <= 0:
            continue
        more = (computed + tokens + size - 1) // size - r[row + HELD]
        if more > 0:
            grow(s, r, b, by_key, table, row, more)
        if s[P_NAMED]:
            cache_prompt(s, r, b, keys, by_key, table, row, computed + tokens)
        share(s, r, w, row, tokens)
        budget -= tokens
    return budget


@compiled
def take_back_share(s: Int64Array, w: Int64Array, row: int) -> int:
    """Strike a request from the shares of the step; the tokens it had."""
    kept = tokens = 0
    for i in range(s[SHARES]):
        if w[i * W_FIELDS + SHARE_ROW] == row:
            tokens = w[i * W_FIELDS + SHARE_TOKENS]
            continue
        w[kept * W_FIELDS + SHARE_ROW] = w[i * W_FIELDS + SHARE_ROW]
        w[kept * W_FIELDS + SHARE_TOKENS] = w[i * W_FIELDS + SHARE_TOKENS]
        kept += 1
    s[SHARES] = kept
    return tokens


@compiled
def victim_of(s: Int64Array, r: Int64Array) -> int:
    """FCFS gives up the last of the running list, priority the least urgent and latest."""
    victim = s[RUN_TAIL]
    if s[P_PRIORITY]:
        other = s[RUN_HEAD]
        while other >= 0:
            if r[other + RANK] > r[victim + RANK]:
                victim = other
            other = r[other + AFTER]
    return int(victim)


@compiled
def serve_running(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
) -> int:
    """Shares of running requests, in their order, by preemption if need be; budget left, or -1 after a preemption."""
    size, budget, preempted = s[P_SIZE], s[P_BUDGET], False
    row = s[RUN_HEAD]
    while row >= 0 and budget > 0:
        tokens = min(r[row + ISL] + r[row + GENERATED] - r[row + COMPUTED], s[P_CHUNK], budget)
        need = (r[row + COMPUTED] + tokens + size - 1) // size - r[row + HELD]
        while need > s[FREE]:
            preempted = True
            victim = victim_of(s, r)
            budget += take_back_share(s, w, victim)
            stop_running(s, r, victim)
            release(s, r, w, b, keys, by_key, table, victim, True)
            r[victim + COMPUTED] = 0
            r[victim + PREEMPTIONS] += 1
            wait(s, r, queue, stack, victim, True)
            if victim == row:
                return -1
        if need > 0:
            grow(s, r, b, by_key, table, row, need)
        w[s[SHARES] * W_FIELDS + SHARE_ROW] = row
        w[s[SHARES] * W_FIELDS + SHARE_TOKENS] = tokens
        s[SHARES] += 1
        budget -= tokens
        row = r[row + AFTER]
    return -1 if preempted else int(budget)


@compiled
def schedule_explicitly(
    s: Int64Array,
    r: Int64Array,
    w: Int64Array,
    b: Int64Array,
    keys: Int64Array,
    by_key: Int64Array,
    table: Int64Array,
    queue: Int64Array,
    stack: Int64Array,
) -> None:
    """One step, request by request; no decode is among the sums, each has a share of its own."""
    while s[SHARES] == 0:
        budget = serve_running(s, r, w, b, keys, by_key, table, queue, stack)
        # Shares count as computed only now, when nobody can be made to give up any more.
        count = s[SHARES]
        s[SHARES] = 0
        for i in range(count):
            row = w[i * W_FIELDS + SHARE_ROW]
            if s[P_NAMED]:
                cache_prompt(s, r, b, keys, by_key, table, row, r[row + COMPUTED] + w[i * W_FIELDS + SHARE_TOKENS])
            share(s, r, w, row, w[i * W_FIELDS + SHARE_TOKENS])
        if budget >= 0:
            admit(s, r, w, b, keys, by_key, table, queue, stack, budget)
