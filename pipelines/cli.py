"""The command `twincast`: one small file per command. Results go to stdout, talk to stderr.

Law: what a person can put right ends as one line on stderr and exit code 2, never as a traceback; nor does Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what is loaded here is loaded before an interrupt can be answered
    import argparse

EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130


def parser(name: str | None = None) -> "argparse.ArgumentParser":
    """The command line; the arguments of command `name` only."""
    import argparse
    from pathlib import Path

    from pipelines.commands import NAMES, about, module_of
    from twin.settings import TWINCAST_VERSION

    top = argparse.ArgumentParser(prog="twincast", description="A streaming digital twin of LLM inference serving.")
    top.add_argument("--version", action="version", version=f"twincast {TWINCAST_VERSION}")
    top.add_argument("--config", type=Path, metavar="FILE", help="settings instead of ./twincast.toml")
    top.add_argument("--slos", type=Path, metavar="FILE", help="targets instead of ./slos.toml")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for each in NAMES:
        sub = commands.add_parser(each, help=about(each), description=about(each))
        if each == name:
            module_of(each).add_arguments(sub)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 something to put right, 130 interrupted."""
    try:
        return _main(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be said to a closed pipe
        return 0


def _main(arguments: list[str]) -> int:
    from pipelines.commands import NAMES, module_of
    from pipelines.errors import ConfigError

    name = next((word for word in arguments if word in NAMES), None)
    args = parser(name).parse_args(arguments)
    try:
        from pipelines.settings import read_settings

        return int(module_of(args.command).run(args, read_settings(config=args.config, slos=args.slos)))
    except ConfigError as error:
        print(f"twincast: {error}", file=sys.stderr)
        return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main())
