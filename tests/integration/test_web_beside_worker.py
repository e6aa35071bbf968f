"""The page beside a worker: it comes with it, goes with it however that ends, and comes back when it alone ends."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_process import Stage, recording_of

from pipelines.playback import messages_of

pytestmark = pytest.mark.slow


def address(place: Path, number: int = -1) -> str | None:
    """The `number`-th address that the worker's log tells."""
    found = re.findall(r"the page: (http://\S+)", "".join(p.read_text() for p in place.glob("worker-*.log")))
    return found[number] if len(found) > (number if number >= 0 else -number - 1) else None


def answers(url: str) -> bytes:
    try:
        with urllib.request.urlopen(f"{url}api/fleet", timeout=5.0) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return b""


def until(condition: Callable[[], object], within_s: float = 40.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError("it did not come about in time")
        time.sleep(0.1)


def page_pid(place: Path) -> int | None:
    """The process that serves the page of this place."""
    mark = str(place / "cache").encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if b"\0web\0" in (directory / "cmdline").read_bytes() and mark in (directory / "environ").read_bytes():
                return int(directory.name)
        except OSError:
            continue
    return None


def test_the_page_comes_and_goes_with_the_worker_and_comes_back_alone(tmp_path: Path) -> None:
    with Stage.on_files(tmp_path) as stage:
        stage.play(messages_of(recording_of(30.0)))
        worker = stage.worker(0, "--web", "0")
        until(lambda: address(tmp_path))
        first = address(tmp_path) or ""
        until(lambda: b'"breach_probability"' in answers(first))
        os.kill(page_pid(tmp_path) or 0, signal.SIGKILL)
        until(lambda: address(tmp_path, 1))
        second = address(tmp_path, 1) or ""
        until(lambda: b'"deployment":"d"' in answers(second))
        worker.kill()
        until(lambda: answers(second) == b"" and page_pid(tmp_path) is None, 10.0)


@pytest.mark.parametrize(
    "command", [["web", "0.0.0.0:0"], ["up", "--web", "0.0.0.0:0"], ["demo", "--web", "0.0.0.0:0"]]
)
def test_beyond_this_machine_every_command_wants_a_token(tmp_path: Path, command: list[str]) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TWINCAST_")}
    environ |= {
        "TWINCAST_CACHE_DIR": str(tmp_path),
        "TWINCAST_BROKER": "embedded",
        "TWINCAST_DATA_DIR": str(tmp_path / "log"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *command], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "TWINCAST_WEB_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr
