"""The command line: what a person can put right is one line on stderr and exit code 2; results alone are on stdout."""

import gzip
import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest

from pipelines.cli import main, parser
from pipelines.commands import NAMES, about, module_of
from pipelines.errors import ConfigError
from pipelines.samples import RAMP, sample
from schemas.topics import TOPICS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("TWINCAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TWINCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TWINCAST_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line on stderr of a command that must end with 2, say nothing on stdout, and show no traceback."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    lines = [line for line in told.err.splitlines() if line.startswith("twincast: ")]
    assert len(lines) == 1
    assert told.err.endswith(lines[0] + "\n")
    return lines[0]


def test_every_command_has_help_and_a_name_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(NAMES)) == len(NAMES)
    for name in NAMES:
        with pytest.raises(SystemExit) as ended:
            parser(name).parse_args([name, "--help"])
        assert ended.value.code == 0
        assert about(name) in " ".join(capsys.readouterr().out.split())
        assert about(name) == (module_of(name).__doc__ or "").split("\n")[0]
        assert about(name).endswith(".")


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"twincast \d+\.\d+\.\d+\n", capsys.readouterr().out)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_topics_are_created_once_and_checked_with_their_partitions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["topics", "create", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["created"]) == set(TOPICS)
    assert main(["topics", "create"]) == 0
    assert capsys.readouterr().out == "all topics are there\n"
    assert main(["topics", "check"]) == 0
    assert "twincast.requests.v1: 4 partitions" in capsys.readouterr().out
    monkeypatch.setenv("TWINCAST_PARTITIONS", "3")
    line = refused(capsys, "topics", "check")
    assert " topics have 4 partitions, expected 3: twincast.requests.v1, " in line
    assert "TWINCAST_PARTITIONS) to 4" in line
    assert line.count("expected") == 1


def test_topics_that_are_missing_are_named_with_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert "twincast topics" in refused(capsys, "topics", "check")


def test_an_unwritable_data_directory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINCAST_DATA_DIR", "/proc/nowhere/log")
    assert "/proc/nowhere/log" in refused(capsys, "topics", "create")


def test_a_port_of_the_demos_page_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, "demo", "--web", str(port))
    assert f"127.0.0.1:{port}" in line
    assert "choose another port" in line


@pytest.mark.slow
def test_a_broker_that_does_not_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("TWINCAST_BOOTSTRAP", f"127.0.0.1:{taken.getsockname()[1]}")
        line = refused(capsys, "topics", "check")
    assert "no Kafka answers at 127.0.0.1" in line
    assert "Connect call failed" in line
    assert "TWINCAST_BOOTSTRAP" in line


@pytest.mark.parametrize("address", ["nowhere", "host:", "host:99999999", ":9092"])
def test_an_address_that_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("TWINCAST_BOOTSTRAP", address)
    assert "host:port" in refused(capsys, "topics", "check")


def damaged(tmp_path: Path) -> Path:
    """The bundled recording without the prompt length of its arrivals."""
    copy = tmp_path / "recording"
    shutil.copytree(sample(RAMP), copy)
    file = copy / "requests.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).replace(b'"isl_tokens"', b'"tokens"')
    file.write_bytes(gzip.compress(lines))
    return copy


def test_a_recording_with_a_missing_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = refused(capsys, "backtest", str(damaged(tmp_path)))
    assert "requests.jsonl.gz line 1" in line
    assert "isl_tokens" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("backtest", "nowhere"), "nowhere/meta.json is missing"),
        (("demo", "--recording", "nowhere"), "nowhere/meta.json is missing"),
        (("demo", "--speed", "0"), "--speed must be above 0"),
        (("demo", "--seconds", "-1"), "--seconds must be above 0"),
        (("demo", "--slo", "ttft:1"), "metric:quantile:limit_s"),
        (("up", "--slot", "-1"), "worker.slot must be 0 to 9999"),
        (("up", "--group", "a b"), "worker.group"),
        (("up", "--warm", "nowhere.gz"), "warm file nowhere.gz cannot be used"),
        (("--config", "none.toml", "doctor"), "no file none.toml"),
    ],
)
def test_arguments_that_cannot_be(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(capsys, *arguments)


def test_a_broker_that_cannot_be_started_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINCAST_BROKER", "embedded")
    assert "nothing to start" in refused(capsys, "broker")
    monkeypatch.setenv("TWINCAST_BROKER", "rabbit")
    assert "TWINCAST_BROKER must be one of" in refused(capsys, "broker")


@pytest.mark.kafka
@pytest.mark.slow
def test_a_port_in_use(
    kafka_choice: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if getattr(kafka_choice, "kind", "") != "jvm":
        pytest.skip("no broker of ours is started here")
    monkeypatch.setenv("TWINCAST_CACHE_DIR", str(Path.home() / ".cache" / "twincast"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("TWINCAST_BROKER_PORT", str(port))
        assert f"port {port} on 127.0.0.1" in refused(capsys, "broker")


def test_errors_are_one_line() -> None:
    assert "\n" not in str(ConfigError("a\nb"))
