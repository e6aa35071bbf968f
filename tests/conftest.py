"""A real Apache Kafka for the tests that ask for one: started once per run, skipped with the reason elsewhere."""

import os
from collections.abc import Iterator

import pytest

from pipelines.broker import BrokerChoice, broker_settings, choose_broker, running_broker
from pipelines.errors import ConfigError


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
