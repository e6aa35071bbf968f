"""Turn files of any known format into a recording, or only report what is in them (--check)."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import msgspec

from pipelines.errors import ConfigError
from pipelines.ingest.importing import ImportReport, import_files
from pipelines.ingest.recording import require_new_folder
from pipelines.ingest.registry import FORMATS, RECORDING
from pipelines.ingest.report_text import report_lines
from pipelines.ingest.rows import Source
from pipelines.ingest.times import Unit
from pipelines.progress import progress_bar
from pipelines.settings import Settings
from pipelines.whole_file import require_writable, write_whole

US_PER_S = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast import --help`."""
    known = ", ".join((*FORMATS, RECORDING))
    parser.add_argument(
        "files",
        nargs="+",
        metavar="[FORMAT] FILE",
        help=f"files or recording folders, after the name of their format if they do not tell it: {known}",
    )
    parser.add_argument(
        "--format", choices=(*FORMATS, RECORDING), metavar="NAME", help="the same as FORMAT before FILE"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="new folder for the recording")
    parser.add_argument("--check", action="store_true", help="report what is in the files, write nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON (- for stdout)")
    declared = parser.add_argument_group("what the files do not tell")
    declared.add_argument("--deployment", default="", metavar="NAME", help="of records that name none")
    declared.add_argument("--engine", default="", metavar="NAME", help="of records that name none")
    declared.add_argument("--unit", choices=get_args(Unit), help="of times, where it differs from the format's")
    declared.add_argument("--zone", default="UTC", metavar="ZONE", help="of times that name none (default UTC)")
    declared.add_argument("--t0", metavar="TIME", help="ISO time at which clocks that count from a start began")
    declared.add_argument("--limit", type=float, metavar="S", help="how much to draw of a law (ServeGen)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Import or check, and report."""
    format_name, files = _split(args.files) if args.format is None else (args.format, [Path(f) for f in args.files])
    if args.out is None and not args.check:
        raise ConfigError("import needs --out DIR to write a recording, or --check to write nothing; give one")
    if args.out is not None and args.check:
        raise ConfigError("--check writes nothing, so --out has no use; give one")
    if args.out is not None:
        require_new_folder(args.out)
    if args.json is not None and str(args.json) != "-":
        require_writable(args.json)
    source = _source(args)
    with progress_bar(f"reading {len(files)} file{'s' * (len(files) > 1)}"):
        report = import_files(format_name, files, out=args.out, check=args.check, source=source)
    _print(report, args.json)
    if report.out is not None:
        print(f"run it: twincast backtest {report.out}", file=sys.stderr)
    if args.out is not None and report.out is None:
        raise ConfigError(
            f"no row of {', '.join(map(str, files))} could be used, so nothing was written; see the report"
        )
    return 0


def _split(words: list[str]) -> tuple[str | None, list[Path]]:
    """The first word is a format if it is the name of one and of no file."""
    if words[0] in (*FORMATS, RECORDING) and not Path(words[0]).exists():
        if len(words) < 2:
            raise ConfigError(f"import {words[0]}: no file named; name at least one after the format")
        return words[0], [Path(word) for word in words[1:]]
    return None, [Path(word) for word in words]


def _source(args: argparse.Namespace) -> Source:
    given = {"t0_us": _instant_us(args.t0)} if args.t0 is not None else {}
    limit = {"limit_s": args.limit} if args.limit is not None else {}
    return Source(deployment=args.deployment, engine=args.engine, unit=args.unit, zone=args.zone, **given, **limit)


def _instant_us(text: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--t0 must be an ISO time such as 2026-01-31T08:00:00Z, got {text!r}; correct it") from error
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * US_PER_S)


def _print(report: ImportReport, json: Path | None) -> None:
    if json is not None:
        data = msgspec.json.format(msgspec.json.encode(report, enc_hook=str), indent=1) + b"\n"
        if str(json) == "-":
            sys.stdout.write(data.decode())
            return
        write_whole(json, data)
    for line in report_lines(report):
        print(line)
