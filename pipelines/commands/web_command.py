"""Serve the page: every deployment at a glance, one in depth, and what-ifs on it."""

import argparse
import asyncio
import sys

from pipelines.logs import log_to_stderr
from pipelines.places import find_place
from pipelines.settings import Settings
from pipelines.web.access import address_of, token_in
from pipelines.web.serve import serve_page

DEFAULT_ADDRESS = "8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast web --help`."""
    parser.add_argument(
        "address",
        nargs="?",
        default=DEFAULT_ADDRESS,
        metavar="[HOST:]PORT",
        help="where to serve (default 127.0.0.1:8080; 0 takes any free port); another host needs TWINCAST_WEB_TOKEN",
    )
    parser.add_argument("--parent", type=int, metavar="PID", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Serve until Ctrl-C."""
    log_to_stderr(settings.log_level)
    address = address_of(args.address, token_in(settings.environ))
    found = find_place(settings, args.bootstrap)
    print(f"{found.place} ({found.why})", file=sys.stderr)
    asyncio.run(serve_page(settings, found.place, address, _tell, parent=args.parent))
    return 0


def _tell(url: str) -> None:
    print(f"the page: {url}", flush=True)
