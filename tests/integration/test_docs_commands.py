"""Every command of the documents, run: in the order in which a reader would, on short recordings and a real broker.

What a rule of `doc_commands` says runs elsewhere is run by the test that it names.
"""

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doc_commands import DOCUMENTS, ROOT, Command, commands_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]
SHORT_US = {"ramp": 100_000_000, "steady": 240_000_000}
"""A window closes three minutes after its forecast, and `calibrate` needs one."""
RUN_TIMEOUT_S = 400.0
TELLS_TIMEOUT_S = 120.0
PORTS = ("9464", "9465", "8080")
RUNNABLE = [
    document
    for document in DOCUMENTS
    if any(command.rule and command.rule.how not in ("elsewhere", "set") for command in commands_of(document))
]


def shorten(source: Path, target: Path) -> None:
    """The beginning of a recording, which counts nothing beforehand."""
    target.mkdir(parents=True)
    with gzip.open(source / "requests.jsonl.gz") as lines:
        t0_us = newest_us(next(iter(lines)))
    meta = json.loads((source / "meta.json").read_text())
    (target / "meta.json").write_text(json.dumps(meta | {"counts": {}}))
    for file in source.glob("*.jsonl.gz"):
        with gzip.open(file) as lines, gzip.open(target / file.name, "wb", compresslevel=1) as out:
            out.writelines(line for line in lines if newest_us(line) <= t0_us + SHORT_US[source.name])


def newest_us(line: bytes) -> int:
    return max((int(found) for found in re.findall(rb'"(?:at_us|start_us)":(\d+)', line)), default=0)


@dataclass
class Desk:
    """A reader's folder: short samples, an environment, and programs that run in the background."""

    folder: Path
    environ: dict[str, str]
    bootstrap: str
    ports: dict[str, str] = field(default_factory=dict)

    def text_of(self, command: Command) -> str:
        text = command.text
        for old, new in (command.rule.swap if command.rule else ()) + tuple(self.ports.items()):
            text = text.replace(old, new)
        return text

    def set(self, text: str) -> None:
        name, _, value = text.removeprefix("export ").partition("=")
        self.environ[name] = self.bootstrap if name == "TWINCAST_BOOTSTRAP" else value

    def run(self, command: Command) -> None:
        found = subprocess.run(
            ["bash", "-c", self.text_of(command)], cwd=self.folder, env=self.environ, capture_output=True, text=True,
            timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
        rule = command.rule
        assert rule is not None
        assert found.returncode in rule.exits, (
            f"{command}: {found.returncode}\n{found.stdout[-800:]}{found.stderr[-800:]}"
        )
        assert "Traceback" not in found.stderr
        assert found.stdout or found.stderr

    @contextmanager
    def serving(self, command: Command) -> Iterator[None]:
        """Started, and has told what it should; interrupted at the end, and ends in order."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {self.text_of(command)}"], cwd=self.folder, env=self.environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        told: list[str] = []
        heard = threading.Event()
        assert command.rule is not None
        pattern = re.compile(command.rule.tells or ".")

        def read() -> None:
            for line in process.stdout or ():
                told.append(line)
                if pattern.search(line):
                    heard.set()
            heard.set()

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        try:
            assert heard.wait(TELLS_TIMEOUT_S), f"{command} told nothing of {pattern.pattern}: {''.join(told)[-800:]}"
            assert any(pattern.search(line) for line in told), "".join(told)[-800:]
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                ended = process.wait(60.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                ended = process.wait()
            reading.join(5.0)
            if process.stdout is not None:
                process.stdout.close()
        # An example script has no handler of its own for Ctrl-C; a command of ours ends without a traceback.
        if command.words:
            assert ended in (0, 1, 130), f"{command}: {ended}\n{''.join(told)[-800:]}"
            assert "Traceback" not in "".join(told)


@pytest.fixture
def desk(kafka_bootstrap: str, tmp_path: Path) -> Desk:
    if not (ROOT / "examples" / "recordings" / "ramp").exists():
        pytest.skip("no sample recordings here")
    examples = tmp_path / "examples"
    examples.mkdir()
    for each in (ROOT / "examples").iterdir():
        if each.name != "recordings":
            (examples / each.name).symlink_to(each)
    for name in ("ramp", "steady"):
        shorten(ROOT / "examples" / "recordings" / name, examples / "recordings" / name)
    binaries = Path(sys.executable).parent
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TWINCAST_")}
    environ |= {
        "PATH": f"{binaries}{os.pathsep}{environ['PATH']}",
        "TWINCAST_CACHE_DIR": str(tmp_path / "cache"),
        "TWINCAST_DATA_DIR": str(tmp_path / "data"),
        "TWINCAST_NAMESPACE": f"docs-{uuid.uuid4().hex[:8]}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "160",
    }
    free = {}
    for port in PORTS:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free[port] = str(probe.getsockname()[1])
    return Desk(tmp_path, environ, kafka_bootstrap, free)


@pytest.mark.parametrize("document", RUNNABLE, ids=lambda path: path.name)
def test_the_commands_of_a_document_run(document: Path, desk: Desk) -> None:
    began_s = time.monotonic()
    with ExitStack() as background:
        for command in commands_of(document):
            rule = command.rule
            if rule is None or rule.how == "elsewhere":
                continue
            if rule.how == "set":
                background.close()  # a new chapter
                desk.set(command.text)
            elif rule.how == "run":
                desk.run(command)
            elif rule.how == "serve":
                with desk.serving(command):
                    pass
            else:
                desk.environ["TWINCAST_NAMESPACE"] = ""
                background.enter_context(desk.serving(command))
                time.sleep(12.0)  # some forecasts
    assert time.monotonic() - began_s < 800.0
