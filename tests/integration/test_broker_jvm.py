"""The broker on the JVM: its life from start to stop, and what is said when it cannot start."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pipelines.broker import JvmKafka, broker_settings, choose_broker
from pipelines.errors import ConfigError

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

OWNER = """
import os, sys, time
from pathlib import Path
from pipelines.broker import BrokerSettings, broker_settings, choose_broker, JvmKafka
choice = choose_broker(broker_settings(os.environ))
with JvmKafka(choice.classpath, java=choice.java) as broker:
    print(broker.pid, broker._dir, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def jvm():
    """Makes brokers of our own on the JVM, apart from the one that other tests share."""
    settings = broker_settings({name: text for name, text in os.environ.items() if name != "TWINCAST_BOOTSTRAP"})
    choice = choose_broker(settings)
    if choice.kind != "jvm":
        pytest.skip("no Apache Kafka on the JVM here: " + "; ".join(over.reason for over in choice.passed_over))

    def make(**changes) -> JvmKafka:
        return JvmKafka(choice.classpath, java=choice.java, **changes)

    return make


def accepts(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((host, int(port))) == 0


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_stopped_broker_leaves_no_process_and_no_directory(jvm):
    with jvm() as broker:
        address, pid, directory = broker.bootstrap, broker.pid, broker._dir
        assert address.startswith("127.0.0.1:")
        assert accepts(address)
        assert exists(pid)
    assert not exists(pid)
    assert not accepts(address)
    assert not directory.exists()
    broker.stop()


def test_a_killed_broker_comes_back_at_its_address_and_a_paused_one_stops(jvm, tmp_path):
    with jvm(data_dir=tmp_path / "kafka") as broker:
        address, first = broker.bootstrap, broker.pid
        broker.kill()
        assert not exists(first)
        assert not accepts(address)
        broker.restart()
        assert broker.bootstrap == address
        assert accepts(address)
        broker.pause()
        broker.stop()
        assert not broker.running
    formatted = (tmp_path / "kafka" / "logs" / "meta.properties").read_text()
    with jvm(data_dir=tmp_path / "kafka") as again:
        assert accepts(again.bootstrap)
    assert (tmp_path / "kafka" / "logs" / "meta.properties").read_text() == formatted


def test_a_taken_port_is_named_with_the_next_step(jvm, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 cannot be used .*; stop the other program"):
            jvm(port=port).start()
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_directory_is_named_with_the_next_step(jvm, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to the broker's directory .*; set TWINCAST_BROKER_DIR"):
        jvm(data_dir=tmp_path / "file" / "kafka").start()


def test_a_second_broker_on_the_same_directory_is_refused(jvm, tmp_path):
    with (
        jvm(data_dir=tmp_path) as first,
        pytest.raises(ConfigError, match="another broker uses"),
    ):
        jvm(data_dir=tmp_path).start()
    assert not first.running


def test_a_jvm_that_cannot_start_is_quoted_in_one_line_and_leaves_nothing(jvm, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigError) as refusal:
        JvmKafka("nothing.jar", java=Path("/bin/false")).start()
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_broker_with_a_spoiled_directory_is_quoted_and_its_log_kept(jvm, tmp_path):
    formatted = tmp_path / "logs" / "meta.properties"
    formatted.parent.mkdir()
    formatted.touch()
    with pytest.raises(ConfigError, match=r"Kafka ended while starting: .*; see .*kafka\.log") as refusal:
        jvm(data_dir=tmp_path).start()
    assert "\n" not in str(refusal.value)
    assert (tmp_path / "kafka.log").stat().st_size > 0


def test_ctrl_c_while_starting_leaves_nothing(jvm, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broker = jvm()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(broker, "_await_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert not exists(broker.pid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_owner_may_die_in_any_way_and_no_jvm_is_left(jvm, number):
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        pid, directory = owner.stdout.readline().split()
        owner.send_signal(number)
        owner.wait(20)
    deadline_s = time.monotonic() + 8.0
    while exists(int(pid)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not exists(int(pid))
    time.sleep(0.3)
    assert not Path(directory.decode()).exists()
