"""Replay closed windows of recordings, correct step costs by their bias, and tell whether the bias grows.

Exit code 1 where it grows at P50, P95 or P99: the twin is drifting away from the engine.
"""

import argparse
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pipelines.archive.archived_recording import read_archived
from pipelines.backtest import backtest
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording
from pipelines.progress import progress_bar
from pipelines.replays import calibrate, replay_windows
from pipelines.settings import Settings
from pipelines.simulation_text import plain_console
from pipelines.whole_file import write_whole
from twin.bias import ROLES, StepBias, Trend
from twin.closed_window import ClosedWindow
from twin.simulate import run as simulate
from twin.traffic.scenarios import BASELINE

EXIT_GROWS = 1
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast calibrate --help`."""
    parser.add_argument(
        "recordings", type=Path, nargs="+", metavar="DIR", help="folders of recordings or archives, in order"
    )
    parser.add_argument("--since", default="24h", metavar="SPAN", help="only the last such as 90s, 30m, 24h, 7d (24h)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the account as JSON (- for stdout)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Replay, print, and say by the exit code whether the bias grows."""
    since_s = span_s(args.since)
    recordings = [read_archived(folder) for folder in args.recordings]
    newest_us = max((event.at_us for recording in recordings for event in recording), default=0)
    replayed: list[ClosedWindow] = []
    for recording in recordings:
        replayed += _windows(recording, settings)
    recent = [each for each in replayed if each.as_of_us >= newest_us - since_s * 1e6]
    recent.sort(key=lambda each: each.as_of_us)
    if not recent:
        raise ConfigError(f"no window has closed in the last {args.since}; a window needs two minutes of records")
    bias, trends = calibrate(recent)
    account = _account(recent, bias, trends)
    data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
    if str(args.json) == "-":
        sys.stdout.write(data.decode())
    else:
        _print(account)
        if args.json is not None:
            write_whole(args.json, data)
    return EXIT_GROWS if account["grows"] else 0


def span_s(text: str) -> float:
    """Seconds of a span such as 24h. Raises ConfigError for anything else.

    >>> span_s("24h"), span_s("1.5m")
    (86400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"--since {text!r} is no span of time; write a number and s, m, h or d, such as 24h")
    return float(found[1]) * _UNITS_S[found[2]]


def _windows(recording: Recording, settings: Settings) -> list[ClosedWindow]:
    core = replace(settings.core(recording.deployment), scenarios=(BASELINE,))
    with progress_bar(recording.name) as progress:
        result = backtest(recording, core, simulate=simulate, progress=progress)
    return replay_windows(recording, result.window_jobs, result.forecasts)


def _account(recent: list[ClosedWindow], bias: StepBias, trends: dict[float, Trend | None]) -> dict[str, Any]:
    causes = [each.cause.cause for each in recent if each.cause is not None]
    return {
        "windows": len(recent),
        "cost_factors": {role.value: bias.factor(role) for role in ROLES},
        "trend": [
            {
                "quantile": level,
                "bias_log": None if trend is None else trend.bias_log,
                "change_log": None if trend is None else trend.change_log,
                "z": None if trend is None else trend.z,
                "grows": trend is not None and trend.grows(),
            }
            for level, trend in trends.items()
        ],
        "causes": {cause: causes.count(cause) for cause in sorted(set(causes))},
        "grows": any(trend is not None and trend.grows() for trend in trends.values()),
    }


def _print(account: dict[str, Any]) -> None:
    console = plain_console()
    factors = ", ".join(f"{role} x{factor:.3f}" for role, factor in account["cost_factors"].items())
    console.print(f"{account['windows']} closed windows replayed; step costs corrected by {factors}")
    for row in account["trend"]:
        name = f"P{row['quantile'] * 100:g}"
        if row["bias_log"] is None:
            console.print(f"bias at {name}: too few windows for a trend (8 needed)")
            continue
        word = "grows" if row["grows"] else "does not grow"
        lately, change = math.expm1(row["bias_log"]), math.expm1(row["change_log"])
        console.print(f"bias at {name}: {lately:+.1%} lately, its size changed by {change:+.1%}: it {word}")
    told = ", ".join(f"{cause} {count}" for cause, count in account["causes"].items())
    console.print(f"causes of errors: {told or 'none told'}")
