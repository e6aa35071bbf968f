"""A cluster in SimPy: one process per engine and one that routes. Carries everything but disaggregation.

Law: a request is sent to one engine at a time; if that disappears, it starts anew elsewhere, or is refused.
"""

from collections.abc import Callable, Generator, Sequence

import numpy as np
import simpy

from twin.engine.bell import Arrival
from twin.engine.cluster_types import ClusterJob, ClusterResult
from twin.engine.device import SharedDevice
from twin.engine.fast import FastEngine, unsupported
from twin.engine.plain import PlainEngine
from twin.engine.prepare import Prepared
from twin.engine.record import Ledger
from twin.engine.routing import STATIC, Router, make_router
from twin.engine.types import LATEST_PS, EngineName, Int64Array, Outcomes, Status
from twin.engine.warm import Rows, Seat

Engine = FastEngine | PlainEngine
Process = Generator[simpy.Event, object, None]
Send = Callable[[int, int], int]
"""Routes the request of a row at a time; the engine, or -1."""


class Fleet:
    """The engines of a cluster in one SimPy environment, and who has which request."""

    def __init__(self, job: ClusterJob, prepared: Sequence[Prepared], *, plainly: bool) -> None:
        self.env = simpy.Environment(initial_time=0)
        self.table = prepared[0].table
        self.ledger = Ledger(self.table)
        self.rows = Rows(self.table)
        self.job = job
        self.prepared = prepared
        self.where = [-1] * self.table.rows
        names = [one.device for one in job.engines]
        shared = {name for name in names if name and names.count(name) > 1}
        devices = {name: SharedDevice(self.env) for name in sorted(shared)}
        self.engines: list[Engine] = []
        self.outstanding = [one.carried for one in prepared]
        for i, (one, member) in enumerate(zip(prepared, job.engines, strict=True)):
            shared_parts = (self.ledger, self.rows, Seat(self.outstanding, i))
            if plainly or unsupported(one) or member.device in shared or member.gone_ps is not None:
                device = devices.get(member.device)
                use = None if device is None else device.share_of(member.sharing_ratio)
                self.engines.append(PlainEngine(self.env, one, shared_parts, use))
            else:
                self.engines.append(FastEngine(self.env, one, shared_parts))
        # Who cruises keeps his blocks to himself; these policies do not ask for them.
        self.cruising = job.routing in (*STATIC, "least_outstanding")
        self.name: EngineName = "plain" if all(isinstance(e, PlainEngine) for e in self.engines) else "simpy"

    def start(self, resend: Send) -> None:
        """Start the engines, and what makes some of them disappear; `resend` gets the rows that are lost then.

        Who sends is started before, so that the first arrivals find the engines where they stand.
        """
        for engine, member in zip(self.engines, self.job.engines, strict=True):
            self.env.process(engine.run(cruising=self.cruising))
            if member.gone_ps is not None:
                self.env.process(self._disappear(engine, member.gone_ps, resend))

    def kv_used_blocks(self, engine: int) -> int:
        """KV blocks in use."""
        return self.engines[engine].kv_used_blocks

    def cached_blocks(self, engine: int, row: int) -> int:
        """Leading prompt blocks of this request that the engine's prefix cache holds."""
        return self.engines[engine].cached_blocks(row)

    def prompt_blocks(self, engine: int, row: int) -> int:
        """KV blocks of this request's prompt."""
        return self.engines[engine].prompt_blocks(row)

    def _disappear(self, engine: Engine, at_ps: int, resend: Send) -> Process:
        yield Arrival(self.env, at_ps)
        if isinstance(engine, PlainEngine):
            for row in engine.vanish():
                resend(row, at_ps)

    def result(self, fallback: str) -> ClusterResult:
        """Freeze everything; call once the environment has run dry."""
        for engine in self.engines:
            engine.stop()
        columns = self.ledger.outcomes(self.table)
        carried = self.table.carried
        where = np.array(self.where[carried:], np.int64)
        results = tuple(
            engine.record.result(one, columns, carried + np.flatnonzero(where == i), self.name, fallback)
            for i, (engine, one) in enumerate(zip(self.engines, self.prepared, strict=True))
        )
        return ClusterResult(Outcomes(*columns[:, carried:]), where, where, results, self.name, fallback)


class Pool:
    """Engines that a router chooses from."""

    def __init__(self, fleet: Fleet, members: Sequence[int], router: Router) -> None:
        self._fleet = fleet
        self._where = fleet.where
        self._engines = fleet.engines
        self._choose = router.choose
        self._members = members
        self._windows = [fleet.job.engines[i].window for i in members]
        self._edges = sorted({edge for window in self._windows for edge in window})
        self._open: list[int] = []
        self._until = -1

    def send(self, row: int, now: int) -> int:
        """Route a request now; the engine, or -1 if none takes requests."""
        if now >= self._until:
            pairs = zip(self._members, self._windows, strict=True)
            self._open = [i for i, (opens, closes) in pairs if opens <= now < closes]
            self._until = next((edge for edge in self._edges if edge > now), LATEST_PS)
        if not self._open:
            self._fleet.ledger.status[row] = Status.REJECTED
            return -1
        chosen = self._choose(row, self._fleet, self._open)
        self._where[row] = chosen
        self._engines[chosen].offer(row, now)
        return chosen


def run_cluster(job: ClusterJob, prepared: Sequence[Prepared], fallback: str, *, plainly: bool) -> ClusterResult:
    """Simulate a cluster whose engines prefill and decode alike."""
    fleet = Fleet(job, prepared, plainly=plainly)
    pool = Pool(fleet, range(len(fleet.engines)), job_router(job))
    fleet.env.process(arrivals(fleet, pool.send, prepared[0].first_new, prepared[0].offered))
    fleet.start(pool.send)
    fleet.env.run()
    return fleet.result(fallback)


def job_router(job: ClusterJob) -> Router:
    """The job's policy, fresh if it is one of ours."""
    if isinstance(job.routing, str):
        return make_router(job.routing, [one.weight for one in job.engines])
    return job.routing


def arrivals(fleet: Fleet, send: Send, first: int, end: int) -> Process:
    """The process that lets the rows from `first` to `end` come at their times, before all else of that instant."""
    times: Int64Array = fleet.table.arrival_ps
    now = 0
    for row, at in zip(range(first, end), times[first:end].tolist(), strict=True):
        if at > now:
            yield Arrival(fleet.env, at - now)
            now = at
        send(row, now)
