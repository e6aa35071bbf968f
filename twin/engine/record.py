"""Collects what an engine did: times and counts per request, totals, samples on a grid. Decides nothing."""

from dataclasses import fields

import numpy as np

from twin.cost.shape import StepShape
from twin.engine.prepare import Prepared, Table
from twin.engine.request import Request
from twin.engine.types import (
    LATEST_PS,
    UNDEFINED_PS,
    WORK_COLUMNS,
    EngineName,
    EngineResult,
    Grid,
    Int64Array,
    Outcomes,
    Status,
    Timeline,
)


class Ledger:
    """What happened to requests, as plain lists with one entry per row of the table; one for all engines of a run.

    Who has a last token has finished, whatever his status says until the end.
    """

    __slots__ = ("cached", "first", "generated", "last", "preemptions", "queued", "scheduled", "status")

    def __init__(self, table: Table) -> None:
        n = table.rows
        self.queued = [UNDEFINED_PS] * n
        self.queued[: table.carried] = table.arrival_ps[: table.carried].tolist()
        self.scheduled: list[int] = table.scheduled_ps.tolist()
        self.first: list[int] = table.first_token_ps.tolist()
        self.last = [UNDEFINED_PS] * n
        self.generated: list[int] = table.generated_tokens.tolist()
        self.cached: list[int] = table.cached_tokens.tolist()
        self.preemptions: list[int] = table.preemptions.tolist()
        self.status = [int(Status.UNFINISHED)] * n

    def outcomes(self, table: Table) -> Int64Array:
        """A row for each field of `Outcomes`, a column for each request."""
        names = [field.name for field in fields(Outcomes)]
        short = [getattr(self, name.split("_")[0]) for name in names]
        columns: Int64Array = np.array(short, np.int64).reshape(len(names), -1)
        ended = columns[names.index("last_token_ps")] != UNDEFINED_PS
        columns[names.index("generated_tokens"), ended] = table.osl_tokens[ended]
        columns[names.index("status"), ended] = Status.FINISHED
        return columns


class Recorder:
    """What one engine did."""

    __slots__ = ("end_ps", "ledger", "sampler", "saturated_ps", "work")

    def __init__(self, ledger: Ledger, grid: Grid | None) -> None:
        self.ledger = ledger
        self.work = [[0] * len(WORK_COLUMNS) for _ in range(3)]
        self.saturated_ps = 0
        self.end_ps = 0
        self.sampler = None if grid is None else Sampler(grid)

    def add_work(self, role: int, steps: int, shape: StepShape, duration_ps: int) -> None:
        """Count so many steps of one role, whose shapes add up to `shape`."""
        work = self.work[role]
        work[0] += steps
        work[1] += shape.prefill_requests
        work[2] += shape.prefill_tokens
        work[3] += shape.prefill_attention_pairs
        work[4] += shape.decode_requests
        work[5] += shape.decode_context_tokens
        work[6] += duration_ps

    def close(self, request: Request, status: Status) -> None:
        """A request that ends, or stays when the run ends."""
        self.ledger.status[request.row] = status
        self.ledger.generated[request.row] = request.generated
        self.ledger.preemptions[request.row] = request.preemptions

    def result(
        self, prepared: Prepared, columns: Int64Array, new: Int64Array, engine: EngineName, fallback: str
    ) -> EngineResult:
        """Freeze; `columns` are the ledger's outcomes, `new` the rows of the requests that came to this engine."""
        old = slice(prepared.first_carried, prepared.first_carried + prepared.carried)
        return EngineResult(
            requests=Outcomes(*columns[:, new]),
            carried=Outcomes(*columns[:, old]),
            work=np.array(self.work, np.int64),
            end_ps=self.end_ps,
            saturated_ps=self.saturated_ps,
            timeline=None if self.sampler is None else self.sampler.timeline(),
            engine=engine,
            fallback=fallback,
        )


def single_result(prepared: Prepared, record: Recorder, engine: EngineName, fallback: str) -> EngineResult:
    """The result of an engine that was alone."""
    new = np.arange(prepared.table.carried, prepared.table.rows)
    return record.result(prepared, record.ledger.outcomes(prepared.table), new, engine, fallback)


class Sampler:
    """Samples on a grid, taken in order of time. An engine puts one for each grid time it has passed."""

    __slots__ = ("_grid", "_rows", "next_ps")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._rows: list[tuple[int, int, int, int, int]] = []
        self.next_ps = 0

    def put(self, waiting: int, running: int, kv_used_blocks: int, busy_ps: int, saturated_ps: int) -> None:
        """The sample at `next_ps`, which moves on (to LATEST_PS after the last point)."""
        self._rows.append((waiting, running, kv_used_blocks, busy_ps, saturated_ps))
        done = len(self._rows)
        self.next_ps = done * self._grid.step_ps if done < self._grid.points else LATEST_PS

    def hold(self, until_ps: int, waiting: int, running: int, kv_used_blocks: int, busy_ps: int, sat_ps: int) -> None:
        """The same sample, with no step running, for all grid times before `until_ps`."""
        while self.next_ps < until_ps:
            self.put(waiting, running, kv_used_blocks, busy_ps, sat_ps)

    def timeline(self) -> Timeline:
        """All samples, once every grid time has been passed."""
        table: Int64Array = np.array(self._rows, np.int64)
        return Timeline(self._grid.step_ps, *(np.ascontiguousarray(column) for column in table.T))
