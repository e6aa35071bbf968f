"""Run a recording through the live core at full speed, and print what its forecasts were worth."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipelines.archive.archived_recording import read_archived
from pipelines.backtest import backtest, report
from pipelines.backtest_plot import plot_of
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Level
from pipelines.settings import Settings, parse_slo
from pipelines.warmth import read_warm, write_warm
from pipelines.whole_file import write_whole

STEP_LEVELS = ("S2", "S3")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast backtest --help`."""
    parser.add_argument("recording", type=Path, metavar="DIR", help="folder of a recording or an archive")
    parser.add_argument("--level", choices=get_args(Level), default="S3", help="what the core gets to see (default S3)")
    parser.add_argument("--slo", action="append", metavar="METRIC:QUANTILE:SECONDS", help="such as ttft_s:0.95:0.5")
    parser.add_argument("--warm", type=Path, metavar="FILE", help="begin with what was learned elsewhere")
    parser.add_argument("--save-state", type=Path, metavar="FILE", help="write the state at the end, for --warm")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw forecasts and what happened as SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole account as JSON (- for stdout)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Run, print, and write what was asked for."""
    recording = read_archived(args.recording, args.level)
    core = replace(settings.core(recording.deployment), steps_expected=args.level in STEP_LEVELS)
    slos = tuple(parse_slo(text) for text in args.slo or ()) or core.slos
    warm = None if args.warm is None else read_warm(args.warm)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{recording.name} at {args.level}", total=1.0)
        result = backtest(
            recording, core, slos=slos, warm=warm, progress=lambda share: progress.update(task, completed=share)
        )
    account = report(result)
    if args.save_state is not None:
        write_warm(args.save_state, result.core.snapshot())
    if args.plot is not None:
        _write(args.plot, plot_of(result, slos).encode())
    if args.json is not None:
        data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
        if str(args.json) == "-":
            sys.stdout.write(data.decode())
            return 0
        _write(args.json, data)
    _print(account, Console())
    return 0


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another file") from error
    write_whole(path, data)


def _print(account: dict[str, Any], console: Console) -> None:
    records = account["records"]
    others = ", ".join(f"{name} {count}" for name, count in records.items() if name != "in" and count)
    console.print(
        f"{account['recording']} at {account['level']}: {records['in']} records in = {others}", highlight=False
    )
    _print_steps(account["steps"], console)
    table = Table("metric", "horizon", "windows", "covered (90 %)", "width", "skill", "of the ceiling", box=None)
    for row in account["forecasts"]:
        table.add_row(
            f"{row['metric'].removesuffix('_s').upper()} P{row['quantile'] * 100:g}",
            f"{row['horizon_s']:g} s",
            str(row["n"]),
            f"{row['coverage90']:.0%}",
            f"x{row['width_ratio']:.1f}",
            _percent(row["skill_persistence"]),
            _percent(row["share_of_ceiling"]),
        )
    console.print(
        f"{account['forecasts_made']} forecasts, {account['windows_scored']} windows scored; skill is against"
    )
    console.print("persistence (the last window again), width is high / low of the interval:")
    console.print(table)
    for alert in account["alerts"]:
        times = ", ".join(
            f"{k.removesuffix('_s')} {alert[k]:.0f} s" for k in ("onset_s", "firing_s", "resolved_s") if alert[k]
        )
        console.print(f"alert {alert['kind']}: {alert['cause']} ({times})", highlight=False, soft_wrap=True)
    for at_s, level in account["authority"]:
        console.print(f"authority {level} from {at_s:.0f} s", highlight=False, soft_wrap=True)
    console.print(f"outputs sha256 {account['output_sha256'][:16]}", highlight=False, soft_wrap=True)


def _print_steps(steps: dict[str, Any], console: Console) -> None:
    for engine, row in {"": steps}.items() if "n" in steps else steps.items():
        if row["n"]:
            roles = ", ".join(f"{role} {_percent(row['mape'][role])}" for role in ("prefill", "decode", "mixed"))
            frozen = row["frozen_60s_total_error"]
            console.print(
                f"step cost{' of engine ' + engine if engine else ''}: error {_percent(row['mape']['all'])} per step "
                f"({roles}), {_percent(frozen['median'])} on the total of the next 60 s (n = {frozen['windows']})",
                highlight=False,
                soft_wrap=True,
            )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1%}"
