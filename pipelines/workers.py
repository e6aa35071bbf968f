"""Simulations in processes of their own, so that the event loop never waits for one. Decides no job.

Coarse jobs go before fine ones, older before newer, and each is dealt out to all processes. Laws: every job submitted
ends in its result, an error or a cancellation; the result is that of one process; a process that dies is replaced and
its jobs run again, since a job has no effect but its result; no process outlives this one, however that ends.
"""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Self

from twin.insight import run_with_insight
from twin.job import SimulationJob, SimulationResult
from twin.split import joined, split

MAX_RESTARTS_PER_JOB = 3
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Sums in another order differ in the last bit; one thread per process also keeps processes out of each other's way."""

Simulate = Callable[[SimulationJob], SimulationResult]


class SimulatorError(RuntimeError):
    """A job that cannot be run: it raised an error, or killed the process again and again. The program's fault."""


class Simulators:
    """`processes` >= 1 of them. Use it with `async with`, or `start` and `stop`."""

    def __init__(
        self, processes: int, simulate: Simulate = run_with_insight, warm: Callable[[], None] | None = None
    ) -> None:
        if processes < 1:
            raise ValueError(f"processes must be >= 1, got {processes}")
        self._processes = processes
        self._simulate = simulate
        self._warm = warm
        self._waiting: asyncio.PriorityQueue[tuple[tuple[int, int, int], _Waiting]] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._pool: ProcessPoolExecutor | None = None
        self._runners: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()
        """Set once every process simulates at full speed."""
        self.restarts = 0
        """How often the processes were replaced."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the processes; jobs submitted before `ready` wait for it."""
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")  # read by the libraries when a process of ours loads them
        self._pool = self._new_pool()
        self._runners = [asyncio.create_task(self._begin(self._pool))]

    async def _begin(self, pool: ProcessPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        if self._warm is not None:
            try:
                await asyncio.gather(*(loop.run_in_executor(pool, self._warm) for _ in range(self._processes)))
            except BrokenProcessPool:
                await self._replace(pool)
        self.ready.set()
        self._runners += [asyncio.create_task(self._serve()) for _ in range(self._processes)]

    def submit(self, job: SimulationJob) -> "asyncio.Future[SimulationResult]":
        """The result to come. It raises SimulatorError for a job that cannot be run."""
        shares = [self._put(share) for share in split(job, self._processes)]
        return shares[0] if len(shares) == 1 else asyncio.ensure_future(_whole(shares))

    def _put(self, job: SimulationJob) -> "asyncio.Future[SimulationResult]":
        future: asyncio.Future[SimulationResult] = asyncio.get_running_loop().create_future()
        order = (int(job.phase == "fine"), job.as_of_us, next(self._numbers))
        self._waiting.put_nowait((order, _Waiting(job, future)))
        return future

    async def stop(self) -> None:
        """End the processes at once, with whatever they are doing; jobs not done are cancelled."""
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait()[1].future.cancel()
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(end_pool, pool)

    async def _serve(self) -> None:
        while True:
            _, waiting = await self._waiting.get()
            if waiting.future.done():
                continue
            try:
                result = await self._run(waiting.job)
            except SimulatorError as error:
                if not waiting.future.done():
                    waiting.future.set_exception(error)
            except asyncio.CancelledError:
                waiting.future.cancel()
                raise
            else:
                if not waiting.future.done():
                    waiting.future.set_result(result)

    async def _run(self, job: SimulationJob) -> SimulationResult:
        for _ in range(MAX_RESTARTS_PER_JOB):
            pool = self._pool
            if pool is None:
                raise asyncio.CancelledError
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, self._simulate, job)
            except BrokenProcessPool:
                await self._replace(pool)
            except Exception as error:  # the job's own, told to whoever waits for it
                raise SimulatorError(f"simulation of {job.deployment} at {job.as_of_us} failed: {error!r}") from error
        raise SimulatorError(f"simulation of {job.deployment} at {job.as_of_us} ended its process each time")

    async def _replace(self, broken: ProcessPoolExecutor) -> None:
        if self._pool is broken:
            self._pool = self._new_pool()
            self.restarts += 1
            await asyncio.to_thread(end_pool, broken)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._processes, _SpawnContext(), initializer=begin_child)


async def _whole(shares: "Sequence[asyncio.Future[SimulationResult]]") -> SimulationResult:
    try:
        return joined(await asyncio.gather(*shares))
    finally:
        for share in shares:
            share.cancel()  # those that have not begun, after an error of another


class _Waiting:
    """A job and its result to come; compared by nobody."""

    __slots__ = ("future", "job")

    def __init__(self, job: SimulationJob, future: "asyncio.Future[SimulationResult]") -> None:
        self.job = job
        self.future = future

    def __lt__(self, other: object) -> bool:
        return False


class _SpawnProcess(SpawnProcess):
    """Born with Ctrl-C held back: a terminal sends it to every process, and loading libraries would end in a trace."""

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _SpawnContext(SpawnContext):
    Process = _SpawnProcess


def begin_child() -> None:
    """First thing in a process: leave Ctrl-C to the parent, and go when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def end_pool(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool at once."""
    processes = list((pool._processes or {}).values())
    for process in processes:
        with contextlib.suppress(ProcessLookupError, ValueError):
            process.kill()
    pool.shutdown(wait=True, cancel_futures=True)
