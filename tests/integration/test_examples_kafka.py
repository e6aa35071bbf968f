"""The example scheduler and the Node subscriber as processes on a real Apache Kafka: they act on what is fresh only."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest
from made_forecasts import forecast, responses

from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import TopicPartition
from pipelines.namespace import in_namespace
from pipelines.outputs import MADE_HEADER
from pipelines.partitions import partition_of
from pipelines.provision import create
from pipelines.samples import EXAMPLES
from schemas.changes import Change
from schemas.codec import decode, encode
from schemas.forecasts import Forecast
from schemas.topics import CHANGES, FORECASTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
PARTITIONS = 4


class Broker:
    """A namespace of its own on the broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.namespace = f"examples-{uuid.uuid4().hex[:8]}"
        asyncio.run(self._create())

    def log(self) -> object:
        return in_namespace(KafkaLog(cluster_access({}, self.bootstrap)), self.namespace)

    async def _create(self) -> None:
        async with self.log() as log:  # type: ignore[attr-defined]
            await create(log, PARTITIONS)

    def publish(self, *found: Forecast) -> None:
        async def send() -> None:
            async with self.log() as log, log.producer() as producer:  # type: ignore[attr-defined]
                for each in found:
                    headers = ((MADE_HEADER, str(time.time_ns() // 1000).encode()),)
                    partition = partition_of(each.deployment, PARTITIONS)
                    await producer.send(
                        FORECASTS.name, key=b"d", value=encode(each), headers=headers, partition=partition
                    )

        asyncio.run(send())

    def changes(self) -> list[Change]:
        async def read() -> list[Change]:
            place = TopicPartition(CHANGES.name, partition_of("d", PARTITIONS))
            async with self.log() as log, log.reader({place: 0}) as reader:  # type: ignore[attr-defined]
                return [decode(CHANGES.name, r.value or b"").record for r in await reader.get(timeout_s=5.0)]

        return asyncio.run(read())


def fresh(**more: object) -> Forecast:
    now_us = time.time_ns() // 1000
    return forecast(as_of_us=now_us - 1_000_000, valid_s=20.0, **more)  # type: ignore[arg-type]


def stale() -> Forecast:
    return forecast(as_of_us=time.time_ns() // 1000 - 60_000_000, valid_s=20.0, breaches=(0.99,))


@contextmanager
def lines_of(command: list[str], **environ: str) -> Iterator["Queue[str]"]:
    process = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        yield lines
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reading.join(5.0)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_the_example_scheduler_scales_tells_the_twin_and_falls_back(kafka_bootstrap: str, tmp_path: Path) -> None:
    broker = Broker(kafka_bootstrap)
    broker.publish(stale())
    script = tmp_path / "scheduler.py"
    text = (EXAMPLES / "scheduler.py").read_text()
    assert "PATIENCE_S = 20.0" in text
    assert len(text.splitlines()) < 60
    script.write_text(text.replace("PATIENCE_S = 20.0", "PATIENCE_S = 2.0"))
    environ = {"TWINCAST_BOOTSTRAP": kafka_bootstrap, "TWINCAST_NAMESPACE": broker.namespace}
    with lines_of([sys.executable, str(script)], PYTHONPATH=str(EXAMPLES.parent), **environ) as lines:
        assert "no fresh forecast" in lines.get(timeout=30.0)  # the stale one tells it nothing
        broker.publish(fresh(breaches=(0.9, 0.9, 0.9), responses=responses(0.9, 0.4, 0.05)))
        deadline_s = time.monotonic() + 20.0
        line = ""
        while "->" not in line and time.monotonic() < deadline_s:
            line = lines.get(timeout=20.0)
        assert line == "d: 1 -> 3 engines\n"
        [change] = broker.changes()
        assert (change.kind, change.status, change.engines_before, change.engines_after) == ("scale", "accepted", 1, 3)


@pytest.fixture(scope="session")
def node_subscriber(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Node example with its package, which npm fetches."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node or npm on the path")
    place = tmp_path_factory.mktemp("node") / "node"
    shutil.copytree(EXAMPLES / "node", place, ignore=shutil.ignore_patterns("node_modules"))
    found = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=place, capture_output=True, text=True, timeout=90, check=False
    )
    if found.returncode:
        pytest.skip(f"npm could not fetch kafkajs: {found.stderr.strip().splitlines()[-1:]}")
    return place / "subscriber.mjs"


def test_the_node_subscriber_acts_on_fresh_forecasts_only(kafka_bootstrap: str, node_subscriber: Path) -> None:
    broker = Broker(kafka_bootstrap)
    topic = f"{broker.namespace}.{FORECASTS.name}"
    environ = {"TWINCAST_BOOTSTRAP": kafka_bootstrap, "TWINCAST_TOPIC": topic, "NODE_NO_WARNINGS": "1"}
    with lines_of(["node", str(node_subscriber)], **environ) as lines:
        deadline_s, told = time.monotonic() + 60.0, None
        while told is None and time.monotonic() < deadline_s:  # until it has joined its group
            broker.publish(stale(), fresh(breaches=(0.9,)), fresh(breaches=(0.9,), authority="advisory"))
            try:
                told = json.loads(lines.get(timeout=3.0))
            except Empty:
                continue
        assert told is not None
        found = [told]
        while True:
            try:
                found.append(json.loads(lines.get(timeout=2.0)))
            except Empty:
                break
    assert {(row["deployment"], row["advice"]) for row in found} == {("d", "scale out"), ("d", "stay")}
    assert all(row["age"] < 20.0 for row in found)
