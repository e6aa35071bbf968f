"""Which broker to use: the first that works of cluster, JVM, Docker, embedded log. Prints nothing.

Law: what was passed over is always told, with the reason; a cluster that the user named is never passed over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pipelines.broker.classpath import find_java, kafka_classpath
from pipelines.broker.docker import DockerKafka, find_docker
from pipelines.broker.jvm import JvmKafka
from pipelines.broker.settings import DOCKER_IMAGE, KAFKA_VERSION, BrokerKind, BrokerSettings
from pipelines.errors import ConfigError

NAMES: dict[BrokerKind, str] = {
    "cluster": "your own cluster",
    "jvm": f"Apache Kafka {KAFKA_VERSION} on the JVM",
    "docker": f"{DOCKER_IMAGE} in Docker",
    "embedded": "the embedded log, which is not a broker: one machine, one process per group",
}


@dataclass(frozen=True)
class PassedOver:
    """A kind of broker that was tried before the chosen one, and why it is not used."""

    kind: BrokerKind
    reason: str


@dataclass(frozen=True, kw_only=True)
class BrokerChoice:
    """The broker to use. `bootstrap` is known already for a cluster only; java, classpath, docker where needed."""

    kind: BrokerKind
    settings: BrokerSettings
    passed_over: tuple[PassedOver, ...] = ()
    bootstrap: str | None = None
    java: Path | None = None
    classpath: str | None = None
    docker: str | None = None

    def lines(self) -> list[str]:
        """What to tell a person: one line for the choice, one for each kind passed over."""
        where = f" at {self.bootstrap}" if self.bootstrap else ""
        chosen = f"broker: {NAMES[self.kind]}{where}"
        return [chosen, *(f"  not {NAMES[over.kind].split(',')[0]}: {over.reason}" for over in self.passed_over)]


def choose_broker(settings: BrokerSettings, tell: Callable[[str], None] = lambda line: None) -> BrokerChoice:
    """The first kind that works here. Starts nothing; may ask Maven for Kafka, of which `tell` hears a line.

    Raises ConfigError where `settings.only` names a kind that does not work, with that kind's reason.
    """
    kinds: tuple[BrokerKind, ...] = get_args(BrokerKind) if settings.only is None else (settings.only,)
    passed_over: list[PassedOver] = []
    for kind in kinds:
        try:
            return _try(kind, settings, tuple(passed_over), tell)
        except ConfigError as error:
            if settings.only is not None:
                raise
            passed_over.append(PassedOver(kind, str(error)))
    raise ConfigError("no broker can be used here; " + "; ".join(over.reason for over in passed_over))


def _try(
    kind: BrokerKind, settings: BrokerSettings, passed_over: tuple[PassedOver, ...], tell: Callable[[str], None]
) -> BrokerChoice:
    if kind == "cluster":
        if settings.bootstrap is None:
            raise ConfigError("TWINCAST_BOOTSTRAP is not set (to host:port)")
        return BrokerChoice(kind=kind, settings=settings, bootstrap=settings.bootstrap)
    if kind == "jvm":
        java = find_java(settings)
        classpath = kafka_classpath(settings, tell)
        return BrokerChoice(kind=kind, settings=settings, passed_over=passed_over, java=java, classpath=classpath)
    if kind == "docker":
        docker = find_docker(settings)
        return BrokerChoice(kind=kind, settings=settings, passed_over=passed_over, docker=docker)
    return BrokerChoice(kind=kind, settings=settings, passed_over=passed_over)


@contextmanager
def running_broker(choice: BrokerChoice) -> Iterator[str | None]:
    """Start what was chosen, hand out its bootstrap address (None for the embedded log), stop it at the end.

    A cluster of the user's is neither started nor stopped. Raises ConfigError where the start fails.
    """
    settings = choice.settings
    if choice.kind == "jvm" and choice.java is not None and choice.classpath is not None:
        with JvmKafka(
            choice.classpath,
            java=choice.java,
            data_dir=settings.data_dir,
            port=settings.port,
            heap_mb=settings.heap_mb,
            startup_timeout_s=settings.startup_timeout_s,
        ) as jvm:
            yield jvm.bootstrap
    elif choice.kind == "docker" and choice.docker is not None:
        with DockerKafka(
            choice.docker,
            port=settings.port,
            heap_mb=settings.heap_mb,
            startup_timeout_s=settings.startup_timeout_s,
        ) as container:
            yield container.bootstrap
    else:
        yield choice.bootstrap
