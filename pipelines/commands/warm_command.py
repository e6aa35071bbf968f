"""Learn from a recording, and keep what was learned for later runs to begin with."""

import argparse
import sys
from pathlib import Path

from pipelines.backtest import backtest
from pipelines.ingest.recording import read_recording
from pipelines.settings import Settings
from pipelines.warmth import write_warm

NAME = "warm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast warm --help`."""
    parser.add_argument("recording", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write, as .json.gz")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Learn and write."""
    recording = read_recording(args.recording)
    result = backtest(recording, settings.core(recording.deployment))
    write_warm(args.out, result.core.snapshot())
    print(f"{args.out}: {args.out.stat().st_size} bytes, {result.core.state.steps_learned} steps learned")
    print("begin with it: twincast up --warm FILE", file=sys.stderr)
    return 0
