"""Completion of the command line: what the parsers know, in three shells; and results as JSON everywhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.commands import NAMES
from pipelines.completion import SHELLS, commands, script, top_options

NO_RESULT = {"up", "web", "completion"}
"""They run until they are stopped (`up --report` tells of itself in JSON), or print a script."""


def complete(words: list[str], folder: Path) -> list[str]:
    """What bash offers for the last of the words."""
    lines = "\n".join(
        [
            script("bash"),
            f"COMP_WORDS=({' '.join(repr(word) for word in words)})",
            f"COMP_CWORD={len(words) - 1}",
            "_twincast",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
    )
    command = ["bash", "--norc", "-c", lines]
    found = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=10, check=True)
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on the path")
def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    assert complete(["twincast", ""], tmp_path) == list(NAMES)
    assert complete(["twincast", "wat"], tmp_path) == ["watch"]
    assert complete(["twincast", "--conf"], tmp_path) == ["--config"]
    assert complete(["twincast", "--config", "x.toml", "demo", "--sp"], tmp_path) == ["--speed"]
    assert complete(["twincast", "backtest", "--level", "S"], tmp_path) == ["S0", "S1", "S2", "S3"]
    assert complete(["twincast", "topics", "c"], tmp_path) == ["create", "check"]
    assert complete(["twincast", "backtest", "ru"], tmp_path) == ["run.jsonl"]
    assert complete(["twincast", "backtest", "--nonsense"], tmp_path) == []


def test_every_option_of_every_command_is_in_every_script() -> None:
    for shell in SHELLS:
        text = script(shell)
        for command in commands():
            assert command.name in text
            for option in (*command.options, *top_options()):
                for name in option.names:
                    spelled = (
                        name if shell != "fish" else f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}"
                    )
                    assert spelled in text, f"{shell}: {command.name} {name}"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_reads_the_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on the path")
    found = subprocess.run([shell, "-n"], input=script(shell), capture_output=True, text=True, timeout=10, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out == script("fish")
    with pytest.raises(SystemExit):
        main(["completion", "csh"])


def test_every_command_with_a_result_gives_it_as_json() -> None:
    without = {each.name for each in commands() if not any("--json" in option.names for option in each.options)}
    assert without == NO_RESULT


def test_help_of_every_option_says_something() -> None:
    for command in commands():
        for option in command.options:
            if not option.choices:
                assert re.search(r"\w", option.about), f"{command.name} {option.names}"
