"""The broker in a container, against a stand-in for the docker program that writes down what it is told."""

import stat

import pytest

from pipelines.broker.docker import DockerKafka, container_environment
from pipelines.broker.settings import DOCKER_IMAGE
from pipelines.errors import ConfigError

STAND_IN = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
case "$1" in
  run) [ -e "$(dirname "$0")/refuse" ] && { echo "Unable to find image" >&2; echo "denied" >&2; exit 125; }; exit 0;;
  logs) echo "INFO Kafka Server started";;
esac
"""


@pytest.fixture
def docker(tmp_path):
    path = tmp_path / "docker"
    path.write_text(STAND_IN)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def calls(docker) -> list[str]:
    return (docker.parent / "calls").read_text().splitlines()


def test_a_container_is_run_with_our_environment_on_loopback_and_removed(docker):
    with DockerKafka(str(docker), port=19092) as broker:
        assert broker.bootstrap == "127.0.0.1:19092"
        name = calls(docker)[0].split("--name ")[1].split()[0]
    run, *_, removal = calls(docker)
    assert "--detach --rm" in run
    assert "--publish 127.0.0.1:19092:19092" in run
    assert run.endswith(f"--env KAFKA_HEAP_OPTS=-Xmx512m {DOCKER_IMAGE}")
    assert all(f"--env {key}={value}" in run for key, value in container_environment(19092).items())
    assert removal == f"rm --force {name}"


def test_a_container_that_cannot_run_is_told_in_dockers_words(docker):
    (docker.parent / "refuse").touch()
    with pytest.raises(ConfigError, match="docker run failed: denied; check the Docker engine and apache/kafka"):
        DockerKafka(str(docker)).start()
