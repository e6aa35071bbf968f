"""Compiled sums of the kernel: decodes that advance together, and how long steps last. As in `fast` and `timing`.

Arrays are those of `kernel_state`; `decodes`, `rest` and `noise` are one job's costs and multipliers per role.
"""

from math import sqrt

from twin.engine.compiled import compiled
from twin.engine.kernel_parts import grow, heap_push, take
from twin.engine.kernel_state import (
    CLOCK,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODES,
    FINISH,
    FINISH_KEY,
    FIRST_PS,
    FLIGHT,
    FREE,
    GENERATED,
    GROWS_AFTER,
    GROWTH_PS,
    HELD,
    ISL,
    MIXED,
    ORDER,
    OSL,
    P_COST_AT,
    P_EPOCHS,
    P_NAMED,
    P_NOISE_AT,
    P_SEQS,
    P_SIZE,
    P_WORK_AT,
    PREFILL,
    R_CLOCK,
    SHARE_BEFORE,
    SHARE_DECODE,
    SHARE_TOKENS,
    SHARES,
    STEPS,
    UNDEFINED,
    W_FIELDS,
)
from twin.engine.types import NOISE_ONE, STEPS_PER_EPOCH, Int64Array


@compiled
def flight_ps(steps: int, first_ps: int, growth_ps: int) -> int:
    """How long steps last that take first, first + growth, ..."""
    return steps * first_ps + growth_ps * (steps * (steps - 1) // 2)


@compiled
def steps_to_reach(span_ps: int, first_ps: int, growth_ps: int) -> int:
    """The least number of steps >= 1 that last `span_ps` or longer."""
    if span_ps <= first_ps:
        return 1
    if growth_ps == 0:
        return (span_ps + first_ps - 1) // first_ps
    half = first_ps - growth_ps / 2
    steps = int((sqrt(half * half + 2.0 * growth_ps * span_ps) - half) / growth_ps)
    while flight_ps(steps, first_ps, growth_ps) < span_ps:
        steps += 1
    while flight_ps(steps - 1, first_ps, growth_ps) >= span_ps:
        steps -= 1
    return steps


@compiled
def scaled(value_ps: int, multiplier: int) -> int:
    """A coefficient under this epoch's noise."""
    return (value_ps * multiplier + NOISE_ONE // 2) >> 16


@compiled
def multiplier_of(s: Int64Array, noise: Int64Array, role: int) -> int:
    """The noise of the present step's epoch."""
    return int(noise[s[P_NOISE_AT] + role * s[P_EPOCHS] + s[STEPS] // STEPS_PER_EPOCH % s[P_EPOCHS]])


@compiled
def cost_at(s: Int64Array, role: int) -> int:
    """Where the role's cost by number of decodes begins; its other four coefficients are right before it."""
    return int(s[P_COST_AT] + role * (s[P_SEQS] + 5) + 4)


@compiled
def single(s: Int64Array, w: Int64Array, costs: Int64Array, noise: Int64Array, work: Int64Array) -> None:
    """A flight of one step: the decodes kept as sums, and the requests with a share of their own."""
    decodes = s[DECODES]
    context = s[CONTEXT] + decodes
    prefills = tokens = pairs = 0
    for i in range(s[SHARES]):
        count, before = w[i * W_FIELDS + SHARE_TOKENS], w[i * W_FIELDS + SHARE_BEFORE]
        if w[i * W_FIELDS + SHARE_DECODE]:
            decodes += 1
            context += before + 1
        else:
            prefills += 1
            tokens += count
            pairs += count * before + count * (count + 1) // 2
    role = DECODE if tokens == 0 else MIXED if decodes > 0 else PREFILL
    m = multiplier_of(s, noise, role)
    at = cost_at(s, role)
    duration = (
        max(scaled(costs[at + decodes], m), 1)
        + scaled(costs[at - 4], m) * prefills
        + scaled(costs[at - 3], m) * tokens
        + scaled(costs[at - 2], m) * pairs
        + scaled(costs[at - 1], m) * context
    )
    total = s[P_WORK_AT] + 7 * role
    work[total] += 1
    work[total + 1] += prefills
    work[total + 2] += tokens
    work[total + 3] += pairs
    work[total + 4] += decodes
    work[total + 5] += context
    work[total + 6] += duration
    s[FLIGHT], s[FIRST_PS], s[GROWTH_PS] = 1, duration, 0


@compiled
def join(s: Int64Array, r: Int64Array, finish: Int64Array, phase: Int64Array, row: int) -> None:
    """A request whose next step is a decode joins the sums."""
    size, clock = s[P_SIZE], r[row + COMPUTED] - s[CLOCK]
    r[row + R_CLOCK] = clock
    s[DECODES] += 1
    s[CONTEXT] += r[row + COMPUTED]
    place = -clock % size
    phase[place] += 1
    phase[place + size] += 1
    if s[P_NAMED]:
        head = place + 2 * size
        at, before = phase[head], -1
        while at >= 0 and r[at + ORDER] < r[row + ORDER]:
            before, at = at, r[at + GROWS_AFTER]
        r[row + GROWS_AFTER] = at
        if before < 0:
            phase[head] = row
        else:
            r[before + GROWS_AFTER] = row
    r[row + FINISH_KEY] = (r[row + ISL] + r[row + OSL] - 1 - clock) << 32 | r[row + ORDER]
    heap_push(finish, s[FINISH], r, FINISH_KEY, row)
    s[FINISH] += 1


@compiled
def settle(s: Int64Array, r: Int64Array, phase: Int64Array, row: int) -> None:
    """Take a decode out of the sums and write its progress down; the heap of finishes is the caller's."""
    size = s[P_SIZE]
    place = -r[row + R_CLOCK] % size
    computed = s[CLOCK] + r[row + R_CLOCK]
    s[DECODES] -= 1
    s[CONTEXT] -= computed
    phase[place] -= 1
    phase[place + size] -= 1
    if s[P_NAMED]:
        head = place + 2 * size
        at, before = phase[head], -1
        while at != row:
            before, at = at, r[at + GROWS_AFTER]
        if before < 0:
            phase[head] = r[row + GROWS_AFTER]
        else:
            r[before + GROWS_AFTER] = r[row + GROWS_AFTER]
    r[row + R_CLOCK] = UNDEFINED
    r[row + COMPUTED] = computed
    r[row + GENERATED] = computed - r[row + ISL] + 1
    r[row + HELD] = (computed + size - 1) // size


@compiled
def grow_decodes(
    s: Int64Array, r: Int64Array, b: Int64Array, by_key: Int64Array, table: Int64Array, phase: Int64Array, clock: int
) -> None:
    """Blocks for the decodes that need one in the step at this clock."""
    place = clock % s[P_SIZE]
    if not s[P_NAMED]:
        take(s, r, phase[place])
        return
    row = phase[place + 2 * s[P_SIZE]]
    while row >= 0:
        grow(s, r, b, by_key, table, row, 1)
        row = r[row + GROWS_AFTER]


@compiled
def grown(s: Int64Array, phase: Int64Array, steps: int) -> int:
    """Blocks that the decodes need in so many steps after the present one."""
    size = s[P_SIZE]
    total = steps // size * s[DECODES]
    place = (s[CLOCK] + 1) % size
    for i in range(place, place + steps % size):
        total += phase[i]
    return int(total)


@compiled
def until_blocks_run_out(s: Int64Array, phase: Int64Array, most: int) -> int:
    """Steps, at most `most`, whose blocks are all there; the first one's are taken already."""
    size, left = s[P_SIZE], s[FREE] % s[DECODES]
    steps = 1 + s[FREE] // s[DECODES] * size
    place = (s[CLOCK] + 1) % size
    for i in range(place, place + size):
        left -= phase[i]
        if left < 0 or steps >= most:
            break
        steps += 1
    return int(min(steps, most))


@compiled
def count_decodes(s: Int64Array, work: Int64Array, duration: int) -> None:
    """Account for a flight of decodes only."""
    flight, decodes, total = s[FLIGHT], s[DECODES], s[P_WORK_AT] + 7 * DECODE
    work[total] += flight
    work[total + 4] += flight * decodes
    work[total + 5] += flight * (s[CONTEXT] + decodes) + decodes * (flight * (flight - 1) // 2)
    work[total + 6] += duration
