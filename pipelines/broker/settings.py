"""What a broker of ours is started with. Reads no environment itself: it is handed one; starts nothing.

Law: the settings that matter to a client are the same on the JVM and in Docker, since both are made from
`broker_properties`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pipelines.errors import ConfigError

BrokerKind = Literal["cluster", "jvm", "docker", "embedded"]
KAFKA_VERSION = "4.1.2"
"""As in pom.xml and docker-compose.yml; a test holds the three together."""
DOCKER_IMAGE = f"apache/kafka:{KAFKA_VERSION}"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """How to find or start a broker.

    `bootstrap` is the user's own cluster, host:port; `only` restricts the choice to one kind; `data_dir` is where
    a broker of ours keeps its logs, None for a directory that goes when the broker stops; `port` 0 means any free
    one; `search_path` is a PATH to look for java, mvn and docker in, None for the process's own.
    """

    cache_dir: Path
    bootstrap: str | None = None
    only: BrokerKind | None = None
    data_dir: Path | None = None
    port: int = 0
    heap_mb: int = 512
    startup_timeout_s: float = 60.0
    resolve_timeout_s: float = 240.0
    java_home: str | None = None
    search_path: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"broker.port must be 0 (any free port) to 65535, got {self.port}; choose another")
        if self.heap_mb < 128:
            raise ConfigError(f"broker.heap_mb must be at least 128, got {self.heap_mb}; raise it")
        for name in ("startup_timeout_s", "resolve_timeout_s"):
            seconds = getattr(self, name)
            if not 0 < seconds < 86_400:
                raise ConfigError(f"broker.{name} must be > 0 and under a day, got {seconds}; correct it")
        if self.only is not None and self.only not in get_args(BrokerKind):
            expected = ", ".join(get_args(BrokerKind))
            raise ConfigError(f"TWINCAST_BROKER must be one of {expected}, got {self.only!r}; correct it or unset it")


def broker_settings(environ: Mapping[str, str]) -> BrokerSettings:
    """Settings from an environment: TWINCAST_BOOTSTRAP, _BROKER, _CACHE_DIR, _BROKER_DIR, _BROKER_PORT.

    >>> broker_settings({"HOME": "/home/ann"}).cache_dir.as_posix()
    '/home/ann/.cache/twincast'
    """
    own = {name.removeprefix("TWINCAST_"): text for name, text in environ.items() if text}
    port = own.get("BROKER_PORT", "0")
    if not port.isdecimal():
        raise ConfigError(f"TWINCAST_BROKER_PORT must be a port number, got {port!r}; correct it or unset it")
    return BrokerSettings(
        cache_dir=cache_dir(environ),
        bootstrap=own.get("BOOTSTRAP"),
        only=own.get("BROKER"),  # type: ignore[arg-type]  # checked where it is built
        data_dir=Path(own["BROKER_DIR"]) if "BROKER_DIR" in own else None,
        port=int(port),
        java_home=environ.get("JAVA_HOME") or None,
        search_path=environ.get("PATH"),
    )


def cache_dir(environ: Mapping[str, str]) -> Path:
    """TWINCAST_CACHE_DIR, else XDG_CACHE_HOME/twincast, else ~/.cache/twincast."""
    if environ.get("TWINCAST_CACHE_DIR"):
        return Path(environ["TWINCAST_CACHE_DIR"])
    if environ.get("XDG_CACHE_HOME"):
        return Path(environ["XDG_CACHE_HOME"]) / "twincast"
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return home / ".cache" / "twincast"


def broker_properties() -> dict[str, str]:
    """Settings of a single KRaft node that do not depend on where it runs; names as in server.properties.

    No topic is created by asking for it: one made with another partition count than ours sends Faust into an
    endless restart. A group starts at once instead of waiting 3 s for more members. A broker killed and started again
    has to wait until its former self is given up: 3 s, not 9.
    """
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }


def environment_name(property_name: str) -> str:
    """The variable that sets a property in the apache/kafka image.

    >>> environment_name("auto.create.topics.enable")
    'KAFKA_AUTO_CREATE_TOPICS_ENABLE'
    """
    return "KAFKA_" + property_name.replace("_", "__").replace("-", "___").replace(".", "_").upper()
