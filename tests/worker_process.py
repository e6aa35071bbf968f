"""A worker as a process of its own, for tests: started, watched by its reports, killed, and its log read afterwards."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from synthetic import service

from pipelines.backtest import Backtest, backtest
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.log import LogRecord, TopicPartition
from pipelines.outputs import Outgoing
from pipelines.places import Place, open_log
from pipelines.playback import messages_of
from pipelines.player import play
from pipelines.provision import create
from pipelines.runtime import Runtime
from pipelines.settings import Settings, read_settings
from schemas.topics import STATE
from twin.core import Core

PARTITIONS = 4
CONFIG = """[forecast]
coarse_replications = 1
fine_replications = 2
scenarios = ["baseline"]
period_s = 5.0
horizons_s = [10.0, 20.0]
snapshot_ticks = 2
insight = false
"""


def recording_of(seconds: float, deployment: str = "d", rate_per_s: float = 4.0) -> Recording:
    events = in_order(event_of(record) for record in service(seconds, rate_per_s, deployment=deployment))
    return Recording("synthetic", "S3", min(event.at_us for event in events), events)


class Stage:
    """A fresh namespace of a log, and workers on it."""

    def __init__(self, place: Place, directory: Path, config_text: str = CONFIG) -> None:
        self.place = place
        self._directory = directory
        config = directory / "twincast.toml"
        config.write_text(config_text)
        environ = {key: text for key, text in os.environ.items() if not key.startswith("TWINCAST_")}
        self.environ = environ | {
            "TWINCAST_CONFIG": str(config),
            "TWINCAST_CACHE_DIR": str(directory / "cache"),
            "TWINCAST_SIMULATORS": "1",
        }
        if place.kind == "kafka":
            self.environ |= {"TWINCAST_BOOTSTRAP": place.where, "TWINCAST_NAMESPACE": place.namespace}
        else:
            self.environ |= {"TWINCAST_DATA_DIR": place.where}
        self.settings: Settings = read_settings(self.environ)
        self.workers: list[WorkerProcess] = []

    @classmethod
    def on_kafka(cls, bootstrap: str, directory: Path, config_text: str = CONFIG) -> Self:
        return cls(Place(kind="kafka", where=bootstrap, namespace=f"t{uuid.uuid4().hex[:8]}"), directory, config_text)

    @classmethod
    def on_files(cls, directory: Path, config_text: str = CONFIG) -> Self:
        return cls(Place(kind="file", where=str(directory / "log")), directory, config_text)

    def __enter__(self) -> Self:
        asyncio.run(self._create())
        return self

    def __exit__(self, *failure: object) -> None:
        for worker in self.workers:
            worker.kill()

    async def _create(self) -> None:
        async with open_log(self.settings, self.place) as log:
            await create(log, PARTITIONS, keep_for_ever=True)

    def worker(self, slot: int = 0, *options: str) -> "WorkerProcess":
        started = WorkerProcess(self.environ, slot, self._directory / f"worker-{len(self.workers)}.log", options)
        self.workers.append(started)
        return started

    def play(self, messages: Iterable[Outgoing], speed: float = float("inf")) -> int:
        return asyncio.run(self._play(messages, speed))

    async def _play(self, messages: Iterable[Outgoing], speed: float) -> int:
        async with open_log(self.settings, self.place) as log, log.producer() as producer:
            return (await play(producer, messages, PARTITIONS, speed=speed)).messages

    def playing(self, messages: Iterable[Outgoing], speed: float) -> threading.Thread:
        thread = threading.Thread(target=self.play, args=(messages, speed), daemon=True)
        thread.start()
        return thread

    def send(self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None, list[Any]]]) -> None:
        async def act() -> None:
            async with open_log(self.settings, self.place) as log, log.producer() as producer:
                for key, value, headers in records:
                    await producer.send(topic, key=key, value=value, headers=headers, partition=partition)

        asyncio.run(act())

    def records(self, topic: str) -> list[LogRecord]:
        return asyncio.run(self._records(topic))

    async def _records(self, topic: str) -> list[LogRecord]:
        async with open_log(self.settings, self.place) as log:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            ends = await log.end_offsets(places)
            begins = await log.begin_offsets(places)
            found: list[LogRecord] = []
            if begins == ends:
                return found
            async with log.reader(begins) as reader:
                while any(reader.position(place) < ends[place] for place in places):
                    found += await reader.get(timeout_s=0.5)
            return found

    def cores(self) -> dict[str, Core]:
        """The cores as the last snapshots hold them."""
        runtime = Runtime(self.settings.core, PARTITIONS)
        for record in self.records(STATE.name):
            runtime.restore(record.value or b"")
        return runtime.cores

    def undisturbed(self, recording: Recording) -> Backtest:
        return backtest(recording, self.settings.core(recording.deployment))


class WorkerProcess:
    """`twincast up --report` in a process of its own; `report` is the last one it wrote."""

    def __init__(self, environ: Mapping[str, str], slot: int, log_path: Path, options: Iterable[str] = ()) -> None:
        self._log_path = log_path
        self.report: dict[str, Any] = {}
        self.started_s = time.monotonic()
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.cli", "up", "--report", "--slot", str(slot), *options],
                env=dict(environ),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self.report = json.loads(line)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], what: str, timeout_s: float = 100.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not (self.report and condition(self.report)):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"no {what}; exit {self._process.poll()}, {self.report}\n{self.log[-3000:]}")
            time.sleep(0.02)

    def wait_ready(self, partitions: int = PARTITIONS) -> None:
        self.wait_for(
            lambda report: len(report["partitions"]) == partitions and report["simulators_ready"],
            f"{partitions} partitions",
        )

    def wait_done(self, messages: int, timeout_s: float = 90.0) -> None:
        """Every message handled and every simulation in."""
        self.wait_for(
            lambda report: report["idle"] and sum(report["handed"].values()) == messages,
            f"{messages} messages done",
            timeout_s,
        )

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(20)
        self._close()

    def _close(self) -> None:
        self._reading.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ended(self, within_s: float) -> int | None:
        """The exit code of a worker that ends by itself, None where it does not."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._process.terminate()
        code = self._process.wait(30)
        self._close()
        return code


def unique(records: Iterable[LogRecord]) -> list[bytes]:
    """Values in order, those with an id seen before left out."""
    seen: dict[bytes, bytes] = {}
    for record in records:
        seen.setdefault(dict(record.headers)["ce_id"], record.value or b"")
    return list(seen.values())


def messages(recording: Recording) -> list[Outgoing]:
    return list(messages_of(recording))
