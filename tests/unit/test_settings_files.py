"""Settings from the environment and files: what is written counts, what is wrong is told in one line with its place."""

from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.settings import parse_slo, read_settings

ENV = {"HOME": "/home/ann"}


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_nothing_set_gives_settings_that_work(tmp_path: Path) -> None:
    settings = read_settings(ENV, directory=tmp_path)
    assert settings.partitions == 4
    assert settings.core("any") == settings.defaults
    assert settings.cache_dir == Path("/home/ann/.cache/twincast")


def test_a_deployment_has_its_own_settings_over_the_defaults(tmp_path: Path) -> None:
    write(
        tmp_path,
        "twincast.toml",
        '[forecast]\nperiod_s = 5\nscenarios = ["baseline"]\n[deployments."llama-70b"]\nfine_replications = 8\n',
    )
    settings = read_settings(ENV, directory=tmp_path)
    assert settings.core("llama-70b").fine_replications == 8
    assert settings.core("llama-70b").period_s == 5.0
    assert settings.core("other").fine_replications == settings.defaults.fine_replications
    assert [scenario.name for scenario in settings.defaults.scenarios] == ["baseline"]


def test_targets_come_from_their_own_file_and_a_star_means_everybody(tmp_path: Path) -> None:
    write(
        tmp_path,
        "slos.toml",
        '[[slo]]\nmetric = "ttft_s"\nlimit_s = 0.5\n[[slo]]\ndeployment = "a"\nmetric = "e2e_s"\nlimit_s = 9.0\n',
    )
    settings = read_settings(ENV, directory=tmp_path)
    assert [slo.metric for slo in settings.core("a").slos] == ["e2e_s"]
    assert [slo.limit_s for slo in settings.core("b").slos] == [0.5]


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    write(tmp_path, "twincast.toml", '[topics]\nnamespace = "file"\npartitions = 8\n[worker]\nslot = 3\n')
    settings = read_settings(ENV | {"TWINCAST_NAMESPACE": "env", "TWINCAST_SLOT": "0"}, directory=tmp_path)
    assert settings.namespace == "env"
    assert settings.partitions == 8
    assert settings.worker.slot == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[forecast]\nperiod = 5\n", ("[forecast] has no setting 'period'",)),
        ('[forecast]\nperiod_s = "5"\n', ("[forecast] period_s must be a number, got '5'",)),
        ("[forecast]\nperiod_s = nan\n", ("period_s must be a finite number", "nan")),
        ("[forecast]\nfine_replications = true\n", ("fine_replications must be a whole number",)),
        ('[forecast]\nscenarios = ["flood"]\n', ("names out of baseline, burst, long_tail", "'flood'")),
        ("[topics]\npartitions = 0\n", ("topics.partitions must be 1 to 1024, got 0",)),
        ('[topics]\nnamespace = "a b"\n', ("topics.namespace", "'a b'")),
        ("[worker]\nstall_timeout_s = inf\n", ("worker.stall_timeout_s", "inf")),
        ("[wroker]\n", ("has no table 'wroker'",)),
        ("[[worker]]\n", ("worker must be a table",)),
        ("= 3\n", ("is not TOML",)),
        ("[deployments]\na = 3\n", ("deployments.a must be a table",)),
    ],
)
def test_a_wrong_file_is_told_in_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    write(tmp_path, "twincast.toml", text)
    with pytest.raises(ConfigError) as caught:
        read_settings(ENV, directory=tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[[slo]]\nmetric = "ttft"\nlimit_s = 1\n', "metric must be one of ttft_s"),
        ('[[slo]]\nmetric = "ttft_s"\n', "limit_s must be > 0"),
        ('[[slo]]\nmetric = "ttft_s"\nlimit_s = 1\nquantile = 95\n', "quantile must lie between 0 and 1"),
        ('[[slo]]\nmetric = "ttft_s"\nlimit_s = 1\nlimit_ms = 1\n', "has no setting 'limit_ms'"),
    ],
)
def test_a_wrong_target_is_told_with_its_number(tmp_path: Path, text: str, word: str) -> None:
    write(tmp_path, "slos.toml", text)
    with pytest.raises(ConfigError, match="slo 1") as caught:
        read_settings(ENV, directory=tmp_path)
    assert word in str(caught.value)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        read_settings(ENV, config=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="no file"):
        read_settings(ENV | {"TWINCAST_SLOS": str(tmp_path / "none.toml")}, directory=tmp_path)


@pytest.mark.parametrize("name", ["PARTITIONS", "SLOT", "SIMULATORS"])
def test_a_number_in_the_environment_must_be_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"TWINCAST_{name} must be a whole number, got 'many'"):
        read_settings(ENV | {f"TWINCAST_{name}": "many"}, directory=tmp_path)


def test_a_password_is_in_no_text_of_the_settings(tmp_path: Path) -> None:
    settings = read_settings(ENV | {"TWINCAST_SASL_PASSWORD": "secret-word"}, directory=tmp_path)
    assert "secret-word" not in repr(settings)


@pytest.mark.parametrize("text", ["ttft_s", "ttft_s:0.95", "ttft:0.95:1", "ttft_s:95:1", "ttft_s:0.95:0", "a:b:c"])
def test_a_target_on_the_command_line_is_checked(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_slo(text)
