"""What a forecast under way costs the event loop beside it: how late timers wake, how much foreground work is kept.

The loop decodes and validates requests in slices of about half a millisecond and wakes a timer every five; then the
same while a process of the worker's pool simulates one forecast job after another. Spells with and without alternate
in one run, since the machine may be shared.

Run: python -m tests.bench.bench_event_loop
"""

import asyncio
import os
import time
from dataclasses import dataclass, field

import numpy as np

from pipelines.standard_job import warm_up
from pipelines.workers import Simulators
from schemas.codec import decode
from schemas.topics import REQUESTS
from tests.bench.bench_forecast_job import job
from tests.bench.bench_ingest import finished_records

SPELL_S = 4.0
ROUNDS = 4
TIMER_S = 0.005
SLICE_RECORDS = 400


@dataclass(slots=True)
class Spells:
    """Timers' lateness and records decoded, over all spells of one kind."""

    late_s: list[float] = field(default_factory=list)
    records: int = 0
    seconds: float = 0.0

    @property
    def p99_ms(self) -> float:
        """How late the latest hundredth of timers woke."""
        return float(np.quantile(self.late_s, 0.99)) * 1e3

    @property
    def records_per_s(self) -> float:
        """Foreground work done."""
        return self.records / self.seconds


async def spell(found: Spells, records: list[bytes]) -> None:
    """Work for a while, a timer beside it."""
    until_s = time.perf_counter() + SPELL_S

    async def timer() -> None:
        while time.perf_counter() < until_s:
            began_s = time.perf_counter()
            await asyncio.sleep(TIMER_S)
            found.late_s.append(time.perf_counter() - began_s - TIMER_S)

    timing = asyncio.create_task(timer())
    began_s = time.perf_counter()
    while time.perf_counter() < until_s:
        for record in records[:SLICE_RECORDS]:
            decode(REQUESTS.name, record)
        found.records += SLICE_RECORDS
        await asyncio.sleep(0)
    found.seconds += time.perf_counter() - began_s
    await timing


async def measure() -> tuple[Spells, Spells, int]:
    """Spells alone, spells beside forecasts, and how many forecasts were made."""
    records = finished_records()
    alone, beside = Spells(), Spells()
    made = job()
    forecasts = 0

    async def forecast_on(simulators: Simulators) -> None:
        nonlocal forecasts
        while True:
            await simulators.submit(made)
            forecasts += 1

    async with Simulators(1, warm=warm_up) as simulators:
        await simulators.ready.wait()
        await simulators.submit(made)
        for _ in range(ROUNDS):
            await spell(alone, records)
            running = asyncio.create_task(forecast_on(simulators))
            await spell(beside, records)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await simulators.submit(made.at_phase("coarse"))  # behind what was under way: the process is free again
    return alone, beside, forecasts


def main() -> None:
    """Print the figures."""
    alone, beside, forecasts = asyncio.run(measure())
    added_ms = beside.p99_ms - alone.p99_ms
    kept = beside.records_per_s / alone.records_per_s
    print(f"event loop: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {forecasts} forecasts of 1.6 M requests")
    print(
        f"event loop: P99 lateness of timers {alone.p99_ms:.2f} ms alone, {beside.p99_ms:.2f} ms beside a forecast, "
        f"{added_ms:+.2f} ms (bar: < 5 ms)"
    )
    print(
        f"event loop: {alone.records_per_s:,.0f} records/s decoded alone, {beside.records_per_s:,.0f} beside, "
        f"{kept:.0%} kept (bar: >= 90 %)"
    )


if __name__ == "__main__":
    main()
