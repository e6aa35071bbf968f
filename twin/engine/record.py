"""Collects what an engine did: times and counts per request, totals, samples on a grid. Decides nothing."""

import numpy as np

from twin.cost.shape import StepShape
from twin.engine.prepare import Prepared
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


class Recorder:
    """One run's outcomes as plain lists, one entry per row of `Prepared`. Who has a last token has finished."""

    __slots__ = (
        "cached",
        "end_ps",
        "first",
        "generated",
        "last",
        "preemptions",
        "queued",
        "sampler",
        "saturated_ps",
        "scheduled",
        "status",
        "work",
    )

    def __init__(self, prepared: Prepared) -> None:
        n = prepared.requests
        self.queued = [UNDEFINED_PS] * n
        self.queued[: prepared.carried] = prepared.arrival_ps[: prepared.carried].tolist()
        self.scheduled: list[int] = prepared.scheduled_ps.tolist()
        self.first: list[int] = prepared.first_token_ps.tolist()
        self.last = [UNDEFINED_PS] * n
        self.generated: list[int] = prepared.generated_tokens.tolist()
        self.cached: list[int] = prepared.cached_tokens.tolist()
        self.preemptions: list[int] = prepared.preemptions.tolist()
        self.status = [int(Status.UNFINISHED)] * n
        self.work = [[0] * len(WORK_COLUMNS) for _ in range(3)]
        self.saturated_ps = 0
        self.end_ps = 0
        self.sampler = None if prepared.grid is None else Sampler(prepared.grid)

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
        self.status[request.row] = status
        self.generated[request.row] = request.generated
        self.preemptions[request.row] = request.preemptions

    def result(self, prepared: Prepared, engine: EngineName, fallback: str) -> EngineResult:
        """Freeze, workload and carried requests apart."""
        columns = (
            self.queued,
            self.scheduled,
            self.first,
            self.last,
            self.generated,
            self.cached,
            self.preemptions,
            self.status,
        )
        arrays = [np.array(column, np.int64) for column in columns]
        ended = arrays[3] != UNDEFINED_PS
        arrays[4][ended] = prepared.osl_tokens[ended]
        arrays[7][ended] = Status.FINISHED
        carried = prepared.carried
        return EngineResult(
            requests=Outcomes(*(column[carried:] for column in arrays)),
            carried=Outcomes(*(column[:carried] for column in arrays)),
            work=np.array(self.work, np.int64),
            end_ps=self.end_ps,
            saturated_ps=self.saturated_ps,
            timeline=None if self.sampler is None else self.sampler.timeline(),
            engine=engine,
            fallback=fallback,
        )


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
