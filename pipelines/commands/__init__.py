"""The commands, in the order in which help lists them. Each has a file with `add_arguments`, `run` and a docstring.

A file is loaded when its command is called, since some load compilers and plotting that others do without.
"""

import ast
from functools import cache
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

NAMES = (
    "demo",
    "backtest",
    "calibrate",
    "simulate",
    "sweep",
    "evidence",
    "import",
    "record",
    "replay",
    "incident",
    "ledger",
    "up",
    "watch",
    "web",
    "topics",
    "broker",
    "doctor",
    "completion",
)


def module_of(name: str) -> ModuleType:
    """The file of a command, loaded."""
    return import_module(f"pipelines.commands.{name}_command")


@cache
def about(name: str) -> str:
    """The first line of a command's docstring, without loading its file."""
    spec = util.find_spec(f"pipelines.commands.{name}_command")
    if spec is None or spec.origin is None:
        return ""
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "").split("\n")[0]
