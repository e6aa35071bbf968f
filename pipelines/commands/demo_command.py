"""Play a real engine's overload into a broker and watch it being forecast."""

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from pipelines.demo import DEFAULT_SPEED, DemoOptions, demo
from pipelines.samples import RAMP, WARM, sample
from pipelines.settings import Settings, parse_slo

DEFAULT_SLO = "ttft_s:0.95:0.5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast demo --help`."""
    parser.add_argument("--speed", type=float, default=DEFAULT_SPEED, metavar="S", help="times event time (default 4)")
    parser.add_argument("--seconds", type=float, metavar="N", help="stop playing after so many seconds of wall time")
    parser.add_argument("--recording", type=Path, metavar="DIR", help="another recording than the bundled ramp")
    parser.add_argument("--cold", action="store_true", help="begin without what was learned before")
    parser.add_argument("--web", default="", metavar="[HOST:]PORT", help="serve the page there meanwhile")
    parser.add_argument("--json", action="store_true", help="only the account at the end, as one JSON object")
    parser.add_argument("--slo", action="append", metavar="M:Q:S", help=f"target, such as {DEFAULT_SLO} (the default)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Run it and print the account."""
    options = DemoOptions(
        recording=args.recording or sample(RAMP),
        warm=None if args.cold else sample(WARM),
        slos=tuple(parse_slo(text) for text in args.slo or [DEFAULT_SLO]),
        speed=args.speed,
        seconds=args.seconds,
        web=args.web,
    )
    console = Console(stderr=args.json)
    try:
        summary = demo(settings, options, console)
    except KeyboardInterrupt:
        console.print("stopped")
        return 0
    if args.json:
        print(msgspec.json.encode(summary).decode())
    for line in () if args.json else summary.lines():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0 if summary.balanced and summary.forecasts else 1
