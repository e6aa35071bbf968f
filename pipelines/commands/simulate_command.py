"""Ask a recorded service what it would do: the next two minutes as it was, and as you would change it."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from pipelines.errors import ConfigError
from pipelines.ingest.recording import Level, Recording, read_recording
from pipelines.jobs import job_at
from pipelines.settings import Settings, parse_slo
from pipelines.warmth import read_warm
from schemas.engines import EngineConfig
from twin.job import HorizonResult, SimulationJob
from twin.metrics import METRICS, QUANTILES
from twin.simulate import run as simulate
from twin.traffic.scenarios import BASELINE
from twin.whatif import resized, with_config

NAME = "simulate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast simulate --help`."""
    parser.add_argument("recording", type=Path, metavar="DIR", help="folder of a recording")
    parser.add_argument(
        "--at", type=float, metavar="SECONDS", help="from this second of it on (default: its last tick)"
    )
    parser.add_argument("--rate", type=float, default=1.0, metavar="FACTOR", help="traffic times this")
    parser.add_argument("--engines", type=int, metavar="N", help="with so many engines")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="such as max_num_seqs=48")
    parser.add_argument("--replications", type=int, default=40, metavar="N", help="runs of each future (default 40)")
    parser.add_argument("--slo", action="append", metavar="METRIC:QUANTILE:SECONDS", help="such as ttft_s:0.95:0.5")
    parser.add_argument("--level", choices=("S0", "S1", "S2", "S3"), default="S3", help="what is seen of the recording")
    parser.add_argument("--warm", type=Path, metavar="FILE", help="begin with what was learned elsewhere")
    parser.add_argument("--json", action="store_true", help="answer with one JSON object")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Simulate both futures on the same random numbers and print them side by side."""
    if not 1 <= args.replications <= 10_000:
        raise ConfigError(f"--replications must be 1 to 10000, got {args.replications}")
    job = _job(args, settings, read_recording(args.recording, _level(args.level)))
    futures = {"as it is": job}
    changed = _changed(args, job)
    if changed != job:
        futures["changed"] = changed
    rows = {name: _rows(future) for name, future in futures.items()}
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode() + "\n")
        return 0
    _print(rows, Console())
    return 0


def _level(text: str) -> Level:
    return text  # type: ignore[return-value]  # argparse has checked it


def _job(args: argparse.Namespace, settings: Settings, recording: Recording) -> SimulationJob:
    core = replace(settings.core(recording.deployment), steps_expected=args.level in ("S2", "S3"))
    job = job_at(
        recording,
        core,
        at_s=args.at,
        slos=tuple(parse_slo(text) for text in args.slo or ()) or core.slos,
        warm=None if args.warm is None else read_warm(args.warm),
    )
    count = args.replications
    return replace(job.at_phase("coarse"), coarse_replications=count, fine_replications=count, scenarios=(BASELINE,))


def _changed(args: argparse.Namespace, job: SimulationJob) -> SimulationJob:
    if not 0.0 < args.rate <= 100.0:
        raise ConfigError(f"--rate must be above 0 and at most 100, got {args.rate}")
    changed = job if args.rate == 1.0 else replace(job, scenarios=(replace(BASELINE, rate_factor=args.rate),))
    if args.engines is not None:
        if not 1 <= args.engines <= 1000:
            raise ConfigError(f"--engines must be 1 to 1000, got {args.engines}")
        changed = replace(changed, engines=resized(changed.engines, args.engines - len(changed.engines), 0.0))
    for text in args.set:
        name, value = _assignment(text)
        try:
            changed = with_config(changed, **{name: value})
        except (TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"--set {text}: {error}; fields are those of an engine's record") from error
    return changed


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    field = next((f for f in msgspec.structs.fields(EngineConfig) if f.name == name), None)
    if not equals or field is None:
        known = ", ".join(f.name for f in msgspec.structs.fields(EngineConfig) if f.name not in ("deployment", "at_us"))
        raise ConfigError(f"--set must be FIELD=VALUE with a field of {known}; got {text!r}")
    try:
        return name, msgspec.convert(value, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--set {text}: {error}") from error


def _rows(job: SimulationJob) -> list[dict[str, Any]]:
    """Means over replications, per horizon."""
    result = simulate(job)
    scenario = result.scenarios[0]
    return [
        {
            "horizon_s": horizon.horizon_s,
            "arrivals_per_s": float(np.mean(horizon.arrivals)) / horizon.horizon_s,
            **_latencies(horizon),
            "throughput_requests_per_s": float(np.mean(horizon.throughput_requests_per_s)),
            "waiting_peak_requests": float(np.mean(horizon.waiting_peak_requests)),
            "kv_peak_ratio": float(np.mean(horizon.kv_peak_ratio)),
            "breach_probability": [float(np.mean(horizon.breached[:, slo])) for slo in range(len(job.slos))],
        }
        for horizon in scenario.horizons
    ]


def _latencies(horizon: HorizonResult) -> dict[str, float | None]:
    """Quantiles over the members of all replications; None where they did not finish."""
    found = {}
    for m, metric in enumerate(METRICS):
        for q, level in enumerate(QUANTILES):
            value = float(horizon.pooled_latency_s[m, q])
            found[f"{metric}_p{100 * level:g}"] = value if np.isfinite(value) else None
    return found


def _print(rows: dict[str, list[dict[str, Any]]], console: Console) -> None:
    table = Table("next", "", "requests/s", "TTFT P50", "P95", "P99", "TPOT P95", "served/s", "queue", "KV", box=None)
    if any(row["breach_probability"] for future in rows.values() for row in future):
        table.add_column("breach")
    for at, first in enumerate(next(iter(rows.values()))):
        for name, future in rows.items():
            table.add_row(f"{first['horizon_s']:g} s" if name == next(iter(rows)) else "", name, *_cells(future[at]))
    console.print(table)


def _cells(row: dict[str, Any]) -> list[str]:
    times = [row[key] for key in ("ttft_s_p50", "ttft_s_p95", "ttft_s_p99", "tpot_s_p95")]
    cells = [
        f"{row['arrivals_per_s']:.1f}",
        *("unfinished" if value is None else f"{value:.3f} s" for value in times),
        f"{row['throughput_requests_per_s']:.1f}",
        f"{row['waiting_peak_requests']:.0f}",
        f"{row['kv_peak_ratio']:.0%}",
    ]
    return [*cells, f"{max(row['breach_probability']):.0%}"] if row["breach_probability"] else cells
