"""Collects what an engine did: times and counts per request, totals, samples on a grid. Decides nothing."""

import numpy as np

from twin.engine.prepare import Prepared
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
    """One run's outcomes as plain lists, one entry per row of `Prepared`."""

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
    """Samples of a piecewise constant state. `show` at every step boundary, in order of time."""

    __slots__ = ("_at", "_busy_ps", "_duration_ps", "_grid", "_next", "_rows", "_saturated_ps", "_start_ps", "_state")

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._next = 0
        self._at = 0
        self._start_ps = 0
        self._duration_ps = 0
        self._busy_ps = 0
        self._saturated_ps = 0
        self._state = (0, 0, 0)

    @property
    def next_ps(self) -> int:
        """Time of the next sample; LATEST_PS once all are taken."""
        return self._next

    def show(self, start_ps: int, duration_ps: int, waiting: int, running: int, kv_used_blocks: int) -> None:
        """From `start_ps` on this is the state, and a step runs for `duration_ps` (0: idle)."""
        self._fill(start_ps)
        self._busy_ps += self._duration_ps
        if self._state[0]:
            self._saturated_ps += self._duration_ps
        self._start_ps, self._duration_ps = start_ps, duration_ps
        self._state = (waiting, running, kv_used_blocks)

    def timeline(self) -> Timeline:
        """All samples; the last state shown lasts for ever."""
        self._fill(LATEST_PS)
        table: Int64Array = np.array(self._rows, np.int64)
        return Timeline(self._grid.step_ps, *(np.ascontiguousarray(column) for column in table.T))

    def _fill(self, until_ps: int) -> None:
        while self._next < until_ps:
            spent = min(self._next - self._start_ps, self._duration_ps)
            saturated = self._saturated_ps + (spent if self._state[0] else 0)
            self._rows.append((*self._state, self._busy_ps + spent, saturated))
            self._at += 1
            self._next = self._at * self._grid.step_ps if self._at < self._grid.points else LATEST_PS
