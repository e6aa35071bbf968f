"""Jobs in, results out: lays many engine runs out as flat arrays and makes the one compiled call.

Law: the results do not depend on which jobs share a call, or on their order.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from twin.cost.frozen import FrozenStepCost
from twin.engine import kernel_state as k
from twin.engine.kernel_entry import Columns, Room, run_jobs
from twin.engine.prepare import Prepared
from twin.engine.timing import NO_NOISE, cost_table
from twin.engine.types import (
    LATEST_PS,
    WORK_COLUMNS,
    EngineResult,
    Int64Array,
    Outcomes,
    Timeline,
)


def kernel_unsupported(prepared: Prepared) -> str:
    """Why the kernel cannot run this; empty if it can."""
    if prepared.config.async_scheduling:
        return "async_scheduling"
    if prepared.config.prefill_schedule_interval_steps > 1:
        return "prefill_schedule_interval_steps > 1"
    if not isinstance(prepared.cost, FrozenStepCost):
        return "step cost is not affine"
    return ""


def run_kernel(jobs: Sequence[Prepared]) -> list[EngineResult]:
    """Run all jobs in one call that holds no interpreter lock."""
    if not jobs:
        return []
    params = np.zeros((len(jobs), k.PARAMS), np.int64)
    costs, noise = _cost_tables(jobs, params)
    for row, job in zip(params, jobs, strict=True):
        _settings(job, row)
    for place, counts in (
        (k.P_FIRST_ROW, params[:, k.P_ROWS]),
        (k.P_FIRST_CARRIED, params[:, k.P_CARRIED]),
        (k.P_FIRST_CACHED, params[:, k.P_CACHED]),
        (k.P_FIRST_SAMPLE, 5 * params[:, k.P_GRID_POINTS]),
        (k.P_FIRST_KEY, np.array([len(job.keys) for job in jobs])),
    ):
        params[1:, place] = np.cumsum(counts[:-1])
    out = np.empty((8, int(params[:, k.P_ROWS].sum())), np.int64)
    work = np.zeros((len(jobs), 3, len(WORK_COLUMNS)), np.int64)
    totals = np.zeros((len(jobs), 2), np.int64)
    grid = np.zeros(5 * int(params[:, k.P_GRID_POINTS].sum()), np.int64)
    run_jobs(params, _columns(jobs), costs, noise, out, work, totals, grid, _room(params))
    return [_result(job, params[i], out, work[i], totals[i], grid) for i, job in enumerate(jobs)]


def _joined(parts: list[Int64Array]) -> Int64Array:
    if len(parts) > 1:
        return np.concatenate(parts)
    # A read-only array is another type for the compiler, and would be compiled for anew.
    return parts[0] if parts[0].flags.writeable else parts[0].copy()


def _settings(job: Prepared, row: Int64Array) -> None:
    config, size = job.config, job.config.block_size_tokens
    blocks = -(-(job.isl_tokens + job.osl_tokens - 1) // size)
    caching = config.enable_prefix_caching
    row[k.P_ROWS] = job.requests
    row[k.P_CARRIED] = job.carried
    row[k.P_RUNNING] = job.running
    row[k.P_STEP_LEFT] = job.step_left_ps
    row[k.P_UNTIL] = job.until_ps
    row[k.P_SIZE] = size
    row[k.P_USABLE] = job.usable_blocks
    row[k.P_WATERMARK] = job.watermark_blocks
    row[k.P_SEQS] = config.max_num_seqs
    row[k.P_BUDGET] = config.max_num_batched_tokens
    row[k.P_CHUNK] = config.long_prefill_threshold_tokens or 2**62
    row[k.P_CHUNKED] = config.enable_chunked_prefill
    row[k.P_RESERVE] = config.reserve_full_isl
    row[k.P_CACHING] = caching
    row[k.P_PRIORITY] = config.policy == "priority"
    row[k.P_LIMIT] = 2**62 if config.max_queued_requests is None else config.max_queued_requests
    row[k.P_EXPIRING] = bool((job.deadline_ps < LATEST_PS).any())
    row[k.P_DISTINCT_KEYS] = job.distinct_keys
    row[k.P_CACHED] = len(job.cached_keys)
    row[k.P_MOST_BLOCKS] = blocks.max(initial=0)
    row[k.P_PRIVATE_KEYS] = blocks.sum() - len(job.keys) if caching else 0
    if job.grid is not None:
        row[k.P_GRID_STEP] = job.grid.step_ps
        row[k.P_GRID_POINTS] = job.grid.points


def _cost_tables(jobs: Sequence[Prepared], params: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Tables of all costs and noises, each laid out once however many jobs use it; `params` says where.

    A cost has, for each role, its four other coefficients and then the cost of 0 .. max_num_seqs decodes.
    """
    costs, noises = _Tables(), _Tables()
    for row, job in zip(params, jobs, strict=True):
        cost, seqs = job.cost, job.config.max_num_seqs
        if not isinstance(cost, FrozenStepCost):
            raise TypeError(f"the kernel needs a FrozenStepCost, got {type(cost).__name__}; ask kernel_unsupported")
        row[k.P_FIRST_COST] = costs.place((id(cost), seqs), partial(cost_table, cost, seqs))
        noise = NO_NOISE if job.noise is None else job.noise.multipliers
        row[k.P_FIRST_NOISE] = noises.place((id(noise), 0), noise.copy)
        row[k.P_EPOCHS] = noise.shape[1]
    return costs.joined(), noises.joined()


class _Tables:
    """Arrays behind each other, each once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._parts: list[Int64Array] = []
        self._size = 0

    def place(self, key: tuple[int, int], make: Callable[[], Int64Array]) -> int:
        if key not in self._places:
            part = make().ravel()
            self._places[key] = self._size
            self._size += len(part)
            self._parts.append(part)
        return self._places[key]

    def joined(self) -> Int64Array:
        return np.concatenate(self._parts)


def _room(params: Int64Array) -> Room:
    """State for the largest job, entry by entry."""
    rows, seqs, size = (int(params[:, place].max()) for place in (k.P_ROWS, k.P_SEQS, k.P_SIZE))
    caching = params[params[:, k.P_CACHING] > 0]
    blocks = int(caching[:, k.P_USABLE].max(initial=0)) + 1
    keys = int((caching[:, k.P_DISTINCT_KEYS] + caching[:, k.P_PRIVATE_KEYS]).max(initial=0))
    table = int(((caching[:, k.P_SEQS] + 1) * caching[:, k.P_MOST_BLOCKS]).max(initial=0))
    sizes = (k.SCALARS, rows * k.R_FIELDS, (seqs + 2) * k.W_FIELDS, blocks * k.B_FIELDS, keys, table, 3 * size)
    return Room(*(np.empty(n, np.int64) for n in (*sizes, rows, rows, rows, seqs + 1)))


def _columns(jobs: Sequence[Prepared]) -> Columns:
    """What `run_jobs` reads of requests, all jobs' behind each other."""

    def column(name: str) -> Int64Array:
        return _joined([getattr(job, name) for job in jobs])

    known = [
        _joined([getattr(job, name)[: job.carried] for job in jobs])
        for name in (
            "arrival_ps",
            "scheduled_ps",
            "first_token_ps",
            "generated_tokens",
            "cached_tokens",
            "preemptions",
            "computed_tokens",
        )
    ]
    return Columns(
        arrival=column("arrival_ps"),
        isl=column("isl_tokens"),
        osl=column("osl_tokens"),
        deadline=column("deadline_ps"),
        rank=column("rank"),
        key_offsets=column("key_offsets"),
        keys=column("keys"),
        cached=column("cached_keys"),
        known=np.ascontiguousarray(np.array(known).T),
    )


def _result(
    job: Prepared, row: Int64Array, out: Int64Array, work: Int64Array, totals: Int64Array, grid: Int64Array
) -> EngineResult:
    start = int(row[k.P_FIRST_ROW])
    middle, end = start + job.carried, start + job.requests
    timeline = None
    if job.grid is not None:
        first, points = int(row[k.P_FIRST_SAMPLE]), job.grid.points
        timeline = Timeline(job.grid.step_ps, *grid[first : first + 5 * points].reshape(5, points))
    return EngineResult(
        requests=Outcomes(*out[:, middle:end]),
        carried=Outcomes(*out[:, start:middle]),
        work=work,
        end_ps=int(totals[0]),
        saturated_ps=int(totals[1]),
        timeline=timeline,
        engine="kernel",
    )
