"""Which broker is chosen, what is said of those passed over, and what each complaint looks like. Starts none."""

import itertools
import os
import re
import stat
from importlib import resources
from pathlib import Path

import pytest

from pipelines.broker import BrokerSettings, broker_settings, choose_broker, find_java, kafka_classpath
from pipelines.broker.docker import container_environment
from pipelines.broker.settings import DOCKER_IMAGE, KAFKA_VERSION
from pipelines.errors import ConfigError

ROOT = Path(__file__).parents[2]
JAVA = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
OLD_JAVA = "echo 'java version \"1.8.0_401\"' >&2"
MAVEN = 'for word; do case "$word" in -Dmdep.outputFile=*) echo "$JAR" > "${word#*=}";; esac; done; echo x >> "$CALLS"'
FAILING_MAVEN = "echo '[ERROR] Could not transfer artifact: network is unreachable'; echo '[ERROR] more'; exit 1"
DOCKER = "echo 28.2"
DEAD_DOCKER = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH of our own, and settings that look there."""
    directory = tmp_path / "bin"
    directory.mkdir()
    jar = tmp_path / "kafka.jar"
    jar.touch()
    monkeypatch.setenv("JAR", str(jar))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return directory


def settings_for(tools: Path, **changes) -> BrokerSettings:
    return BrokerSettings(cache_dir=tools.parent / "cache", search_path=f"{tools}", **changes)


@pytest.mark.parametrize(("cluster", "java", "docker"), list(itertools.product([True, False], repeat=3)))
def test_the_first_that_works_is_chosen_and_the_others_are_told(tools, cluster, java, docker):
    if java:
        program(tools, "java", JAVA)
        program(tools, "mvn", MAVEN)
    if docker:
        program(tools, "docker", DOCKER)
    choice = choose_broker(settings_for(tools, bootstrap="10.1.1.1:9092" if cluster else None))
    works = {"cluster": cluster, "jvm": java, "docker": docker, "embedded": True}
    order = list(works)
    expected = next(kind for kind in order if works[kind])
    assert choice.kind == expected
    assert [over.kind for over in choice.passed_over] == order[: order.index(expected)]
    assert len(choice.lines()) == 1 + len(choice.passed_over)
    assert all("\n" not in line for line in choice.lines())


def test_an_own_cluster_is_told_with_its_address(tools):
    choice = choose_broker(settings_for(tools, bootstrap="kafka.example:9094"))
    assert choice.lines() == ["broker: your own cluster at kafka.example:9094"]


def test_a_demanded_kind_is_not_replaced_by_another(tools):
    program(tools, "docker", DEAD_DOCKER)
    with pytest.raises(ConfigError, match="Cannot connect to the Docker daemon"):
        choose_broker(settings_for(tools, only="docker"))
    assert choose_broker(settings_for(tools, only="embedded")).passed_over == ()


def test_without_java_the_reason_is_java(tools):
    with pytest.raises(ConfigError, match="no java on the PATH; install a Java 17"):
        find_java(settings_for(tools))


def test_an_old_java_is_named_with_its_version(tools):
    program(tools, "java", OLD_JAVA)
    with pytest.raises(ConfigError, match=r"is Java 8, Kafka .* needs 17 or newer"):
        find_java(settings_for(tools))


def test_java_home_goes_before_the_path(tools, tmp_path):
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    program(home / "bin", "java", JAVA)
    program(tools, "java", OLD_JAVA)
    assert find_java(settings_for(tools, java_home=str(home))) == home / "bin" / "java"


def test_maven_is_asked_once_and_again_only_when_a_jar_is_gone(tools, tmp_path):
    program(tools, "mvn", MAVEN)
    settings, told = settings_for(tools), []
    calls = tmp_path / "calls"
    first = kafka_classpath(settings, told.append)
    assert kafka_classpath(settings, told.append) == first == str(tmp_path / "kafka.jar")
    assert (calls.read_text(), len(told)) == ("x\n", 1)
    (tmp_path / "kafka.jar").unlink()
    with pytest.raises(ConfigError, match="cannot resolve"):
        kafka_classpath(settings, told.append)
    assert calls.read_text() == "x\nx\n"


def test_mavens_own_first_complaint_is_passed_on(tools):
    program(tools, "mvn", FAILING_MAVEN)
    with pytest.raises(ConfigError) as refusal:
        kafka_classpath(settings_for(tools), lambda line: None)
    text = str(refusal.value)
    assert "Could not transfer artifact: network is unreachable" in text
    assert "more" not in text
    assert "settings.xml" in text


def test_without_maven_the_reason_is_maven(tools):
    with pytest.raises(ConfigError, match="no mvn on the PATH"):
        kafka_classpath(settings_for(tools), lambda line: None)


def test_an_unusable_cache_directory_is_named(tools, tmp_path):
    (tmp_path / "file").touch()
    settings = BrokerSettings(cache_dir=tmp_path / "file" / "cache", search_path=str(tools))
    with pytest.raises(ConfigError, match=r"cannot write to the cache directory .*; set TWINCAST_CACHE_DIR"):
        kafka_classpath(settings, lambda line: None)


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({"TWINCAST_BROKER": "rabbit"}, "must be one of cluster, jvm, docker, embedded, got 'rabbit'"),
        ({"TWINCAST_BROKER_PORT": "http"}, "must be a port number, got 'http'"),
        ({"TWINCAST_BROKER_PORT": "70000"}, r"must be 0 \(any free port\) to 65535, got 70000"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_read(environ, complaint):
    with pytest.raises(ConfigError, match=complaint):
        broker_settings(environ)


@pytest.mark.parametrize("name", ["startup_timeout_s", "resolve_timeout_s"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_time_limits_are_positive_and_finite(name, seconds):
    with pytest.raises(ConfigError, match=name):
        BrokerSettings(cache_dir=Path("cache"), **{name: seconds})


def test_the_cache_follows_the_xdg_convention():
    assert broker_settings({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/twincast")
    assert broker_settings({"HOME": "/h", "TWINCAST_CACHE_DIR": "/t"}).cache_dir == Path("/t")


def test_compose_file_and_docker_choice_set_the_same_environment():
    text = (ROOT / "docker-compose.yml").read_text()
    compose = dict(re.findall(r'^ {6}(KAFKA_\w+): "(.*)"$', text, flags=re.MULTILINE))
    own = container_environment(9092)
    assert {name: compose.get(name) for name in own} == own
    assert set(compose) - set(own) == {"KAFKA_LOG_DIRS", "KAFKA_HEAP_OPTS"}


def test_one_version_of_kafka_everywhere():
    pom = resources.files("pipelines.broker").joinpath("pom.xml").read_text()
    assert f"<kafka.version>{KAFKA_VERSION}</kafka.version>" in pom
    assert f"image: {DOCKER_IMAGE}\n" in (ROOT / "docker-compose.yml").read_text()


def test_settings_read_only_the_environment_they_are_given(monkeypatch):
    monkeypatch.setitem(os.environ, "TWINCAST_BOOTSTRAP", "elsewhere:1")
    assert broker_settings({"HOME": "/h"}).bootstrap is None
