"""Look at this machine: what is here, what is missing, what would be used, how fast it simulates."""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from pipelines.broker import choose_broker
from pipelines.checkup import Finding, judge, look_at
from pipelines.errors import ConfigError
from pipelines.places import find_place, open_log
from pipelines.provision import check
from pipelines.settings import Settings
from pipelines.standard_job import measure, warm_up
from pipelines.warmth import read_warm

LIBRARIES = ("aiokafka", "faust-streaming", "msgspec", "numba", "numpy", "river", "simpy")
SLOW_PER_S = 20_000.0
MARKS = {True: "ok", False: "NO"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast doctor --help`."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")
    parser.add_argument("--json", action="store_true", help="answer with one JSON object")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Look at everything; exit code 1 where something is not well."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("libraries", _libraries),
        ("settings", lambda: _settings(settings)),
        ("cache", lambda: _writable(settings.cache_dir, "TWINCAST_CACHE_DIR")),
        ("broker", lambda: _broker(settings)),
        ("log", lambda: asyncio.run(_log(args, settings))),
        ("simulator", _simulator),
    ]
    findings = [_look(name, look) for name, look in looks]
    if next(finding.well for finding in findings if finding.name == "log"):
        findings += asyncio.run(_records(args, settings))
    if args.json:
        print(json.dumps({f.name: {"well": f.well, "text": f.text} for f in findings}))
    else:
        for finding in findings:
            print(f"{MARKS[finding.well]} {finding.name:10} {finding.text}")
    return 0 if all(finding.well for finding in findings) else 1


def _look(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, look())
    except ConfigError as error:
        return Finding(name, False, str(error))


def _python() -> str:
    return f"{platform.python_version()} on {platform.machine()}"


def _libraries() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)


def _settings(settings: Settings) -> str:
    if settings.worker.warm_file is not None:
        read_warm(settings.worker.warm_file)
    own = ", ".join(sorted(settings.deployments)) or "none of their own"
    targets = sum(map(len, settings.slos.values()))
    return f"{settings.partitions} partitions, deployments with settings: {own}, {targets} targets"


def _writable(directory: Path, variable: str) -> str:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return str(directory)
    except OSError as error:
        raise ConfigError(f"cannot write to {directory} ({error.strerror}); set {variable} to one of yours") from error


def _broker(settings: Settings) -> str:
    choice = choose_broker(settings.broker, lambda line: print(line, file=sys.stderr))
    return "; ".join(line.strip().removeprefix("broker: ") for line in choice.lines())


async def _log(args: argparse.Namespace, settings: Settings) -> str:
    found = find_place(settings, args.bootstrap)
    if found.place.kind == "file":
        return f"no Kafka is named or running; `twincast up` would use {found.place}"
    async with open_log(settings, found.place) as log:
        counts = await check(log, settings.partitions)
    return f"{found.place} answers, {len(counts)} topics with {settings.partitions} partitions"


async def _records(args: argparse.Namespace, settings: Settings) -> list[Finding]:
    """What the records say, where there is a cluster or an embedded log with topics."""
    found = find_place(settings, args.bootstrap)
    if found.place.kind == "file":
        return []
    async with open_log(settings, found.place) as log:
        return judge(await look_at(log, settings.partitions), time.time_ns() // 1000)


def _simulator() -> str:
    began_s = time.monotonic()
    warm_up()
    ready_s = time.monotonic() - began_s
    pace = measure()
    if pace.simulated_per_s < SLOW_PER_S:
        raise ConfigError(
            f"only {pace.simulated_per_s:,.0f} requests/s are simulated here; give the process a whole core"
        )
    return (
        f"ready in {ready_s:.1f} s, {pace.simulated_per_s:,.0f} requests/s, insight of a tick in {pace.insight_s:.2f} s"
    )
