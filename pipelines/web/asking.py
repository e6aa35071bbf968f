"""Answers what-ifs in a process of its own, so that the page stays alive meanwhile. Reads no log.

A question is answered from the newest stored state of its deployment; that state is restored once, and asked as often
as people move sliders. Laws: an answer and its base come from the same futures; work is cut to `BUDGET_S` by taking
fewer futures, never by a clock; a process that dies is replaced, and the question told so.
"""

import asyncio
import contextlib
import multiprocessing
import time
from collections import OrderedDict
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from pipelines.runtime import read_snapshot
from pipelines.standard_job import warm_up
from pipelines.web.fleet import StoredState
from pipelines.web.question import Prospect, Question, ask
from pipelines.workers import begin_child, end_pool
from schemas.codec import SchemaError
from twin.core import Core, SnapshotError
from twin.settings import CoreSettings

BUDGET_S = 0.045
"""Of simulation per answer, and once more for its base the first time."""
REPLICATIONS = (16, 8, 4, 2)
SHARED_COSTS = 2.0
"""Simulating a prefix cache takes about so many times longer."""
PACE_RUNS = 3
"""The fastest one tells how fast this machine can be: the others waited for something."""
MAX_HELD = 8
MAX_WAITING = 8


class AskError(Exception):
    """A question that cannot be answered now; the text says why, for people."""


@dataclass(slots=True)
class _Held:
    """A restored state in the process that answers."""

    version: tuple[int, int]
    prospect: Prospect
    pace_s: float
    bases: dict[int, dict[str, Any]] = field(default_factory=dict)


_held: OrderedDict[str, _Held] = OrderedDict()
"""In the process that answers, by deployment."""


class Asker:
    """Use it with `start` and `stop`."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._waiting = 0
        self.ready = asyncio.Event()
        """Set once answers come at full speed."""
        self._starting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process, without waiting for it."""
        self._pool = _new_pool()
        self._starting = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        with contextlib.suppress(BrokenProcessPool):  # whoever asks is told
            await asyncio.get_running_loop().run_in_executor(self._pool, warm_up)
            self.ready.set()

    async def stop(self) -> None:
        """End the process at once."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(end_pool, pool)

    async def ask(
        self, deployment: str, state: StoredState, settings: CoreSettings, question: Question
    ) -> dict[str, Any]:
        """The answer and its base. Raises AskError."""
        if self._waiting >= MAX_WAITING:
            raise AskError("too many questions at once; ask again in a moment")
        self._waiting += 1
        began_s = time.perf_counter()
        try:
            found = await self._run(deployment, state.version, None, settings, question)
            if found is None:
                found = await self._run(deployment, state.version, state.value, settings, question)
        finally:
            self._waiting -= 1
        if found is None:
            raise AskError("the state of this deployment was dropped meanwhile; ask again")
        return found | {"took_s": round(time.perf_counter() - began_s, 4)}

    async def _run(self, *arguments: Any) -> dict[str, Any] | None:
        pool = self._pool
        if pool is None:
            raise AskError("the page is closing")
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, answer, *arguments)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = _new_pool()
                await asyncio.to_thread(end_pool, pool)
            raise AskError("the process that answers ended and is started anew; ask again") from error


def answer(
    deployment: str,
    version: tuple[int, int],
    value: bytes | None,
    settings: CoreSettings,
    question: Question,
) -> dict[str, Any] | None:
    """In the process: the answer, or None where the state of this `version` must be given first. Raises AskError."""
    held = _held.get(deployment)
    if held is None or held.version != version:
        if value is None:
            return None
        held = _held[deployment] = _restored(version, value, settings)
        while len(_held) > MAX_HELD:
            _held.popitem(last=False)
    _held.move_to_end(deployment)
    shared = 1.0 if question.hit_ratio is None else SHARED_COSTS
    count = replications(held.pace_s * shared, question.rate_factor)
    try:
        base = held.bases.get(count)
        if base is None:
            base = held.bases[count] = ask(held.prospect, Question(), count)
        found = ask(held.prospect, question, count)
    except ValueError as error:
        raise AskError(f"the engines cannot run like this: {error}") from error
    return {"as_of_us": held.prospect.job.as_of_us, "base": base, "changed": found}


def replications(pace_s: float, rate_factor: float) -> int:
    """How many futures fit into the budget, if one takes `pace_s` at the rate that is expected."""
    return next((n for n in REPLICATIONS if n * pace_s * max(rate_factor, 1.0) <= BUDGET_S), REPLICATIONS[-1])


def _restored(version: tuple[int, int], value: bytes, settings: CoreSettings) -> _Held:
    try:
        core = Core.restore(read_snapshot(value), settings)
    except (SchemaError, SnapshotError, ValueError, LookupError, TypeError) as error:
        raise AskError(f"the stored state cannot be read ({error}); is the worker of the same version?") from error
    found = core.prospect()
    if found is None:
        raise AskError("no request has arrived yet, so there is nothing to vary")
    prospect = Prospect(*found)
    few, taken_s = REPLICATIONS[-1], []
    for _ in range(PACE_RUNS):
        began_s = time.perf_counter()
        base = ask(prospect, Question(), few)
        taken_s.append(time.perf_counter() - began_s)
    return _Held(version, prospect, min(taken_s) / few, {few: base})


def _new_pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=begin_child)
