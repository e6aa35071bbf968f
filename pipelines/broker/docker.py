"""Apache Kafka in a container of the apache/kafka image, with the settings of the JVM broker. Builds no image.

Law: the container is named after this process and goes with `stop`; Docker removes it (`--rm`) however it ends.
"""

import os
import shutil
import socket
import subprocess
import time
from types import TracebackType
from typing import Self

from pipelines.broker.settings import DOCKER_IMAGE, LOOPBACK, BrokerSettings, broker_properties, environment_name
from pipelines.errors import ConfigError

CONTROLLER_PORT = 9093
PROBE_TIMEOUT_S = 8.0


def find_docker(settings: BrokerSettings) -> str:
    """The docker program, where an engine answers. Raises ConfigError otherwise."""
    docker = shutil.which("docker", path=settings.search_path)
    if docker is None:
        raise ConfigError("no docker on the PATH; install Docker, or use another broker")
    try:
        told = subprocess.run(
            [docker, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{docker} does not answer ({error}); start the Docker engine") from error
    if told.returncode != 0:
        reason = (told.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"docker is here but no engine answers ({reason}); start the Docker engine")
    return docker


def container_environment(port: int) -> dict[str, str]:
    """Variables of the apache/kafka image for a node that clients on this machine reach at LOOPBACK:port.

    Any variable of ours replaces the image's own server.properties, so all that a node needs is here.
    """
    properties = broker_properties() | {
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://localhost:{CONTROLLER_PORT}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        # The image formats its storage for a fixed set of voters.
        "controller.quorum.voters": f"1@localhost:{CONTROLLER_PORT}",
    }
    return {environment_name(name): value for name, value in properties.items()}


class DockerKafka:
    """One broker in a container; the same verbs as JvmKafka has for a run from start to stop."""

    def __init__(self, docker: str, *, port: int = 0, heap_mb: int = 512, startup_timeout_s: float = 60.0) -> None:
        self._docker = docker
        self._port = port
        self._heap_mb = heap_mb
        self._startup_timeout_s = startup_timeout_s
        self._name = ""
        self.started_in_s = 0.0

    @property
    def bootstrap(self) -> str:
        """host:port for clients. Raises ConfigError before the first start."""
        if not self._name:
            raise ConfigError("the broker has no address before it is started; call start() first")
        return f"{LOOPBACK}:{self._port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Run the container and wait until Kafka says that it serves. Pulls the image the first time."""
        began_s = time.monotonic()
        self._port = self._port or free_port()
        self._name = f"twincast-kafka-{os.getpid()}-{self._port}"
        words = ["run", "--detach", "--rm", "--name", self._name, "--publish", f"{LOOPBACK}:{self._port}:{self._port}"]
        for name, value in container_environment(self._port).items():
            words += ["--env", f"{name}={value}"]
        words += ["--env", f"KAFKA_HEAP_OPTS=-Xmx{self._heap_mb}m", DOCKER_IMAGE]
        self._run(words, timeout_s=300.0)
        try:
            while "Kafka Server started" not in self._run(["logs", self._name], timeout_s=PROBE_TIMEOUT_S):
                if time.monotonic() - began_s > self._startup_timeout_s + 240.0:
                    raise ConfigError(f"Kafka in {self._name} was not ready in time; see docker logs {self._name}")
                time.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        self.started_in_s = time.monotonic() - began_s
        return self

    def stop(self) -> None:
        """Remove the container; nothing where none runs."""
        if self._name:
            subprocess.run([self._docker, "rm", "--force", self._name], capture_output=True, timeout=60, check=False)
            self._name = ""

    def _run(self, words: list[str], *, timeout_s: float) -> str:
        """Output of one docker command. Raises ConfigError with docker's last line where it fails."""
        try:
            ended = subprocess.run(
                [self._docker, *words], capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"docker {words[0]} did not end ({error}); check the Docker engine") from error
        if ended.returncode != 0:
            reason = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise ConfigError(f"docker {words[0]} failed: {reason}; check the Docker engine and {DOCKER_IMAGE}")
        return ended.stdout + ended.stderr


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
