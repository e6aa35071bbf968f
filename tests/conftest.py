"""A real Apache Kafka for the tests that ask for one: started once per run, skipped with the reason elsewhere."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pipelines.broker import BrokerChoice, broker_settings, choose_broker, running_broker
from pipelines.broker.docker import container_environment, free_port
from pipelines.broker.settings import DOCKER_IMAGE
from pipelines.errors import ConfigError

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("TWINCAST_HYPOTHESIS", "repeatable"))
"""The same examples in every run, so that a failure is the change's; `TWINCAST_HYPOTHESIS=random` searches on."""
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a run in the background: Ctrl-C of a child would be ignored too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kafka_choice() -> BrokerChoice:
    """The broker that this machine allows: a cluster named in the environment, the JVM, or Docker."""
    try:
        choice = choose_broker(broker_settings(os.environ))
    except ConfigError as error:
        pytest.skip(f"no Apache Kafka here: {error}")
    if choice.kind == "embedded":
        pytest.skip("no Apache Kafka here: " + "; ".join(over.reason for over in choice.passed_over))
    return choice


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_choice: BrokerChoice) -> Iterator[str]:
    """host:port of a running Apache Kafka, one for the whole run. Tests use topics with names of their own."""
    with running_broker(kafka_choice) as bootstrap:
        yield str(bootstrap)


@pytest.fixture(scope="session")
def docker_bootstrap() -> Iterator[str]:
    """host:port of an Apache Kafka in a container with the environment of docker-compose.yml."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_port()
    container = DockerContainer(DOCKER_IMAGE).with_bind_ports(port, port).with_envs(**container_environment(port))
    with container.waiting_for(LogMessageWaitStrategy("Kafka Server started")):
        yield f"127.0.0.1:{port}"
