"""Show every forecast as it is made."""

import argparse
import asyncio
import sys

from rich.console import Console

from pipelines.places import Found, find_place, open_log
from pipelines.settings import Settings
from pipelines.watch import watch_json, watch_screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast watch --help`."""
    parser.add_argument("--json", action="store_true", help="one JSON object per forecast, for programs")
    parser.add_argument("--deployment", default="", metavar="NAME", help="which one to draw (default: the first seen)")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Watch until Ctrl-C."""
    found = find_place(settings, args.bootstrap)
    print(f"{found.place} ({found.why})", file=sys.stderr)
    try:
        asyncio.run(_watch(args, settings, found))
    except KeyboardInterrupt:
        return 0
    return 0


async def _watch(args: argparse.Namespace, settings: Settings, found: Found) -> None:
    async with open_log(settings, found.place) as log:
        if args.json:
            await watch_json(log, settings.partitions)
        else:
            await watch_screen(log, settings.partitions, Console(), args.deployment, str(found.place))
