"""Print a script that completes commands and options in bash, zsh or fish."""

import argparse

from pipelines.completion import SHELLS, script
from pipelines.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast completion --help`."""
    parser.add_argument("shell", choices=SHELLS, help="its first line says where to put it")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print it."""
    print(script(args.shell), end="")
    return 0
