"""The demonstration, whole: on the embedded log and on a real Apache Kafka, to its end and broken off."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from worker_process import Stage

from pipelines.backtest import backtest
from pipelines.ingest.recording import read_recording
from pipelines.places import Place, read_note
from pipelines.samples import RAMP, WARM, sample
from pipelines.settings import parse_slo
from pipelines.warmth import read_warm
from schemas.topics import FORECASTS, OUTPUTS

pytestmark = pytest.mark.slow

CONFIG = """[forecast]
coarse_replications = 1
fine_replications = 2
scenarios = ["baseline"]
insight = false
"""


def environment(tmp_path: Path, **own: str) -> dict[str, str]:
    config = tmp_path / "twincast.toml"
    config.write_text(CONFIG)
    plain = {name: text for name, text in os.environ.items() if not name.startswith("TWINCAST_")}
    return plain | {"TWINCAST_CONFIG": str(config), "TWINCAST_CACHE_DIR": str(tmp_path / "cache")} | own


@contextmanager
def twincast(
    environ: dict[str, str], *arguments: str, stdout: int | IO[str] = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", *arguments],
        env=environ,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def left_behind(tmp_path: Path) -> list[str]:
    """Command lines of processes that still have the cache directory of this test in their environment."""
    mark = f"TWINCAST_CACHE_DIR={tmp_path / 'cache'}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def none_left(tmp_path: Path, within_s: float = 5.0) -> list[str]:
    deadline_s = time.monotonic() + within_s
    while (found := left_behind(tmp_path)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return found


def account(text: str) -> dict[str, str]:
    """The lines of the account by their first words."""
    return {line[:20].strip(): line[20:] for line in text.splitlines() if line[19:20] == " " and line[:1].isalpha()}


def test_on_the_embedded_log_it_ends_by_itself_with_an_account(tmp_path: Path) -> None:
    environ = environment(tmp_path, TWINCAST_BROKER="embedded")
    with twincast(environ, "demo", "--speed", "25") as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    assert "broker: the embedded log, which is not a broker" in out
    told = account(out)
    assert int(told["forecasts made"].split(",")[0]) == 72
    assert re.match(r"[+-]\d\.\d\d against persistence, \d+ windows", told["skill"])
    assert re.match(r"\d+\.\d % of \d+ cells", told["inside the interval"])
    assert re.match(r"\d+\.\d % mean of \d+ steps", told["step-cost error"])
    assert "before it happened" in told["SLO breach"]
    records, outcomes = told["records in"].split("=")
    assert int(records) == sum(int(number) for number in re.findall(r"\d+", outcomes)) > 20_000
    assert none_left(tmp_path) == []


def test_broken_off_it_still_balances(tmp_path: Path) -> None:
    environ = environment(tmp_path, TWINCAST_BROKER="embedded")
    with twincast(environ, "demo", "--speed", "10", "--seconds", "6") as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    records, outcomes = account(out)["records in"].split("=")
    assert int(records) == sum(int(number) for number in re.findall(r"\d+", outcomes)) > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", ["work per forecast", "playing"])
def test_broken_off_at_any_moment_it_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, after: str
) -> None:
    environ = environment(tmp_path, TWINCAST_BROKER="embedded", PYTHONUNBUFFERED="1")
    with twincast(environ, "demo") as process:
        if process.stdout is None:
            raise AssertionError("no output")
        for line in process.stdout:
            if after in line:
                break
        time.sleep(1.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert "Traceback" not in err
    assert process.returncode == 0, err
    assert "stopped" in out
    assert none_left(tmp_path) == []


@pytest.mark.parametrize("wait_s", [0.2, 0.6, 1.5])
def test_ctrl_c_while_it_is_still_loading_shows_no_traceback(tmp_path: Path, wait_s: float) -> None:
    with twincast(environment(tmp_path, TWINCAST_BROKER="embedded"), "demo") as process:
        time.sleep(wait_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert "Traceback" not in err
    assert process.returncode in (0, 130, -signal.SIGINT)  # the last: Python itself was not yet there to answer
    assert none_left(tmp_path) == []


@pytest.mark.kafka
def test_through_kafka_it_writes_what_a_backtest_writes_and_a_scheduler_sees_it_at_once(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    environ = environment(tmp_path, TWINCAST_BOOTSTRAP=kafka_bootstrap)
    with twincast(environ, "demo", "--speed", "20") as process:
        place = noted_place(tmp_path, process)
        watch_environ = {name: text for name, text in environ.items() if name != "TWINCAST_BOOTSTRAP"}
        with open(tmp_path / "seen", "w") as file, twincast(watch_environ, "watch", "--json", stdout=file) as watching:
            _, err = process.communicate(timeout=110)
            watching.send_signal(signal.SIGINT)
            watching.communicate(timeout=20)
    assert process.returncode == 0, err
    assert place.namespace.startswith("demo-")
    stage = Stage(place, tmp_path, CONFIG)
    recording = read_recording(sample(RAMP))
    replay = backtest(
        recording,
        stage.settings.core(recording.deployment),
        slos=(parse_slo("ttft_s:0.95:0.5"),),
        warm=read_warm(sample(WARM)),
    )
    for topic in OUTPUTS:
        expected = [message.value for message in replay.outputs if message.topic == topic.name]
        assert [record.value for record in stage.records(topic.name)] == expected
    shown = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    written = stage.records(FORECASTS.name)
    assert len(shown) >= len(written) - 4  # those made before the second terminal was there
    late_s = sorted((line["shown_us"] - line["made_us"]) / 1e6 for line in shown)
    assert late_s[int(0.9 * len(late_s))] < 1.0
    assert none_left(tmp_path) == []


def noted_place(tmp_path: Path, process: subprocess.Popen[str]) -> Place:
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s and process.poll() is None:
        place = read_note(tmp_path / "cache")
        if place is not None:
            return place
        time.sleep(0.05)
    raise AssertionError("the demo left no note of its place")
