"""Create the topics that are missing, or check those that are there."""

import argparse
import asyncio
import json
import sys
from typing import Any

from pipelines.places import find_place, open_log
from pipelines.provision import check, create
from pipelines.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast topics --help`."""
    parser.add_argument("action", choices=("create", "check"))
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")
    parser.add_argument("--keep", action="store_true", help="create topics that keep records for ever, as replays need")
    parser.add_argument("--json", action="store_true", help="answer with one JSON object")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Create or check."""
    found = find_place(settings, args.bootstrap)
    print(f"{found.place} ({found.why})", file=sys.stderr)
    answer = asyncio.run(_act(args, settings))
    if args.json:
        print(json.dumps(answer))
    elif args.action == "create":
        print("\n".join(f"created {name}" for name in answer["created"]) or "all topics are there")
    else:
        print("\n".join(f"{name}: {count} partitions" for name, count in sorted(answer["topics"].items())))
    return 0


async def _act(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    async with open_log(settings, find_place(settings, args.bootstrap).place) as log:
        if args.action == "create":
            return {"created": await create(log, settings.partitions, keep_for_ever=args.keep)}
        return {"topics": await check(log, settings.partitions)}
