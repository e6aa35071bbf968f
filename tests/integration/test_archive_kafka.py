"""Archives of a real Apache Kafka: recorded, killed, replayed, and published again without touching what was there."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from worker_process import Stage, messages, recording_of

from pipelines.archive.manifest import read_manifest
from pipelines.archive.reading import open_archive
from pipelines.places import Place
from schemas.topics import ALERTS, FORECASTS, OUTPUTS, REQUESTS, SCORES, STATE

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]


def twincast(stage: Stage, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "pipelines.cli", *arguments]
    done = subprocess.run(command, env=stage.environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_live_run_recorded_from_kafka_replays_to_the_same_bytes_at_every_speed(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    recording = recording_of(100.0)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        worker = stage.worker()
        worker.wait_ready()
        worker.wait_done(stage.play(messages(recording), speed=40.0))
        assert worker.stop() == 0
        folder = tmp_path / "archive"
        twincast(stage, "record", "--out", str(folder))
        manifest = read_manifest(folder)
        assert manifest.complete
        assert STATE.name in manifest.topics
        replays = [account(stage, folder, "--speed", speed) for speed in ("max", "100")]
        slices = [account(stage, folder, "--speed", speed, "--until", "6s") for speed in ("max", "1")]
        assert [each["equals_recorded"] for each in replays] == [True, True]
        assert len({each["output_sha256"] for each in replays}) == 1
        assert len({each["output_sha256"] for each in slices}) == 1
        assert slices[1]["wall_s"] > 4.0
        assert replays[0]["outputs"][FORECASTS.name] == len(stage.records(FORECASTS.name)) > 20
        assert replays[0]["outputs"][SCORES.name] == len(stage.records(SCORES.name)) > 0
        published(stage, folder)


def account(stage: Stage, folder: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(twincast(stage, "replay", str(folder), "--json", "-", *options))
    return found


def published(stage: Stage, folder: Path) -> None:
    """Onto the same broker: into a namespace of its own, which must be fresh."""
    names = [REQUESTS.name, *(topic.name for topic in OUTPUTS)]
    before = {name: stage.records(name) for name in names}
    options = ("--publish", "--namespace", f"{stage.place.namespace}-again")
    found = account(stage, folder, *options)
    assert found["namespace"] == f"{stage.place.namespace}-again"
    assert {name: stage.records(name) for name in names} == before
    scratch = folder.parent / "again"
    scratch.mkdir()
    again = Stage(Place(kind="kafka", where=stage.place.where, namespace=found["namespace"]), scratch)
    assert [stamped(r) for r in again.records(REQUESTS.name)] == [stamped(r) for r in before[REQUESTS.name]]
    for topic in (FORECASTS, SCORES, ALERTS):
        copied = again.records(topic.name)
        assert [r.value for r in copied] == [r.value for r in before[topic.name]]
        assert all(b"archive" in dict(r.headers)["twincast_replay"] for r in copied)
    error = twincast_error(stage, "replay", str(folder), *options)
    assert "is not fresh" in error


def stamped(record: Any) -> tuple[Any, ...]:
    return record.partition, record.offset, record.key, record.value, record.timestamp_ms, record.headers


def twincast_error(stage: Stage, *arguments: str) -> str:
    command = [sys.executable, "-m", "pipelines.cli", *arguments]
    done = subprocess.run(command, env=stage.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


def test_killed_again_and_again_it_records_every_record_once(kafka_bootstrap: str, tmp_path: Path) -> None:
    """kill -9 at moments nobody chose; what came after the first start is left out."""
    topic = REQUESTS.name
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        rows = [(b"d", os.urandom(2_000), [("n", str(i).encode())]) for i in range(15_000)]
        for partition in range(2):
            stage.send(topic, partition, rows[partition::2])
        folder = tmp_path / "archive"
        command = [sys.executable, "-m", "pipelines.cli", "record", "--topics", topic, "--out", str(folder)]
        kills = 0
        for number in range(6):
            process = subprocess.Popen(command, env=stage.environ, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            waited_s = time.monotonic()
            while not list(folder.glob("*/*/.*.part")) and process.poll() is None and time.monotonic() - waited_s < 60:
                time.sleep(0.005)
            time.sleep(0.03 * number)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.wait(20)
            stage.send(topic, 0, [(b"d", b"later", [])])
            if (folder / "manifest.json").exists() and read_manifest(folder).complete:
                break
        assert kills >= 2
        if not read_manifest(folder).complete:
            twincast(stage, *command[3:])
        found = [record for _, record in open_archive(folder).records()]
        assert sorted((r.partition, r.offset) for r in found) == [(p, o) for p in range(2) for o in range(7_500)]
        sent = {(p, o): row for p in range(2) for o, row in enumerate(rows[p::2])}
        assert all(r.value == sent[r.partition, r.offset][1] for r in found)
        assert all(r.headers == tuple(sent[r.partition, r.offset][2]) for r in found)
