"""Read logs and public traces of any known format into a recording, with an account of every row."""

import argparse
import sys
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.registry import FORMATS
from pipelines.ingest.report_text import report_lines
from pipelines.ingest.rows import Source
from pipelines.settings import Settings

NAME = "import"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast import --help`."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="files, or folders of recordings")
    parser.add_argument("--format", choices=sorted(FORMATS), help="their format (default: told by their beginning)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write the recording")
    parser.add_argument(
        "--deployment", default="", metavar="NAME", help="what to call it (default: the file's own name)"
    )
    parser.add_argument("--zone", default="UTC", metavar="ZONE", help="time zone of stamps that name none")
    parser.add_argument("--limit", type=float, default=3600.0, metavar="S", help="how much to draw of an arrival law")
    parser.add_argument("--check", action="store_true", help="read and report only, write nothing")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Import; exit code 1 where no row could be taken."""
    if args.out is None and not args.check:
        raise ConfigError("name where to write the recording with --out DIR, or only look with --check")
    source = Source(deployment=args.deployment, zone=args.zone, limit_s=args.limit)
    report = import_files(args.format, args.files, out=args.out, check=args.check, source=source)
    for line in report_lines(report):
        print(line)
    if report.out is not None:
        print(f"run it: twincast backtest {report.out}", file=sys.stderr)
    return 0 if any(file.rows_out for file in report.files) else 1
