"""The documents: every command parses and has a way to be run, every link leads somewhere, references are generated."""

import re
from pathlib import Path

import pytest
from doc_commands import DOCUMENTS, ROOT, RULES, Command, commands_of

from pipelines.cli import parser
from pipelines.commands import NAMES
from pipelines.reference import FOLDER, reference_files

ALL = [command for document in DOCUMENTS for command in commands_of(document)]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
PICTURES = ("twincast tiny ",)
"""A line of a screen that is shown, not a command."""


def is_picture(command: Command) -> bool:
    return command.text.startswith(PICTURES)


def test_there_are_commands_to_look_at() -> None:
    assert len(ALL) > 30
    assert {command.document for command in ALL} >= {"README.md", "docs/tutorial.md", "docs/howto/sre.md"}


@pytest.mark.parametrize("command", [c for c in ALL if c.words and not is_picture(c)], ids=lambda c: c.text)
def test_a_command_of_the_documents_parses(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    name = next((word for word in command.words if word in NAMES), None)
    try:
        parser(name).parse_args(command.words)
    except SystemExit:
        pytest.fail(f"{command.document}: {command.text}: {capsys.readouterr().err}")


def test_every_command_has_a_way_to_be_run() -> None:
    assert [(c.document, c.text) for c in ALL if c.rule is None and not is_picture(c)] == []


def test_every_rule_is_of_use() -> None:
    assert [rule.pattern for rule in RULES if not any(command.rule is rule for command in ALL)] == []


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    named = {match for c in ALL for match in re.findall(r"^make ([\w-]+)", c.text)}
    assert named
    assert named <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.parametrize("command", [c for c in ALL if "examples/" in c.text], ids=lambda c: c.text)
def test_files_of_examples_that_are_named_exist(command: Command) -> None:
    for path in re.findall(r"examples/[\w./-]+", command.text):
        assert (ROOT / path).exists()


def test_the_reference_is_up_to_date() -> None:
    on_disk = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert on_disk == reference_files(), "run `make generate` and commit docs/reference"


def test_the_glossary_names_a_word_once_and_in_a_table() -> None:
    rows = re.findall(r"^\| (?!word|---)(.+?) \|", (ROOT / "docs" / "glossary.md").read_text("utf-8"), flags=re.M)
    assert len(rows) > 40
    assert len(rows) == len(set(rows))
