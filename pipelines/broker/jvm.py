"""A real Apache Kafka on the JVM: one KRaft node on loopback, in a directory of ours. Fetches nothing, chooses nothing.

Law: after `stop`, `kill`, the end of a `with` block, or the death of this process in any way, no JVM is left.
Between `start` and `stop` the address does not change, through `kill` and `restart` too.
"""

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Self

from pipelines.broker.settings import LOOPBACK, broker_properties
from pipelines.errors import ConfigError

READY = "Kafka Server started"
PORT_TAKEN = "Address already in use"
START_ATTEMPTS = 4
"""A free port can be taken by another program between our look and the JVM's start."""
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""A small broker on few cores: a light collector and the quick compiler start it a quarter sooner."""


class PortTakenError(ConfigError):
    """The chosen port is in use."""


class StartFailedError(ConfigError):
    """The JVM did not become a broker; its log, which the text names, is kept."""


class JvmKafka:
    """One broker; not for several threads at once.

    `data_dir` None means a directory that goes when the broker stops. An existing one is used again, with the
    records in it. `port` 0 means any free one. All errors are ConfigError, one line each.

        with JvmKafka(classpath, java=find_java(settings)) as broker:
            broker.bootstrap  # "127.0.0.1:41233"
    """

    def __init__(
        self,
        classpath: str,
        *,
        java: Path,
        data_dir: Path | None = None,
        port: int = 0,
        heap_mb: int = 512,
        startup_timeout_s: float = 60.0,
    ) -> None:
        self._classpath = classpath
        self._java = java
        self._wanted_dir = data_dir
        self._wanted_port = port
        self._heap_mb = heap_mb
        self._startup_timeout_s = startup_timeout_s
        self._dir: Path | None = None
        self._ports: tuple[int, int] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self.pid = 0
        """Process id of the JVM, of the last one where none runs."""
        self.started_in_s = 0.0
        """Wall time of the last start, formatting included."""

    @property
    def bootstrap(self) -> str:
        """host:port for clients. Raises ConfigError before the first start."""
        if self._ports is None:
            raise ConfigError("the broker has no address before it is started; call start() first")
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def running(self) -> bool:
        """Whether the JVM lives, paused or not."""
        return self._guard is not None and self._guard.poll() is None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Start and wait until the broker serves. Does nothing while it runs. Keeps its address once it had one."""
        if self.running:
            return self
        began_s = time.monotonic()
        try:
            self._start()
        except StartFailedError:
            raise
        except BaseException:
            if not self.started_in_s:
                self.stop()
            raise
        self.started_in_s = time.monotonic() - began_s
        return self

    def _start(self) -> None:
        directory = self._prepare_dir()
        fixed = self._ports is not None or self._wanted_port != 0
        for attempt in range(START_ATTEMPTS):
            self._ports = ports = self._ports or self._choose_ports()
            try:
                self._start_once(directory, ports)
                return
            except PortTakenError:
                if fixed or attempt + 1 == START_ATTEMPTS:
                    raise
                self._ports = None

    def stop(self, timeout_s: float = 20.0) -> None:
        """Shut down cleanly, by force after the time-out, and give up a directory of its own. May be called twice."""
        if self.running:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            if not self._ended_within(timeout_s):
                self.kill()
        if self._wanted_dir is None and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None
        self._ports = None

    def kill(self) -> None:
        """SIGKILL, as a crash; records and address stay for `restart`."""
        if self.running:
            self._signal(signal.SIGKILL)
            self._ended_within(10.0)

    def restart(self) -> Self:
        """Start again after `kill` on the same address and records. A running broker is killed first."""
        self.kill()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended by itself meanwhile
                self._guard.stdin.write(number.name.encode() + b"\n")
                self._guard.stdin.flush()

    def _ended_within(self, timeout_s: float) -> bool:
        if self._guard is None:
            return True
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        return True

    def _prepare_dir(self) -> Path:
        if self._dir is None and self._wanted_dir is None:
            self._dir = Path(tempfile.mkdtemp(prefix="twincast-kafka-"))
        elif self._wanted_dir is not None:
            self._dir = require_writable(self._wanted_dir)
        if self._dir is None:
            raise ConfigError("the broker has no directory; name one with TWINCAST_BROKER_DIR")
        return self._dir

    def _choose_ports(self) -> tuple[int, int]:
        """Ports for clients and for the controller. Raises ConfigError where a wanted one is taken."""
        with socket.socket() as client, socket.socket() as controller:
            try:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                client.bind((LOOPBACK, self._wanted_port))
            except OSError as error:
                raise port_taken(self._wanted_port, error.strerror or str(error)) from error
            controller.bind((LOOPBACK, 0))
            return client.getsockname()[1], controller.getsockname()[1]

    def _start_once(self, directory: Path, ports: tuple[int, int]) -> None:
        config = directory / "server.properties"
        config.write_text(server_properties(directory, ports))
        if not (directory / "logs" / "meta.properties").is_file():
            self._format(config)
        log_path = directory / "kafka.log"
        scratch_dir = "" if self._wanted_dir else str(directory)
        java = self._java_command("kafka.Kafka", str(config))
        guard = str(resources.files("pipelines.broker").joinpath("guard.py"))
        with open(log_path, "ab") as log:
            log_from = log.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard, scratch_dir, *java],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we then stop the broker
            )
        if self._guard.stdout is None:
            raise ConfigError("the guard process has no output; this is a fault of the program")
        with self._guard.stdout as told:
            self.pid = int(told.readline().split()[-1])
        try:
            self._await_ready(log_path, log_from)
        except BaseException:
            self.kill()
            raise

    def _await_ready(self, log_path: Path, log_from: int) -> None:
        deadline_s = time.monotonic() + self._startup_timeout_s
        while True:
            ended = not self.running
            text = read_from(log_path, log_from)
            if READY in text:
                return
            if ended:
                self._ended_within(0.0)
                raise start_failure(text, log_path, self._ports)
            if time.monotonic() > deadline_s:
                raise StartFailedError(
                    f"Kafka was not ready within {self._startup_timeout_s:g} s; see {log_path}, or raise "
                    "broker.startup_timeout_s"
                )
            time.sleep(0.03)

    def _format(self, config: Path) -> None:
        # The first bits are fixed: an id that begins with a dash would be read as an option.
        cluster_id = "T" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:].rstrip("=")
        command = self._java_command(
            "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster_id, "-c", str(config)
        )
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=self._startup_timeout_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{self._java} cannot format Kafka's directory ({error}); try again") from error
        if ended.returncode != 0:
            last = (ended.stdout + ended.stderr).strip().splitlines()[-1:] or ["it printed no reason"]
            raise ConfigError(f"Kafka cannot format {config.parent} ({last[0]}); choose another TWINCAST_BROKER_DIR")

    def _java_command(self, *words: str) -> list[str]:
        log_config = resources.files("pipelines.broker").joinpath("log4j2.xml")
        return [
            str(self._java),
            f"-Xmx{self._heap_mb}m",
            *JVM_FLAGS,
            f"-Dlog4j2.configurationFile={log_config}",
            "-cp",
            self._classpath,
            *words,
        ]


def server_properties(directory: Path, ports: tuple[int, int]) -> str:
    """The text of server.properties. Listeners are on loopback only."""
    client, controller = (f"{LOOPBACK}:{port}" for port in ports)
    lines = broker_properties() | {
        "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{client}",
        "controller.quorum.bootstrap.servers": controller,
        "log.dirs": str(directory / "logs").replace("\\", "\\\\"),
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def require_writable(directory: Path) -> Path:
    """Make the directory, absolute. Raises ConfigError where files cannot be written in it."""
    path = directory.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot write to the broker's directory {path} ({reason}); set TWINCAST_BROKER_DIR to one of yours"
        ) from error


def port_taken(port: int, reason: str) -> PortTakenError:
    """The error for a port that cannot be had."""
    return PortTakenError(
        f"port {port} on {LOOPBACK} cannot be used ({reason}); stop the other program, or set TWINCAST_BROKER_PORT "
        "to another (0: any free one)"
    )


def start_failure(text: str, log_path: Path, ports: tuple[int, int] | None) -> ConfigError:
    """What to say when the JVM ended before it was ready, from what it logged."""
    if PORT_TAKEN in text and ports:
        return port_taken(ports[0], PORT_TAKEN)
    if "Failed to acquire lock" in text:
        return ConfigError(
            f"another broker uses {log_path.parent}; stop it, or set TWINCAST_BROKER_DIR to another directory"
        )
    lines = [line for line in text.splitlines() if " ERROR " in line or line.startswith(("Error", "Exception"))]
    last = (lines or text.strip().splitlines() or ["it printed nothing"])[-1]
    return StartFailedError(f"Kafka ended while starting: {last[:300]}; see {log_path}")


def read_from(path: Path, offset: int) -> str:
    """Text of a file from a byte on."""
    with open(path, "rb") as file:
        file.seek(offset, os.SEEK_SET)
        return file.read().decode(errors="replace")
