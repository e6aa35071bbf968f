"""Memory layout of the compiled kernel: which number stands where. No behaviour.

What `fast` keeps in attributes lies here in flat integer arrays, of which compiled functions get bare pointers. A
request or a block is named by the place where its fields begin, so `r[row + ISL]` is a request's prompt length:

- `s` (SCALARS): one engine's settings (P_...) and scalars
- `r`: R_FIELDS per request; `b`: B_FIELDS per named block, the last of them the sentinel of the free queue
- `w`: W_FIELDS per place in short lists over running requests
- `table`: the blocks of each running request, as many places as the longest may need; then the hits of a look-up
- `queue`, `stack`, `late`, `finish`: requests; `phase` as in `fast`, twice over, then the heads of its lists
- `keys`, `by_key`, `cached`: prefix keys of requests, the first block findable by each key, keys of free blocks
- `costs`, `noise`, `work`, `grid`: as `kernel_run` lays them out
"""

# Settings of one job.
(
    P_FIRST_ROW,
    P_ROWS,
    P_CARRIED,
    P_RUNNING,
    P_STEP_LEFT,
    P_UNTIL,
    P_SIZE,
    P_USABLE,
    P_WATERMARK,
    P_SEQS,
    P_BUDGET,
    P_CHUNK,
    P_CHUNKED,
    P_RESERVE,
    P_CACHING,
    P_PRIORITY,
    P_LIMIT,
    P_EXPIRING,
    P_FIRST_KEY,
    P_DISTINCT_KEYS,
    P_FIRST_CACHED,
    P_CACHED,
    P_FIRST_NOISE,
    P_EPOCHS,
    P_FIRST_COST,
    P_GRID_STEP,
    P_GRID_POINTS,
    P_FIRST_SAMPLE,
    P_MOST_BLOCKS,
    P_PRIVATE_KEYS,
    P_FIRST_CARRIED,
) = range(31)
PARAMS = 31

# Scalars of one engine, behind its settings.
CLOCK, STEPS, DECODES, CONTEXT, FREE, NEXT_ROW, END_ROW, BUSY, SATURATED, END = range(32, 42)
RUNNING, RUN_HEAD, RUN_TAIL, ADMISSIONS, WAITING, QUEUE_HEAD, QUEUE_TAIL, STACK_TOP = range(42, 50)
FINISH, PREFILLING, SHARES, FIRST_ADMITTED, SLOTS, BARRIER, LATE, SAMPLED, NEXT_PRIVATE_KEY = range(50, 59)
SENTINEL, HITS, WORK, NOW, START, DUE, FLIGHT, FIRST_PS, GROWTH_PS, EXPLICIT = range(59, 69)
SCALARS = 69

# One request. `ORDER` is -1 unless it runs; `R_CLOCK` is UNDEFINED unless it is among the sums; `FINISH_KEY` orders
# decodes by the clock at which they finish, then by admission; AFTER and BEFORE link the running list, GROWS_AFTER
# the decodes that need a block at the same clock.
ISL, OSL, GENERATED, COMPUTED, HELD, ORDER, R_CLOCK, FINISH_KEY = range(8)
STATUS, ARRIVAL, QUEUED, SCHEDULED, FIRST, LAST, AFTER, BEFORE = range(8, 16)
CACHED, PREEMPTIONS, DEADLINE, RANK, KEYS_AT, KEYS, REGISTERED, SLOT = range(16, 24)
GROWS_AFTER, PRIVATE_KEY = range(24, 26)
R_FIELDS = 26

# Lists over running requests: those prefilling, those done, and the shares of the step that is planned.
W_PREFILLING, W_DONE, W_FREE_SLOT, SHARE_ROW, SHARE_TOKENS, SHARE_BEFORE, SHARE_DECODE, SHARE_SAMPLES = range(8)
W_FIELDS = 8

# One named block.
B_AFTER, B_BEFORE, B_REFERENCES, B_KEY, B_SAME_KEY_AFTER = range(5)
B_FIELDS = 5

UNDEFINED = -(2**62)
NEVER = 2**62
NOBODY_WAITS, NO_PLACE, HEAD_BLOCKED = range(3)
FINISHED, REJECTED, TIMED_OUT, UNFINISHED = range(4)
PREFILL, DECODE, MIXED = range(3)
