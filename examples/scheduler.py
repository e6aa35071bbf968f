"""A scheduler on top of forecasts: as many engines as keep the targets, and a reactive rule for when none is fresh.

TWINCAST_BOOTSTRAP=127.0.0.1:9092 python examples/scheduler.py [DEPLOYMENT]        (needs twincast installed)
TWINCAST_SPEED=4 where a recording is played at four times its pace. It prints what it does, and tells the twin of it.
"""

import asyncio
import os
import sys
import time

from pipelines.client import LiveClock, Reading, ReplayClock, Subscriber, subscribe
from schemas.changes import Change

MOST_BREACH_PROBABILITY = 0.1
PATIENCE_S = 20.0
COOLDOWN_S = 60.0


def decide(reading: Reading, engines: int) -> int:
    """How many engines to run; `engines` is how many run now."""
    if reading.forecast.authority == "advisory" or reading.surface is None:
        return engines
    wanted = reading.surface.engines_for(breach_probability_at_most=MOST_BREACH_PROBABILITY)
    if wanted is None:  # none of those simulated is enough: go to the largest
        return max(point.engines for point in reading.surface.points)
    return wanted if wanted > engines or (reading.breach_probability() or 0.0) < 0.02 else engines


async def act(forecasts: Subscriber, deployment: str, before: int, after: int) -> None:
    """Ask your orchestrator for `after` engines here, then tell the twin, so that it counts them in."""
    print(f"{deployment}: {before} -> {after} engines", flush=True)
    change = Change(deployment=deployment, at_us=time.time_ns() // 1000, kind="scale", status="accepted",
                    engines_before=before, engines_after=after)  # fmt: skip
    await forecasts.report(change)


async def main(deployment: str | None) -> None:
    """Decide on every fresh forecast."""
    engines: dict[str, int] = {}
    acted_s: dict[str, float] = {}
    speed = os.environ.get("TWINCAST_SPEED")
    async with subscribe(clock=ReplayClock(speed=float(speed)) if speed else LiveClock()) as forecasts:
        while True:
            reading = await forecasts.next(timeout_s=PATIENCE_S)
            if reading is None:
                print("no fresh forecast: scaling on the queue that can be seen, as without a twin", flush=True)
                continue
            name = reading.forecast.deployment
            now = engines.setdefault(name, max(len(reading.forecast.balance), 1))
            risk, authority = reading.breach_probability() or 0.0, reading.forecast.authority
            print(f"{name}: breach {risk:.0%} ahead, authority {authority}, {now} engines", flush=True)
            wanted = decide(reading, now)
            if deployment in (None, name) and wanted != now and time.monotonic() - acted_s.get(name, -1e9) > COOLDOWN_S:
                await act(forecasts, name, now, wanted)
                engines[name], acted_s[name] = wanted, time.monotonic()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
