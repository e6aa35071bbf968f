"""From jobs to checked tables that every engine reads. Refuses what could not run to its end; simulates nothing.

Law: whatever passes here can be scheduled to its end by every engine; whatever is refused is refused before time 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost, StepCost
from twin.engine.tiers import tiers_of
from twin.engine.types import LATEST_PS, CarriedRequest, Grid, Int64Array, Job, Noise, Workload

MAX_COEFFICIENT_PS = 2**44
"""17 s: a scaled coefficient (at most 4 x, in 16-bit fixed point) still fits int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Requests of a run. Rows: each engine's carried running and then waiting requests, then the workload.

    `keys[key_offsets[i]:key_offsets[i + 1]]` are small numbers, equal where two requests share a full prompt block.
    `most_tokens` is the most that one request may have computed, `expiring` whether any client gives up.
    `rank` orders requests under the priority policy. `deadline_ps` is LATEST_PS where there is none. `arrived_tokens`
    counts prompt tokens whose KV comes with the request, from a prefill elsewhere.
    """

    arrival_ps: Int64Array
    deadline_ps: Int64Array
    isl_tokens: Int64Array
    osl_tokens: Int64Array
    rank: Int64Array
    computed_tokens: Int64Array
    generated_tokens: Int64Array
    scheduled_ps: Int64Array
    first_token_ps: Int64Array
    preemptions: Int64Array
    cached_tokens: Int64Array
    key_offsets: Int64Array
    keys: Int64Array
    distinct_keys: int
    carried: int
    most_tokens: int
    expiring: bool
    arrived_tokens: Int64Array | None = None

    @property
    def rows(self) -> int:
        """Carried and new."""
        return len(self.arrival_ps)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One engine and the table it works on. Its carried requests are `carried` rows from `first_carried` on, the

    first `running` of them running. Rows `first_new` to `offered` come to it, by themselves or, where it is `routed`,
    those that a router sends it. Later rows arrive when no step may start any more, and are never seen.
    """

    config: EngineConfig
    cost: StepCost
    noise: Noise | None
    grid: Grid | None
    until_ps: int
    step_left_ps: int
    usable_blocks: int
    watermark_blocks: int
    cached_keys: Int64Array
    table: Table
    first_carried: int
    carried: int
    running: int
    first_new: int
    offered: int
    routed: bool


def prepare(job: Job) -> Prepared:
    """Check and lay out one engine. Raises ValueError: which request or setting cannot work, and what to change."""
    return prepare_many([job], job.workload, job.until_ps, routed=False)[0]


def prepare_many(jobs: Sequence[Job], load: Workload, until_ps: int | None, *, routed: bool) -> list[Prepared]:
    """Engines that share one workload; each job brings all but that. Raises ValueError as `prepare` does."""
    states = [job.state for job in jobs]
    counts = [len(state.running) + len(state.waiting) for state in states]
    table, cached = _table(jobs, load)
    offered = table.rows
    if until_ps is not None:
        offered = table.carried + int(np.searchsorted(load.arrival_ps, until_ps))
    newest = _longest("request ", load.isl_tokens, load.osl_tokens)
    engines = []
    for i, (job, state) in enumerate(zip(jobs, states, strict=True)):
        config = job.config
        usable = _check_engine(job, table, sum(counts[:i]), newest)
        engines.append(
            Prepared(
                config=config,
                cost=job.cost,
                noise=job.noise,
                grid=job.grid,
                until_ps=LATEST_PS if until_ps is None else until_ps,
                step_left_ps=state.step_left_ps,
                usable_blocks=usable,
                watermark_blocks=int(config.watermark_ratio * config.kv_blocks),
                cached_keys=cached[i],
                table=table,
                first_carried=sum(counts[:i]),
                carried=counts[i],
                running=len(state.running),
                first_new=table.carried,
                offered=offered,
                routed=routed,
            )
        )
    return engines


def _table(jobs: Sequence[Job], load: Workload) -> tuple[Table, list[Int64Array]]:
    rows = [row for job in jobs for row in job.state.running + job.state.waiting]
    arrival = _joined(rows, "arrival_ps", load.arrival_ps)
    priority = _joined(rows, "priority", load.priority)
    timeout = _joined(rows, "timeout_ps", load.timeout_ps)
    isl = _joined(rows, "isl_tokens", load.isl_tokens)
    rank = np.arange(len(arrival))
    if any(job.config.policy == "priority" for job in jobs):
        rank[np.lexsort((np.arange(len(arrival)), arrival, priority))] = np.arange(len(arrival))
    offsets, keys, distinct, cached = _block_keys(jobs, load, rows, isl)
    nothing = np.zeros(load.requests, np.int64)
    never = nothing - LATEST_PS
    scheduled = _joined(rows, "scheduled_ps", never)
    # Who runs was scheduled some time; where nobody knows when, the arrival stands in.
    runs = [i < len(job.state.running) for job in jobs for i in range(len(job.state.running + job.state.waiting))]
    unknown = np.flatnonzero(np.array(runs, bool) & (scheduled[: len(rows)] == -LATEST_PS))
    scheduled[unknown] = arrival[unknown]
    osl = _joined(rows, "osl_tokens", load.osl_tokens)
    expiring = bool(timeout.any())
    deadline = np.full(len(arrival), LATEST_PS)
    if expiring:
        deadline = np.where(timeout > 0, np.minimum(arrival + np.maximum(timeout, 1), LATEST_PS), LATEST_PS)
    table = Table(
        arrival_ps=arrival,
        deadline_ps=deadline,
        isl_tokens=isl,
        osl_tokens=osl,
        rank=rank,
        computed_tokens=_joined(rows, "computed_tokens", nothing),
        generated_tokens=_joined(rows, "generated_tokens", nothing),
        scheduled_ps=scheduled,
        first_token_ps=_joined(rows, "first_token_ps", never),
        preemptions=_joined(rows, "preemptions", nothing),
        cached_tokens=_joined(rows, "cached_tokens", nothing),
        key_offsets=offsets,
        keys=keys,
        distinct_keys=distinct,
        carried=len(rows),
        most_tokens=int((isl + osl).max(initial=1)) - 1,
        expiring=expiring,
    )
    return table, cached


def _joined(rows: Sequence[CarriedRequest], name: str, rest: Int64Array) -> Int64Array:
    if not rows:
        return rest
    head = [getattr(row, name) for row in rows]
    return np.concatenate((np.array([-LATEST_PS if v is None else v for v in head], np.int64), rest))


@dataclass(frozen=True, slots=True)
class _Longest:
    """The request with the most tokens: its name in errors, and how many."""

    who: str
    isl: int
    osl: int
    most_osl: int


def _longest(who: str, isl: Int64Array, osl: Int64Array) -> _Longest | None:
    if not len(isl):
        return None
    i = int(np.argmax(isl + osl))
    return _Longest(f"{who}{i}", int(isl[i]), int(osl[i]), int(osl.max()))


def _check_engine(job: Job, table: Table, first_carried: int, newest: _Longest | None) -> int:
    """Usable blocks of an engine that can do all it may be asked to."""
    config, state = job.config, job.state
    usable = _check_config(config)
    _check_cost(job.cost)
    own = slice(first_carried, first_carried + len(state.running) + len(state.waiting))
    for longest in (_longest("carried request ", table.isl_tokens[own], table.osl_tokens[own]), newest):
        if longest is not None:
            _check_length(config, usable, longest)
            _check_span(job, usable, longest)
    if len(state.running) > config.max_num_seqs:
        raise ValueError(f"state.running holds {len(state.running)} requests, max_num_seqs is {config.max_num_seqs}")
    _check_held(config, usable, table, first_carried, len(state.running))
    return usable


def _check_held(config: EngineConfig, usable: int, table: Table, first: int, running: int) -> None:
    """What runs at the start holds blocks: those of a shared prefix once."""
    left, size, known = usable, config.block_size_tokens, set[int]()
    for i in range(running):
        computed = int(table.computed_tokens[first + i])
        at, end = int(table.key_offsets[first + i]), int(table.key_offsets[first + i + 1])
        keys = table.keys[at : min(end, at + computed // size)].tolist() if config.enable_prefix_caching else []
        hits = next((n for n, key in enumerate(keys) if key not in known), len(keys))
        need = -(-computed // size) - hits
        if need > left:
            raise ValueError(
                f"state.running[{i}] needs {need} KV blocks and {left} are left; its computed_tokens or those before it"
                " are too many for this engine"
            )
        left -= need
        known.update(keys)


def _check_config(config: EngineConfig) -> int:
    where = f"engine {config.engine!r}"
    usable = config.kv_blocks - config.reserved_blocks
    if usable < 1:
        raise ValueError(
            f"{where} has no usable KV block: kv_blocks {config.kv_blocks}, reserved_blocks {config.reserved_blocks};"
            " raise kv_blocks"
        )
    for name in ("block_size_tokens", "max_num_seqs", "max_num_batched_tokens", "prefill_schedule_interval_steps"):
        if getattr(config, name) < 1:
            raise ValueError(f"{where}: {name} must be >= 1, got {getattr(config, name)}")
    if not 0.0 <= config.watermark_ratio < 1.0:
        raise ValueError(f"{where}: watermark_ratio must be in 0 .. 1, got {config.watermark_ratio}")
    tiers_of(config)
    return usable


def _check_cost(cost: StepCost) -> None:
    if not isinstance(cost, FrozenStepCost):
        return
    for role in (cost.prefill, cost.decode, cost.mixed):
        largest = max(
            *role.decode_requests_ps,
            role.prefill_request_ps,
            role.prefill_token_ps,
            role.prefill_attention_pair_ps,
            role.decode_context_token_ps,
        )
        if largest >= MAX_COEFFICIENT_PS:
            raise ValueError(f"a step cost coefficient of {largest} ps is over the limit of {MAX_COEFFICIENT_PS} ps")


def _check_length(config: EngineConfig, usable: int, longest: _Longest) -> None:
    # The last token is never computed, so it takes no slot.
    tokens = longest.isl + longest.osl - 1
    blocks = -(-tokens // config.block_size_tokens)
    if blocks > usable:
        raise ValueError(
            f"{longest.who} needs {blocks} KV blocks but engine {config.engine!r} has {usable};"
            " lower its isl_tokens or osl_tokens, or raise kv_blocks"
        )
    if config.max_model_len_tokens is not None and tokens + 1 > config.max_model_len_tokens:
        raise ValueError(
            f"{longest.who} has {tokens + 1} tokens, max_model_len_tokens is {config.max_model_len_tokens}"
        )
    chunk = config.long_prefill_threshold_tokens or tokens
    if not config.enable_chunked_prefill and min(chunk, tokens) > config.max_num_batched_tokens:
        raise ValueError(
            f"{longest.who} has up to {tokens} tokens to compute at once, max_num_batched_tokens is"
            f" {config.max_num_batched_tokens} and chunked prefill is off; raise it or turn chunked prefill on"
        )


def _check_span(job: Job, usable: int, longest: _Longest) -> None:
    """All decode steps of one request may be summed at once; the sum must stay within int64."""
    if not isinstance(job.cost, FrozenStepCost):
        return
    config = job.config
    step_ps = max(
        role.decodes_ps(config.max_num_seqs)
        + role.prefill_request_ps * config.max_num_seqs
        + role.prefill_token_ps * config.max_num_batched_tokens
        + role.prefill_attention_pair_ps * config.max_num_batched_tokens * (longest.isl + longest.osl)
        + role.decode_context_token_ps * usable * config.block_size_tokens
        for role in (job.cost.prefill, job.cost.decode, job.cost.mixed)
    )
    if 4 * step_ps * longest.most_osl > LATEST_PS:
        raise ValueError(
            f"engine {config.engine!r}: {longest.most_osl} steps of up to {step_ps / 1e12:.3g} s could last 13 days or"
            " more; lower osl_tokens, kv_blocks, max_num_batched_tokens or the step cost's coefficients"
        )


def _block_keys(
    jobs: Sequence[Job], load: Workload, rows: Sequence[CarriedRequest], isl: Int64Array
) -> tuple[Int64Array, Int64Array, int, list[Int64Array]]:
    """Keys of requests (offsets, values), how many are distinct, and each engine's cached ones."""
    sizes = {job.config.block_size_tokens for job in jobs if job.config.enable_prefix_caching or job.config.kv_tiers}
    hashed = len(load.hash_values) or any(row.block_hashes for row in rows)
    hashed = hashed or any(job.state.cached_hashes for job in jobs)
    if not sizes or not hashed:
        empty = np.zeros(0, np.int64)
        return np.zeros(len(isl) + 1, np.int64), empty, 0, [empty for _ in jobs]
    if len(sizes) > 1:
        raise ValueError(
            f"engines of a cluster have block_size_tokens {sorted(sizes)}; with block hashes they must be the same"
        )
    size = sizes.pop()
    parts = [
        _resized([row.block_hashes], job.state.hash_block_tokens, size, np.array([row.isl_tokens // size]))
        for job in jobs
        for row in job.state.running + job.state.waiting
    ]
    free = [_resized([job.state.cached_hashes], job.state.hash_block_tokens, size, np.array([2**40])) for job in jobs]
    new = _resized_arrays(load.hash_offsets, load.hash_values, load.hash_block_tokens, size, isl[len(rows) :] // size)
    values = [part[1] for part in (*parts, new, *free)]
    distinct, dense = np.unique(np.concatenate(values), return_inverse=True)
    counts = np.concatenate([np.diff(part[0]) for part in (*parts, new)])
    pieces = np.split(dense.astype(np.int64), np.cumsum([len(v) for v in values])[:-1])
    keys = np.concatenate(pieces[: len(parts) + 1])
    return np.concatenate(([0], np.cumsum(counts))), keys, len(distinct), pieces[len(parts) + 1 :]


def _resized(
    hashes: Sequence[Sequence[int]], hash_tokens: int, block_tokens: int, most: Int64Array
) -> tuple[Int64Array, Int64Array]:
    flat = np.array([value & (2**64 - 1) for one in hashes for value in one], np.uint64).view(np.int64)
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in hashes])))
    return _resized_arrays(offsets, flat, hash_tokens, block_tokens, most)


def _resized_arrays(
    offsets: Int64Array, values: Int64Array, hash_tokens: int, block_tokens: int, most: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Hashes per engine block instead of per `hash_tokens`; at most `most[i]` of them for request i."""
    lengths = np.diff(offsets)
    if not len(values):
        return np.zeros(len(lengths) + 1, np.int64), np.zeros(0, np.int64)
    if hash_tokens <= 0 or (hash_tokens % block_tokens and block_tokens % hash_tokens):
        raise ValueError(
            f"hash_block_tokens must be a multiple or a divisor of block_size_tokens {block_tokens}, got {hash_tokens}"
        )
    split, join = max(hash_tokens // block_tokens, 1), max(block_tokens // hash_tokens, 1)
    counts = np.minimum(lengths * split // join, most)
    ends = np.cumsum(counts)
    place = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    # A hash stands for the whole prefix up to its end, so the last of a joined group names the group.
    source = np.repeat(offsets[:-1], counts) + (place // split + 1) * join - 1
    result = values[source]
    if split > 1:
        result = _mixed(result, place % split)
    return np.concatenate(([0], ends)), result


def _mixed(values: Int64Array, part: Int64Array) -> Int64Array:
    """A distinct 64-bit value per (value, part): the finalizer of splitmix64."""
    x = values.view(np.uint64) + (part.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Int64Array = (x ^ (x >> np.uint64(31))).view(np.int64)
    return result
