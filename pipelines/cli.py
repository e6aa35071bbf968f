"""The command `twincast`: one small file per command. Results go to stdout, talk to stderr.

Law: what a person can put right ends as one line on stderr and exit code 2, never as a traceback.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.commands import COMMANDS
from pipelines.errors import ConfigError
from pipelines.settings import read_settings
from twin.settings import TWINCAST_VERSION

EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The command line, without reading any setting."""
    top = argparse.ArgumentParser(prog="twincast", description="A streaming digital twin of LLM inference serving.")
    top.add_argument("--version", action="version", version=f"twincast {TWINCAST_VERSION}")
    top.add_argument("--config", type=Path, metavar="FILE", help="settings instead of ./twincast.toml")
    top.add_argument("--slos", type=Path, metavar="FILE", help="targets instead of ./slos.toml")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        about = command.__doc__.splitlines()[0] if command.__doc__ else ""
        sub = commands.add_parser(command.NAME, help=about, description=about)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 something to put right, 130 interrupted."""
    args = parser().parse_args(arguments)
    try:
        settings = read_settings(config=args.config, slos=args.slos)
        return int(args.run(args, settings))
    except ConfigError as error:
        print(f"twincast: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be said to a closed pipe
        return 0


if __name__ == "__main__":
    sys.exit(main())
