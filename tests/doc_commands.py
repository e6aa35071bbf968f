"""Commands that stand in the documents: found, and told how they are run. Runs none itself.

Law: every command has exactly one rule; a document with a new kind of command needs a new rule.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "BENCHMARKS.md"),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)
PROGRAM = re.compile(r"^(?:[A-Z_]+=\S+ )*(twincast|make|python|curl|docker|kubectl|npm|cd|export|vllm|\.)(?:\s|$)")
How = Literal["run", "serve", "background", "set", "elsewhere"]
"""To its end; until it has told something, then interrupted; the same, but later commands meet it; sets the
environment; not here, since another test runs it or it needs what no test has."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How commands that match are run. `swap` are replacements that make them short; `tells` is what a server says."""

    pattern: str
    how: How
    swap: tuple[tuple[str, str], ...] = ()
    tells: str = ""
    exits: tuple[int, ...] = (0,)


RULES = (
    Rule(r"\. \.venv/bin/activate", "elsewhere"),
    Rule(r"make ", "elsewhere"),  # targets are looked up in the Makefile
    Rule(r"export ", "set"),
    Rule(r"(docker|kubectl) ", "elsewhere"),  # tests/unit/test_deploy_files.py
    Rule(r"(cd examples/node|.*npm )", "elsewhere"),  # tests/integration/test_examples_kafka.py
    Rule(r".*vllm serve", "elsewhere"),  # needs a vLLM; `make demo-vllm` runs one
    Rule(r"TWINCAST_METRICS=\d+ twincast demo", "background", tells="playing"),
    Rule(r"twincast demo", "run", (("--seconds 40", "--seconds 12"),), exits=(0, 1)),
    Rule(r"twincast (up|web)", "serve", tells="metrics at|the page:|partition"),
    Rule(r"twincast watch", "serve", tells="forecast|speed"),
    Rule(r"TWINCAST_SPEED=4 python", "serve"),
    Rule(r".*python examples/scheduler", "elsewhere"),  # tests/integration/test_examples_kafka.py
    Rule(r"curl ", "run"),
    Rule(r"twincast doctor", "run", exits=(0, 1)),  # 1: something is not well, and it says what
    Rule(r"twincast calibrate", "run", exits=(0, 1)),  # 1: the bias grows
    Rule(r"twincast evidence (BASE|REC|off/)", "elsewhere"),  # tests of evidence; they stand for the reader's own
    Rule(r"twincast (record|replay|incident) (?!examples)", "elsewhere"),  # tests of archives and incidents
    Rule(r"twincast simulate trace\.csv", "elsewhere"),  # of files that the reader has
    Rule(r"twincast (topics|backtest|simulate|sweep|import|evidence|incident) ", "run"),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a document."""

    document: str
    text: str

    @property
    def rule(self) -> Rule | None:
        """The first that fits."""
        return next((rule for rule in RULES if re.match(rule.pattern, self.text)), None)

    @property
    def words(self) -> list[str]:
        """The command of `twincast` and its arguments, without what is set before; empty for other programs."""
        words = shlex.split(self.text)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        return words[1:] if words and words[0] == "twincast" else []


def commands_of(document: Path) -> Iterator[Command]:
    """Every line of a block of shell, or of a block of no language, that begins with a program."""
    for language, block in FENCE.findall(document.read_text(encoding="utf-8")):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            text = re.sub(r"\s+#.*$", "", line.strip().removeprefix("$ "))
            if PROGRAM.match(text):
                yield Command(document.relative_to(ROOT).as_posix(), text)
