"""Engines in, results out: lays many runs out as flat arrays and makes the one compiled call.

Law: the results do not depend on which runs share a call, or on their order.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from twin.cost.frozen import FrozenStepCost
from twin.engine import kernel_state as k
from twin.engine.kernel_entry import Columns, Room, run_groups
from twin.engine.prepare import Prepared, Table
from twin.engine.timing import NO_NOISE, cost_table
from twin.engine.types import LATEST_PS, WORK_COLUMNS, EngineResult, Int64Array, Outcomes, Timeline

Group = Sequence[Prepared]
"""Engines that share one table of requests; more than one of them get theirs by least outstanding."""


def kernel_unsupported(prepared: Prepared) -> str:
    """Why the kernel cannot run this engine; empty if it can."""
    if prepared.config.async_scheduling:
        return "async_scheduling"
    if prepared.config.prefill_schedule_interval_steps > 1:
        return "prefill_schedule_interval_steps > 1"
    if prepared.config.kv_tiers:
        return "kv_tiers"
    if not isinstance(prepared.cost, FrozenStepCost):
        return "step cost is not affine"
    return ""


class GroupResult:
    """What the kernel says of one group: outcomes of all its rows, the engine of each, and each engine's own."""

    __slots__ = ("columns", "engine", "engines")

    def __init__(self, columns: Int64Array, engine: Int64Array, engines: list[EngineResult]) -> None:
        self.columns = columns
        self.engine = engine
        self.engines = engines


def run_kernel(
    groups: Sequence[Group], windows: Sequence[Sequence[tuple[int, int]]] | None = None
) -> list[GroupResult]:
    """Run all groups in one call that holds no interpreter lock.

    `windows` says from when until when each engine takes requests (picoseconds); None: always.
    """
    if not groups:
        return []
    engines = [one for group in groups for one in group]
    params = np.zeros((len(engines), k.PARAMS), np.int64)
    costs, noise = _cost_tables(engines, params)
    for row, one in zip(params, engines, strict=True):
        _settings(one, row)
    for row, (opens, closes) in zip(params, (w for group in windows or () for w in group), strict=False):
        row[k.P_FROM], row[k.P_DRAIN] = opens, closes
    table, room = _places(groups, params)
    rows = int(table[:, k.G_ROWS].sum())
    out = np.empty((9, rows), np.int64)
    work = np.zeros((len(engines), 3, len(WORK_COLUMNS)), np.int64)
    totals = np.zeros((len(engines), 2), np.int64)
    grid = np.zeros(5 * int(params[:, k.P_GRID_POINTS].sum()), np.int64)
    run_groups(
        table,
        params,
        _columns(groups),
        _joined([group[0].table.keys for group in groups]),
        _joined([one.cached_keys for one in engines]),
        costs,
        noise,
        out,
        work,
        totals,
        grid,
        room,
    )
    return [
        _result(group, out[:, row[k.G_FIRST_ROW] : row[k.G_FIRST_ROW] + row[k.G_ROWS]], row, params, work, totals, grid)
        for group, row in zip(groups, table, strict=True)
    ]


def _joined(parts: list[Int64Array]) -> Int64Array:
    if len(parts) > 1:
        return np.concatenate(parts)
    # A read-only array is another type for the compiler, and would be compiled for anew.
    return parts[0] if parts[0].flags.writeable else parts[0].copy()


def _settings(one: Prepared, row: Int64Array) -> None:
    config = one.config
    row[k.P_CARRIED] = one.carried
    row[k.P_RUNNING] = one.running
    row[k.P_FIRST_CARRIED] = one.first_carried
    row[k.P_STEP_LEFT] = one.step_left_ps
    row[k.P_UNTIL] = one.until_ps
    row[k.P_SIZE] = config.block_size_tokens
    row[k.P_USABLE] = one.usable_blocks
    row[k.P_WATERMARK] = one.watermark_blocks
    row[k.P_SEQS] = config.max_num_seqs
    row[k.P_BUDGET] = config.max_num_batched_tokens
    row[k.P_CHUNK] = config.long_prefill_threshold_tokens or 2**62
    row[k.P_CHUNKED] = config.enable_chunked_prefill
    row[k.P_RESERVE] = config.reserve_full_isl
    # Blocks need names only where a prefix may be shared.
    named = config.enable_prefix_caching and one.table.distinct_keys > 0
    row[k.P_NAMED], row[k.P_KEEPS] = named, config.enable_prefix_caching
    row[k.P_PRIORITY] = config.policy == "priority"
    row[k.P_LIMIT] = 2**62 if config.max_queued_requests is None else config.max_queued_requests
    row[k.P_EXPIRING] = one.table.expiring
    row[k.P_CACHED] = len(one.cached_keys)
    if named:
        row[k.P_MOST_BLOCKS] = min(one.usable_blocks, -(-one.table.most_tokens // config.block_size_tokens))
    row[k.P_DISTINCT_KEYS] = one.table.distinct_keys if named else 0
    row[k.P_FROM], row[k.P_DRAIN] = 0, LATEST_PS
    if one.grid is not None:
        row[k.P_GRID_STEP] = one.grid.step_ps
        row[k.P_GRID_POINTS] = one.grid.points


def _places(groups: Sequence[Group], params: Int64Array) -> tuple[Int64Array, Room]:
    """A row of settings per group; where each engine's part of every array begins, and how large the arrays are."""
    table = np.zeros((len(groups), k.G_SETTINGS), np.int64)
    engine = row = 0
    sizes = np.zeros(11, np.int64)
    for g, group in zip(table, groups, strict=True):
        first, rows = group[0], group[0].table.rows
        mine = params[engine : engine + len(group)]
        named = mine[:, k.P_NAMED]
        private = 0
        if named.any():
            needed = -(-(first.table.isl_tokens + first.table.osl_tokens - 1) // first.config.block_size_tokens)
            private = int(needed.sum()) - len(first.table.keys)
        g[k.G_FIRST_ENGINE], g[k.G_ENGINES], g[k.G_FIRST_ROW], g[k.G_ROWS] = engine, len(group), row, rows
        g[k.G_FIRST_NEW], g[k.G_OFFERED], g[k.G_PRIVATE_KEYS] = first.first_new, first.offered, private
        g[k.G_ROUTING] = k.LEAST_OUTSTANDING if first.routed else k.ALONE
        needs = (
            (k.P_W_AT, (mine[:, k.P_SEQS] + 2) * k.W_FIELDS),
            (k.P_B_AT, (mine[:, k.P_USABLE] + 1) * k.B_FIELDS * named),
            (k.P_TABLE_AT, (mine[:, k.P_SEQS] + 1) * mine[:, k.P_MOST_BLOCKS]),
            (k.P_PHASE_AT, 3 * mine[:, k.P_SIZE]),
            (k.P_QUEUE_AT, np.full(len(group), rows)),
            (k.P_FINISH_AT, mine[:, k.P_SEQS] + 1),
            (k.P_KEYS_AT, mine[:, k.P_DISTINCT_KEYS]),
        )
        totals = []
        for place, need in needs:
            mine[:, place] = np.cumsum(need) - need
            totals.append(int(need.sum()))
        mine[:, k.P_KEYS_AT] += private
        totals[-1] += private
        wanted = [len(group) * k.SCALARS, rows * k.R_FIELDS, *totals]
        sizes[: len(wanted)] = np.maximum(sizes[: len(wanted)], wanted)
        engine, row = engine + len(group), row + rows
    for place, counts in ((k.P_SAMPLE_AT, 5 * params[:, k.P_GRID_POINTS]), (k.P_CACHED_AT, params[:, k.P_CACHED])):
        params[:, place] = np.cumsum(counts) - counts
    table[:, k.G_KNOWN_AT] = np.cumsum(7 * table[:, k.G_FIRST_NEW]) - 7 * table[:, k.G_FIRST_NEW]
    params[:, k.P_WORK_AT] = np.arange(len(params)) * 3 * len(WORK_COLUMNS)
    s, r, w, b, blocks, phase, queue, finish, by_key = (int(n) for n in sizes[:9])
    desk = 4 * max(len(group) for group in groups)
    room = (s, r, w, b, by_key, blocks, phase, queue, queue, queue, queue, finish, desk)
    return table, Room(*(np.empty(n, np.int64) for n in room))


def _cost_tables(engines: Sequence[Prepared], params: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Tables of all costs and noises, each laid out once however many engines use it; `params` says where.

    A cost has, for each role, its four other coefficients and then the cost of 0 .. max_num_seqs decodes.
    """
    costs, noises = _Tables(), _Tables()
    for row, one in zip(params, engines, strict=True):
        cost, seqs = one.cost, one.config.max_num_seqs
        if not isinstance(cost, FrozenStepCost):
            raise TypeError(f"the kernel needs a FrozenStepCost, got {type(cost).__name__}; ask kernel_unsupported")
        row[k.P_COST_AT] = costs.place((id(cost), seqs), partial(cost_table, cost, seqs))
        noise = NO_NOISE if one.noise is None else one.noise.multipliers
        row[k.P_NOISE_AT] = noises.place((id(noise), 0), noise.copy)
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


def _columns(groups: Sequence[Group]) -> Columns:
    """What the kernel reads of requests, all groups' behind each other."""
    tables = [group[0].table for group in groups]

    def column(name: str) -> Int64Array:
        return _joined([getattr(table, name) for table in tables])

    starts = np.cumsum([0, *(len(table.keys) for table in tables)])
    names = ("scheduled_ps", "first_token_ps", "generated_tokens", "cached_tokens", "preemptions", "computed_tokens")
    return Columns(
        arrival=column("arrival_ps"),
        isl=column("isl_tokens"),
        osl=column("osl_tokens"),
        deadline=column("deadline_ps"),
        rank=column("rank"),
        keys_at=_joined([table.key_offsets[:-1] + at for table, at in zip(tables, starts, strict=False)]),
        keys_count=_joined([np.diff(table.key_offsets) for table in tables]),
        known=_joined([_known(table, ("arrival_ps", *names)) for table in tables]),
    )


def _known(table: Table, names: Sequence[str]) -> Int64Array:
    rows = np.array([getattr(table, name)[: table.carried] for name in names])
    return np.ascontiguousarray(rows.T).ravel()


def _result(
    group: Group,
    columns: Int64Array,
    settings: Int64Array,
    params: Int64Array,
    work: Int64Array,
    totals: Int64Array,
    grid: Int64Array,
) -> GroupResult:
    first_engine, first_new = int(settings[k.G_FIRST_ENGINE]), int(settings[k.G_FIRST_NEW])
    engine = columns[8, first_new:]
    results = []
    by_engine, ends = columns[:8, first_new:], np.array([0, len(engine)])
    if group[0].routed:
        # Requests by engine, in order of arrival.
        order = np.argsort(engine, kind="stable")
        by_engine, ends = by_engine[:, order], np.searchsorted(engine[order], np.arange(len(group) + 1))
    for i, one in enumerate(group):
        at = first_engine + i
        timeline = None
        if one.grid is not None:
            first, points = int(params[at, k.P_SAMPLE_AT]), one.grid.points
            timeline = Timeline(one.grid.step_ps, *grid[first : first + 5 * points].reshape(5, points))
        new = by_engine[:, ends[i] : ends[i + 1]]
        results.append(
            EngineResult(
                requests=Outcomes(*new),
                carried=Outcomes(*columns[:8, one.first_carried : one.first_carried + one.carried]),
                work=work[at],
                end_ps=int(totals[at, 0]),
                saturated_ps=int(totals[at, 1]),
                timeline=timeline,
                engine="kernel",
            )
        )
    return GroupResult(columns[:8, first_new:], engine, results)
