"""Coarse forecasts of a fleet, end to end: `python -m tests.bench.bench_fleet [SECONDS [REQUESTS_PER_S [COUNT]]]`.

One worker with one simulator process on a real Apache Kafka; 20 made services of 100 requests/s each (arrivals, steps
and ends: about 5,000 records/s) tell their records when they happen; ticks come every 10 s, staggered by name. End
to end is from the tick's event time to when a `pipelines.client` subscriber holds the forecast: it includes the second
that records may be late, ingest, the queue of 20 simulations, and Kafka twice. Broker, worker, simulator, traffic and
subscriber share the machine. The work per forecast is the least there is (one coarse replication of the baseline)
unless TWINCAST_BENCH_COARSE and _FINE say otherwise; what was reached is printed. No targets are set, so nothing is
proposed.
"""

import asyncio
import os
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka import AIOKafkaProducer

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.child import WorkerChild
from pipelines.client import LiveClock, subscribe
from pipelines.partitions import partition_of
from pipelines.places import Place, open_log
from pipelines.provision import create
from pipelines.settings import read_settings
from schemas.topics import FORECASTS
from tests.bench.fleet_traffic import fleet, stream

PARTITIONS = 8
PERIOD_S = 10.0
BATCH_S = 0.05
BAR_S = PERIOD_S / 5
LATENESS_S = 1.0
COLD_S = 25.0
"""Ticks before this know too little to be compared."""
CONFIG = """[forecast]
period_s = 10.0
staggered = true
horizons_s = [30.0, 60.0, 120.0]
coarse_replications = {coarse}
fine_replications = {fine}
scenarios = ["baseline"]
insight = false
snapshot_ticks = 6
"""


@dataclass
class Found:
    """Seconds from the tick to the subscriber, per phase; replications of lineage; how far the traffic was behind."""

    start_us: int = 0
    coarse_s: list[float] = field(default_factory=list)
    fine_s: list[float] = field(default_factory=list)
    replications: dict[str, set[int]] = field(default_factory=dict)
    behind_s: list[float] = field(default_factory=list)
    messages: int = 0
    worker_cores: float = 0.0
    """CPU seconds of the worker's own process per second of traffic; its simulator is another."""
    written: int = 0
    held: int = 0
    """Forecasts that the worker wrote in all, and units that it had read and not applied at the end."""


async def follow(found: Found, environ: dict[str, str]) -> None:
    """Note when each forecast is here."""
    async with subscribe(settings=read_settings(environ), clock=LiveClock()) as forecasts:
        async for reading in forecasts.updates():
            forecast = reading.forecast
            if found.start_us and forecast.as_of_us > found.start_us + COLD_S * 1e6:
                rows = found.coarse_s if forecast.phase == "coarse" else found.fine_s
                rows.append(time.time() - forecast.as_of_us / 1e6)
                found.replications.setdefault(forecast.phase, set()).add(forecast.lineage.replications)


def batches(messages: list[tuple[int, Any]], namespace: str, producer: Any) -> list[tuple[float, str, int, Any]]:
    """Due time in seconds, topic, partition and batch, each of up to `BATCH_S` of one partition; made before the
    clock starts, for a fleet would not share the machine with its twin."""
    waiting: dict[tuple[str, int], tuple[int, Any]] = {}
    found: list[tuple[float, str, int, Any]] = []
    for at_us, message in messages:
        place = (f"{namespace}.{message.topic}", partition_of(message.deployment, PARTITIONS))
        if place in waiting and at_us - waiting[place][0] >= BATCH_S * 1e6:
            begun_us, batch = waiting.pop(place)
            found.append((begun_us / 1e6 + BATCH_S, *place, batch))
        begun_us, batch = waiting.setdefault(place, (at_us, producer.create_batch()))
        kept = batch.append(key=message.key, value=message.value, timestamp=message.at_us // 1000)
        if kept is None:
            raise RuntimeError(f"a batch of {BATCH_S} s is too large for {place}; shorten it")
    found += [(begun_us / 1e6 + BATCH_S, *place, batch) for place, (begun_us, batch) in waiting.items()]
    for *_, batch in found:
        batch.close()
    return sorted(found, key=lambda row: row[0])


async def feed(producer: Any, found: Found, due: list[tuple[float, str, int, Any]]) -> None:
    """Send each batch when its last record has happened."""
    for number, (due_s, topic, partition, batch) in enumerate(due):
        wait_s = due_s - time.time()
        if wait_s > 0.002:
            await asyncio.sleep(wait_s)
        if number % 100 == 0:
            found.behind_s.append(max(-wait_s, 0.0))
        await producer.send_batch(batch, topic, partition=partition)


def cpu_s(pid: int) -> float:
    """CPU time of a process, all its threads, seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def measure(bootstrap: str, seconds: float, requests_per_s: float, deployments: int) -> Found:
    """Run the fleet for so long."""
    found = Found()
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "twincast.toml"
        coarse, fine = (os.environ.get(f"TWINCAST_BENCH_{name}", "1") for name in ("COARSE", "FINE"))
        config.write_text(CONFIG.format(coarse=coarse, fine=fine))
        namespace = f"fleet-{uuid.uuid4().hex[:8]}"
        environ = {**os.environ, "TWINCAST_CONFIG": str(config), "TWINCAST_BOOTSTRAP": bootstrap}
        environ |= {
            "TWINCAST_NAMESPACE": namespace,
            "TWINCAST_CACHE_DIR": scratch,
            "TWINCAST_SIMULATORS": os.environ.get("TWINCAST_BENCH_SIMULATORS", "1"),
        }
        environ |= {"TWINCAST_PARTITIONS": str(PARTITIONS)}
        place = Place(kind="kafka", where=bootstrap, namespace=namespace)
        async with open_log(read_settings(environ), place) as log:
            await create(log, PARTITIONS)
            async with WorkerChild(environ, Path(scratch) / "worker.log") as worker:
                while not (await worker.next_report()).simulators_ready:
                    pass
                following = asyncio.create_task(follow(found, environ))
                start_us = time.time_ns() // 1000 + round(seconds * requests_per_s * 300)  # 0.3 ms to make each request
                services = fleet(deployments, requests_per_s / deployments)
                messages = list(stream(services, seconds, start_us, targets=()))
                async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1_000_000) as producer:
                    due = batches(messages, namespace, producer)
                    found.messages, found.start_us = len(messages), start_us
                    await asyncio.sleep(max(start_us / 1e6 - time.time(), 0.0))
                    before_s = cpu_s(worker.pid)
                    await feed(producer, found, due)
                    found.worker_cores = (cpu_s(worker.pid) - before_s) / seconds
                await asyncio.sleep(PERIOD_S / 2)
                report = await worker.next_report()
                found.written = report.written.get(FORECASTS.name, 0)
                found.held = report.balance.get("held", 0) + report.held
                following.cancel()
                await asyncio.wait([following])
                await worker.stop()
    return found


def row(name: str, seconds: list[float], bar: str) -> str:
    """One line of figures."""
    if not seconds:
        return f"{name}: none came (bar: {bar})"
    found = np.array(seconds)
    met = f"{np.mean(found <= BAR_S):.0%} within {BAR_S:g} s (bar: {bar})"
    return (
        f"{name}: {len(found)} forecasts, tick to subscriber least {found.min():.2f} s, P50 {np.median(found):.2f} s, "
        f"P95 {np.quantile(found, 0.95):.2f} s, most {found.max():.2f} s; {met}; "
        f"without the {LATENESS_S:g} s that records may be late: P95 {np.quantile(found, 0.95) - LATENESS_S:.2f} s"
    )


def main() -> None:
    """Print the figures."""
    given = [float(text) for text in sys.argv[1:]]
    seconds, requests_per_s, deployments = (*given, *(95.0, 2000.0, 20.0)[len(given) :])
    choice = choose_broker(broker_settings(os.environ))
    if choice.kind == "embedded":
        print("no Apache Kafka here: " + "; ".join(over.reason for over in choice.passed_over))
        return
    load = os.getloadavg()[0]
    with running_broker(choice) as bootstrap:
        found = asyncio.run(measure(str(bootstrap), seconds, requests_per_s, int(deployments)))
    print(
        f"fleet: {requests_per_s:,.0f} requests/s over {deployments:.0f} deployments, {found.messages:,} messages; "
        f"the worker wrote {found.written} forecasts in all and held {found.held:,} units at the end"
    )
    print(row("coarse", found.coarse_s, f"within {BAR_S:g} s"))
    print(row("fine", found.fine_s, f"within the period of {PERIOD_S:g} s"))
    reached = ", ".join(f"{phase} {sorted(counts)}" for phase, counts in sorted(found.replications.items()))
    print(f"replications reached: {reached or 'none'}, of the baseline, without insight and proposals")
    print(f"the worker's own process used {found.worker_cores:.2f} cores")
    behind = max(found.behind_s, default=0.0)
    after = os.getloadavg()[0]
    print(f"traffic was at most {behind:.2f} s behind its clock; load average {load:.1f} before, {after:.1f} after")


if __name__ == "__main__":
    main()
