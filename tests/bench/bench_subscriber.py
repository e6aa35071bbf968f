"""How soon a forecast is with those who wait for it: `python -m tests.bench.bench_subscriber [SECONDS]`.

A worker on a real Apache Kafka forecasts a made service of today's clock every second, coarse and fine; beside it wait
a `pipelines.client` subscriber in this process and `twincast watch --json` in another. Latency is from when a forecast
was made (its header) to when the subscriber gave it out, and to when `watch` showed it. Real forecasts, so their real
size; all on one machine, so one clock. Forecasts that had expired, or were replaced, before they could be given out are
counted apart. Needs Java, Docker or a cluster, and says so where there is none.
"""

import asyncio
import os
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.child import WorkerChild
from pipelines.client import LiveClock, subscribe
from pipelines.log import Log
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.places import Place, open_log
from pipelines.provision import create
from pipelines.settings import read_settings
from schemas.codec import encode
from tests.bench.fleet_traffic import fleet, stream

PARTITIONS = 4
BAR_MS, WATCH_BAR_S = 200.0, 1.0
CONFIG = """[forecast]
period_s = 1.0
horizons_s = [30.0, 60.0, 120.0]
coarse_replications = 2
fine_replications = 4
scenarios = ["baseline"]
insight = false
"""


@dataclass
class Found:
    """Latencies, seconds, and sizes in bytes."""

    client_s: list[float] = field(default_factory=list)
    watch_s: list[float] = field(default_factory=list)
    bytes_: list[int] = field(default_factory=list)
    not_given: int = 0


async def follow(found: Found, bootstrap: str, namespace: str) -> None:
    """What the client gives out, and when."""
    settings = read_settings({"TWINCAST_BOOTSTRAP": bootstrap, "TWINCAST_NAMESPACE": namespace, "HOME": "/tmp"})
    async with subscribe(settings=settings, clock=LiveClock()) as forecasts:
        async for reading in forecasts.updates():
            found.client_s.append(time.time() - reading.made_us / 1e6)
            found.bytes_.append(len(encode(reading.forecast)))
            found.not_given = forecasts.skipped + forecasts.refused


async def watch(found: Found, environ: dict[str, str]) -> None:
    """What `twincast watch --json` shows."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pipelines.cli", "watch", "--json", env=environ, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL, limit=16 * 1024 * 1024,
    )  # fmt: skip
    try:
        while process.stdout is not None:
            line = await process.stdout.readline()
            if not line:
                return
            row = msgspec.json.decode(line)
            found.watch_s.append((row["shown_us"] - row["made_us"]) / 1e6)
    finally:
        process.terminate()
        await process.wait()


async def feed(log: Log, seconds: float) -> None:
    """Records of one deployment, each when its time has come."""
    async with log.producer() as producer:
        for at_us, message in stream(fleet(1, 8.0), seconds, time.time_ns() // 1000):
            wait_s = at_us / 1e6 - time.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await send(producer, message)


async def send(producer: object, message: Outgoing) -> None:
    """Into its partition."""
    await producer.send(  # type: ignore[attr-defined]
        message.topic,
        key=message.key,
        value=message.value,
        partition=partition_of(message.deployment, PARTITIONS),
        timestamp_ms=message.at_us // 1000,
    )


async def measure(bootstrap: str, seconds: float) -> Found:
    """Run everything for so long."""
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "twincast.toml"
        config.write_text(CONFIG)
        namespace = f"bench-{uuid.uuid4().hex[:8]}"
        environ = {**os.environ, "TWINCAST_CONFIG": str(config), "TWINCAST_BOOTSTRAP": bootstrap}
        environ |= {"TWINCAST_NAMESPACE": namespace, "TWINCAST_CACHE_DIR": scratch, "TWINCAST_SIMULATORS": "1"}
        place = Place(kind="kafka", where=bootstrap, namespace=namespace)
        async with open_log(read_settings(environ), place) as log:
            await create(log, PARTITIONS)
            async with WorkerChild(environ, Path(scratch) / "worker.log") as worker:
                while not (await worker.next_report()).simulators_ready:
                    pass
                tasks = [
                    asyncio.create_task(follow(found, bootstrap, namespace)),
                    asyncio.create_task(watch(found, environ)),
                ]
                await asyncio.sleep(5.0)
                await feed(log, seconds)
                await asyncio.sleep(2.0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await worker.stop()
    return found


def main() -> None:
    """Print the figures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 90.0
    choice = choose_broker(broker_settings(os.environ))
    if choice.kind == "embedded":
        print("no Apache Kafka here: " + "; ".join(over.reason for over in choice.passed_over))
        return
    load = os.getloadavg()[0]
    with running_broker(choice) as bootstrap:
        found = asyncio.run(measure(str(bootstrap), seconds))
    client_ms = 1000 * np.array(found.client_s)
    watch_s = np.array(found.watch_s)
    size_kb = float(np.mean(found.bytes_)) / 1000 if found.bytes_ else 0.0
    print(
        f"client: {len(client_ms)} forecasts of {size_kb:.1f} kB, made to given out P50 {np.median(client_ms):.1f} ms, "
        f"P99 {np.quantile(client_ms, 0.99):.1f} ms (bar: P99 < {BAR_MS:g} ms), most {client_ms.max():.1f} ms; "
        f"{found.not_given} replaced or expired before"
    )
    print(
        f"watch --json: {len(watch_s)} forecasts, made to shown P50 {np.median(watch_s):.3f} s, "
        f"most {watch_s.max():.3f} s (bar: < {WATCH_BAR_S:g} s)"
    )
    print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
