"""Simulations of one partition under way: submitted, awaited, left out when late. Runs none and writes nothing.

A tick's results enter its core before the next tick, so behind an overloaded simulator a live service's twin would fall
behind. What is not there a period after it was asked for is left out instead, and the log is told, so that a replay
leaves it out too. Laws: of every job either the result or its skip comes out, never both; what the log says was skipped
is skipped again; only jobs of services that live now are ever late.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable

from pipelines.outputs import Outgoing
from pipelines.silence import lives_now
from pipelines.skips import Skip, skip_record
from pipelines.workers import Simulators
from twin.job import SimulationJob, SimulationResult

log = logging.getLogger("twincast.jobs")

LATE_AFTER_PERIODS = 1.0
"""The next tick is due then."""


class Jobs:
    """See the module. `skips` are left out from the start; `wake` is called when something has come, `fail` when a job
    could not be run."""

    def __init__(
        self,
        simulators: Simulators,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
        skips: frozenset[Skip] = frozenset(),
    ) -> None:
        self._simulators = simulators
        self._wake = wake
        self._fail = fail
        self._skips = skips
        self.outstanding: Counter[str] = Counter()
        """Jobs not done, by deployment."""
        self.results: deque[SimulationResult] = deque()
        self.skipped: deque[tuple[SimulationJob, Outgoing | None]] = deque()
        """Jobs that will have no result, with what is to be written of it first; None where the log has it."""

    def __bool__(self) -> bool:
        """Whether anything is to come, or has come and was not taken."""
        return bool(self.outstanding or self.results or self.skipped)

    def start(self, job: SimulationJob, period_us: int) -> None:
        """Have a job run: its result or its skip will come."""
        if (job.deployment, job.as_of_us, job.phase) in self._skips:
            self.skipped.append((job, None))
            return
        future = self._simulators.submit(job)
        self.outstanding[job.deployment] += 1
        future.add_done_callback(lambda done: self._done(job, done))
        if self._simulators.ready.is_set() and lives_now(job.as_of_us, time.time_ns() // 1000):
            late_s = LATE_AFTER_PERIODS * period_us / 1e6
            asyncio.get_running_loop().call_later(late_s, self._overdue, job, future, period_us)

    def _done(self, job: SimulationJob, future: "asyncio.Future[SimulationResult]") -> None:
        self.outstanding[job.deployment] -= 1
        self.outstanding += Counter()  # drops those at 0
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)
        elif not future.cancelled():
            self.results.append(future.result())
        self._wake()

    def _overdue(self, job: SimulationJob, future: "asyncio.Future[SimulationResult]", period_us: int) -> None:
        if future.done():
            return
        future.cancel()
        log.warning("%s: no %s results of the tick at %d within a period", job.deployment, job.phase, job.as_of_us)
        self.skipped.append((job, skip_record(job, job.as_of_us + period_us)))
        self._wake()
