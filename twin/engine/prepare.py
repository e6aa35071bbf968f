"""From a job to checked tables that every engine reads. Refuses what could not run to its end; simulates nothing.

Law: whatever passes here can be scheduled to its end by every engine; whatever is refused is refused before time 0.
"""

from dataclasses import dataclass

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost, StepCost
from twin.engine.types import LATEST_PS, CarriedRequest, EngineState, Grid, Int64Array, Job, Noise, Workload

MAX_COEFFICIENT_PS = 2**44
"""17 s: a scaled coefficient (at most 4 x, in 16-bit fixed point) still fits int64."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One engine run as tables. Rows: carried running requests, carried waiting ones, then the workload.

    `keys[key_offsets[i]:key_offsets[i + 1]]` are small numbers, equal where two requests share a full prompt block of
    the engine's block size. `rank` orders requests under the priority policy. `deadline_ps` is LATEST_PS where none. Rows from `offered` on
    arrive when no step may start any more, and are never seen.
    """

    config: EngineConfig
    cost: StepCost
    noise: Noise | None
    grid: Grid | None
    until_ps: int
    step_left_ps: int
    running: int
    carried: int
    offered: int
    usable_blocks: int
    watermark_blocks: int
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
    cached_keys: Int64Array

    @property
    def requests(self) -> int:
        """Rows: carried and new."""
        return len(self.arrival_ps)


def prepare(job: Job) -> Prepared:
    """Check and lay out. Raises ValueError saying which request or setting cannot work, and what to change."""
    config, state, load = job.config, job.state, job.workload
    usable = _check_config(config)
    _check_cost(job.cost)
    rows = state.running + state.waiting
    arrival = _joined(rows, "arrival_ps", load.arrival_ps)
    priority = _joined(rows, "priority", load.priority)
    timeout = _joined(rows, "timeout_ps", load.timeout_ps)
    isl = _joined(rows, "isl_tokens", load.isl_tokens)
    osl = _joined(rows, "osl_tokens", load.osl_tokens)
    _check_lengths(config, usable, len(rows), isl, osl)
    if len(state.running) > config.max_num_seqs:
        raise ValueError(f"state.running holds {len(state.running)} requests, max_num_seqs is {config.max_num_seqs}")
    rank = np.arange(len(arrival))
    if config.policy == "priority":
        rank[np.lexsort((np.arange(len(arrival)), arrival, priority))] = np.arange(len(arrival))
    offsets, keys, cached, distinct = _block_keys(config, load, state, isl)
    nothing = np.zeros(load.requests, np.int64)
    never = nothing - LATEST_PS
    return Prepared(
        config=config,
        cost=job.cost,
        noise=job.noise,
        grid=job.grid,
        until_ps=LATEST_PS if job.until_ps is None else job.until_ps,
        step_left_ps=state.step_left_ps,
        running=len(state.running),
        carried=len(rows),
        offered=len(arrival)
        if job.until_ps is None
        else len(rows) + int(np.searchsorted(load.arrival_ps, job.until_ps)),
        usable_blocks=usable,
        watermark_blocks=int(config.watermark_ratio * config.kv_blocks),
        arrival_ps=arrival,
        deadline_ps=np.where(timeout > 0, np.minimum(arrival + np.maximum(timeout, 1), LATEST_PS), LATEST_PS),
        isl_tokens=isl,
        osl_tokens=osl,
        rank=rank,
        computed_tokens=_joined(rows, "computed_tokens", nothing),
        generated_tokens=_joined(rows, "generated_tokens", nothing),
        scheduled_ps=_scheduled(state, never),
        first_token_ps=_joined(rows, "first_token_ps", never),
        preemptions=_joined(rows, "preemptions", nothing),
        cached_tokens=_joined(rows, "cached_tokens", nothing),
        key_offsets=offsets,
        keys=keys,
        distinct_keys=distinct,
        cached_keys=cached,
    )


def _joined(rows: tuple[CarriedRequest, ...], name: str, rest: Int64Array) -> Int64Array:
    if not rows:
        return rest
    head = [getattr(row, name) for row in rows]
    return np.concatenate((np.array([-LATEST_PS if v is None else v for v in head], np.int64), rest))


def _scheduled(state: EngineState, never: Int64Array) -> Int64Array:
    # Who runs was scheduled some time; where nobody knows when, the arrival stands in.
    known = [r.arrival_ps if r.scheduled_ps is None else r.scheduled_ps for r in state.running]
    return np.concatenate((np.array(known, np.int64), _joined(state.waiting, "scheduled_ps", never)))


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


def _check_lengths(config: EngineConfig, usable: int, carried: int, isl: Int64Array, osl: Int64Array) -> None:
    if not len(isl):
        return
    # The last token is never computed, so it takes no slot.
    longest = isl + osl - 1
    i = int(np.argmax(longest))
    who = f"request {i - carried}" if i >= carried else f"carried request {i}"
    tokens = int(longest[i])
    blocks = -(-tokens // config.block_size_tokens)
    if blocks > usable:
        raise ValueError(
            f"{who} needs {blocks} KV blocks but engine {config.engine!r} has {usable};"
            " lower its isl_tokens or osl_tokens, or raise kv_blocks"
        )
    if config.max_model_len_tokens is not None and tokens + 1 > config.max_model_len_tokens:
        raise ValueError(f"{who} has {tokens + 1} tokens, max_model_len_tokens is {config.max_model_len_tokens}")
    chunk = config.long_prefill_threshold_tokens or tokens
    if not config.enable_chunked_prefill and min(chunk, tokens) > config.max_num_batched_tokens:
        raise ValueError(
            f"{who} has up to {tokens} tokens to compute at once, max_num_batched_tokens is"
            f" {config.max_num_batched_tokens} and chunked prefill is off; raise it or turn chunked prefill on"
        )


def _block_keys(
    config: EngineConfig, load: Workload, state: EngineState, isl: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, int]:
    n, size = len(isl), config.block_size_tokens
    rows = state.running + state.waiting
    hashes = [value & (2**64 - 1) for row in rows for value in row.block_hashes]
    if not config.enable_prefix_caching or not (len(load.hash_values) or hashes or state.cached_hashes):
        empty = np.zeros(0, np.int64)
        return np.zeros(n + 1, np.int64), empty, empty, 0
    counts = np.array([len(row.block_hashes) for row in rows], np.int64)
    old = _resized(
        np.concatenate(([0], np.cumsum(counts))),
        np.array(hashes, np.uint64).view(np.int64),
        state.hash_block_tokens,
        size,
        isl[: len(rows)] // size,
    )
    new = _resized(load.hash_offsets, load.hash_values, load.hash_block_tokens, size, isl[len(rows) :] // size)
    cached_hashes = np.array([value & (2**64 - 1) for value in state.cached_hashes], np.uint64).view(np.int64)
    many = np.array([len(cached_hashes)], np.int64)
    limit = np.array([2**40], np.int64)
    free = _resized(np.array([0, many[0]]), cached_hashes, state.hash_block_tokens, size, limit)[1]
    everything = np.concatenate((old[1], new[1], free))
    distinct, dense = np.unique(everything, return_inverse=True)
    offsets = np.concatenate((old[0], old[0][-1] + new[0][1:]))
    dense = dense.astype(np.int64)
    kept = len(old[1]) + len(new[1])
    return offsets, dense[:kept], dense[kept:], len(distinct)


def _resized(
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
