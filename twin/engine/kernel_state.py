"""Memory layout of the compiled kernel: which number stands where. No behaviour.

What `fast` keeps in attributes lies here in flat integer arrays, of which compiled functions get bare pointers. A
request or a block is named by the place where its fields begin, so `r[row + ISL]` is a request's prompt length:

- `s` (SCALARS): one engine's settings (P_...) and scalars
- `r`: R_FIELDS per request; `b`: B_FIELDS per named block, the last of them the sentinel of the free queue
- `w`: W_FIELDS per place in short lists over running requests
- `table`: the blocks of each running request, as many places as the longest may need; then the hits of a look-up
- `inbox`, `queue`, `stack`, `late`, `finish`: requests; `phase` as in `fast`, twice over, then the heads of its lists
- `keys`, `cached`: prefix keys of requests and of free blocks; `by_key`: the first block findable by each key, first
  the keys that only their request asks for, then each engine's shared ones
- `costs`, `noise`, `work`, `grid`: as `kernel_run` lays them out
"""

# Settings of one engine; the last ones say where its part of each array begins.
(
    P_CARRIED,
    P_RUNNING,
    P_FIRST_CARRIED,
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
    P_NAMED,
    P_KEEPS,
    P_PRIORITY,
    P_LIMIT,
    P_EXPIRING,
    P_CACHED,
    P_EPOCHS,
    P_GRID_STEP,
    P_GRID_POINTS,
    P_MOST_BLOCKS,
    P_DISTINCT_KEYS,
    P_FROM,
    P_DRAIN,
    P_WEIGHT,
    P_CACHED_AT,
    P_NOISE_AT,
    P_COST_AT,
    P_SAMPLE_AT,
    P_WORK_AT,
    P_W_AT,
    P_B_AT,
    P_TABLE_AT,
    P_PHASE_AT,
    P_FINISH_AT,
    P_QUEUE_AT,
    P_KEYS_AT,
) = range(39)
PARAMS = 39

# Settings of one group of engines that share requests.
G_FIRST_ENGINE, G_ENGINES, G_FIRST_ROW, G_ROWS, G_FIRST_NEW, G_OFFERED, G_ROUTING, G_PRIVATE_KEYS, G_KNOWN_AT = range(9)
G_SETTINGS = 9
ALONE, LEAST_OUTSTANDING = range(2)

# Scalars of one engine, behind its settings.
CLOCK, STEPS, DECODES, CONTEXT, FREE, TAKEN, TOLD, BUSY, SATURATED, END = range(39, 49)
RUNNING, RUN_HEAD, RUN_TAIL, ADMISSIONS, WAITING, QUEUE_HEAD, QUEUE_TAIL, STACK_TOP = range(49, 57)
FINISH, PREFILLING, SHARES, FIRST_ADMITTED, SLOTS, BARRIER, LATE, SAMPLED = range(57, 65)
SENTINEL, HITS, NOW, START, DUE, FLIGHT, FIRST_PS, GROWTH_PS, EXPLICIT, LANDING, STARTED = range(65, 76)
FRONT, KEPT_FIRST, KEPT_LAST = range(76, 79)
SCALARS = 80

# One request. `ORDER` is -1 unless it runs; `R_CLOCK` is UNDEFINED unless it is among the sums; `FINISH_KEY` orders
# decodes by the clock at which they finish, then by admission; AFTER and BEFORE link the running list, GROWS_AFTER
# the decodes that need a block at the same clock. Where blocks are not named, KEPT counts free blocks with its content;
# the free queue is FRONT blocks without content and then those runs, from KEPT_FIRST on.
ISL, OSL, GENERATED, COMPUTED, HELD, ORDER, R_CLOCK, FINISH_KEY = range(8)
STATUS, ARRIVAL, QUEUED, SCHEDULED, FIRST, LAST, AFTER, BEFORE = range(8, 16)
CACHED, PREEMPTIONS, DEADLINE, RANK, KEYS_AT, KEYS, REGISTERED, SLOT = range(16, 24)
GROWS_AFTER, PRIVATE_KEY, PRIVATE_AT, ENGINE, KEPT, KEPT_AFTER, KEPT_BEFORE = range(24, 31)
R_FIELDS = 32

# Lists over running requests: those prefilling, those done, and the shares of the step that is planned.
W_PREFILLING, W_DONE, W_FREE_SLOT, SHARE_ROW, SHARE_TOKENS, SHARE_BEFORE, SHARE_DECODE, SHARE_SAMPLES = range(8)
W_FIELDS = 8

# One named block.
B_AFTER, B_BEFORE, B_REFERENCES, B_KEY, B_SAME_KEY_AFTER = range(5)
B_FIELDS = 5

# What a router asks of an engine: when it next does something, how many it has, from when until when it takes more.
D_DUE, D_OUTSTANDING, D_OPENS, D_CLOSES = range(4)

UNDEFINED = -(2**62)
NEVER = 2**62
NOBODY_WAITS, NO_PLACE, HEAD_BLOCKED = range(3)
FINISHED, REJECTED, TIMED_OUT, UNFINISHED = range(4)
PREFILL, DECODE, MIXED = range(3)
