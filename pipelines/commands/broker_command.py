"""Start a broker, print its address, and keep it running until Ctrl-C."""

import argparse
import asyncio
import json
import signal
import sys

from pipelines.broker import choose_broker, running_broker
from pipelines.errors import ConfigError
from pipelines.places import Place, noted, open_log
from pipelines.provision import create
from pipelines.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast broker --help`."""
    parser.add_argument("--no-topics", action="store_true", help="do not create the topics")
    parser.add_argument("--json", action="store_true", help="tell the address as one JSON object")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Start what this machine allows, and wait."""
    choice = choose_broker(settings.broker, _tell)
    for line in choice.lines():
        _tell(line)
    if choice.kind in ("cluster", "embedded"):
        raise ConfigError(f"nothing to start: {choice.lines()[0].removeprefix('broker: ')}; run `twincast up`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with running_broker(choice) as bootstrap:
        place = Place(kind="kafka", where=str(bootstrap), namespace=settings.namespace)
        if not args.no_topics:
            asyncio.run(_create(settings, place))
        with noted(settings.cache_dir, place):
            print(json.dumps({"bootstrap": str(bootstrap)}) if args.json else bootstrap, flush=True)
            _tell(f"export TWINCAST_BOOTSTRAP={bootstrap}   (Ctrl-C stops it)")
            try:
                signal.pause()
            except KeyboardInterrupt:
                _tell("stopping")
    return 0


async def _create(settings: Settings, place: Place) -> None:
    async with open_log(settings, place) as log:
        await create(log, settings.partitions)


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
