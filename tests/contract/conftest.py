"""The logs that the contract suite is run on.

`kafka` is the broker that this machine allows (a cluster named in the environment, the JVM, Docker), `docker` one in a
container whatever else there is.
"""

import os
from pathlib import Path

import pytest
from log_bench import Bench

from pipelines.broker import broker_settings
from pipelines.broker.docker import find_docker
from pipelines.errors import ConfigError
from pipelines.kafka.access import ClusterAccess
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.local.embedded import LocalLog
from pipelines.local.files import FileStore
from pipelines.local.memory import MemoryStore


def no_docker() -> str | None:
    """Why there is no Docker engine here; None where there is one."""
    try:
        find_docker(broker_settings(os.environ))
    except ConfigError as error:
        return f"no Apache Kafka in Docker here: {error}"
    return None


NO_DOCKER = no_docker()
KAFKAS = [pytest.param(name, marks=pytest.mark.kafka) for name in ("kafka", *([] if NO_DOCKER else ["docker"]))]


@pytest.fixture(params=["memory", "file", *KAFKAS])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param in ("kafka", "docker"):
        access = ClusterAccess(bootstrap=request.getfixturevalue(f"{request.param}_bootstrap"))
        return Bench(lambda: KafkaLog(access))
    if request.param == "file":
        return Bench(lambda: LocalLog(FileStore(tmp_path / "log")))
    store = MemoryStore()
    return Bench(lambda: LocalLog(store))


@pytest.fixture
def a_container(request: pytest.FixtureRequest) -> str:
    """Address of a broker in a container; skips with the reason where there is none."""
    if NO_DOCKER is not None:
        pytest.skip(NO_DOCKER)
    return str(request.getfixturevalue("docker_bootstrap"))
