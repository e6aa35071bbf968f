"""Find the throughput ceiling, or run what-ifs over a grid of settings and judge them by limits."""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.grid_arguments import TPOT_LIMIT, parse_grid
from pipelines.progress import progress_bar
from pipelines.settings import Settings, parse_slo, slo_target
from pipelines.simulation import routing_of
from pipelines.simulation_arguments import add_input_arguments, read_inputs
from pipelines.simulation_text import plain_console
from pipelines.sweep_text import curve_account, grid_account, print_curve, print_grid
from pipelines.sweeping import Sweep, prepare_sweep
from pipelines.whole_file import require_writable, write_whole
from schemas.slos import SloTarget
from twin.cost.model import MAX_NUM_SEQS
from twin.known.points import Point
from twin.known.run import ROUTINGS
from twin.sweep import LoadCurve

POLICIES = tuple(name for name in ROUTINGS if name != "recorded")
"""Other engines than those recorded cannot be routed as recorded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast sweep --help`."""
    add_input_arguments(parser)
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=V1,V2",
        help="what-ifs, all combinations of: engines, pd (prefill:decode engines such as 1:3), rate_factor, "
        "isl_factor, osl_factor, prefix_hit_ratio, tpot_limit_s, or a field of the engine such as max_num_seqs",
    )
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="METRIC:QUANTILE:SECONDS",
        help="who falls out, such as tpot_s:0.95:0.010; give two to see what tightening does",
    )
    parser.add_argument("--routing", choices=POLICIES, help="over several engines (default: the deployment's setting)")
    parser.add_argument("--rates", metavar="R1,R2", help="requests/s of the load curve (default: around the ceiling)")
    parser.add_argument("--span", type=float, default=120.0, metavar="S", help="simulated seconds per rate (120)")
    parser.add_argument("--replications", type=int, default=4, metavar="N", help="runs of each rate (4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON (- for stdout)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Sweep, print, and write what was asked for."""
    asked, tpot_limits_s = parse_grid(args.grid)
    limits = _limits(args.limit, tpot_limits_s)
    rates = _rates(args)
    if args.json is not None and str(args.json) != "-":
        require_writable(args.json)
    with progress_bar(f"reading {', '.join(path.name for path in args.source)}"):
        inputs = read_inputs(args, _most_seqs(asked))
    setting = settings.core(inputs.source.deployment).routing
    found = prepare_sweep(inputs, asked, routing_of(args.routing or setting, inputs, setting))
    started = time.perf_counter()
    points: list[Point] = []
    curve: LoadCurve | None = None
    if args.grid or limits:
        with progress_bar(f"{len(found.variants)} what-ifs") as progress:
            points = found.points(limits, progress)
    if not args.grid:
        with progress_bar("load curve"):
            curve = found.curve(rates, args.span, args.replications)
    account = _account(found, points, limits, curve) | {"wall_s": time.perf_counter() - started}
    if args.json is not None:
        data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
        if str(args.json) == "-":
            sys.stdout.write(data.decode())
            return 0
        write_whole(args.json, data)
    _print(found, points, limits, curve)
    return 0


def _account(
    found: Sweep, points: Sequence[Point], limits: Sequence[SloTarget], curve: LoadCurve | None
) -> dict[str, Any]:
    return {
        "source": found.inputs.source.name,
        "costs": found.inputs.costs.about,
        "routing": found.routing,
        **(grid_account(points, limits) if points else {}),
        **(curve_account(curve) if curve is not None else {}),
        "notes": list(found.inputs.source.notes),
    }


def _print(found: Sweep, points: Sequence[Point], limits: Sequence[SloTarget], curve: LoadCurve | None) -> None:
    console = plain_console()
    console.print(f"{found.inputs.source.name}: costs {found.inputs.costs.about}", soft_wrap=True)
    if curve is not None:
        print_curve(curve, console)
    if points:
        print_grid(points, limits, console)
    for note in found.inputs.source.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _limits(texts: Sequence[str], tpot_limits_s: Sequence[float]) -> list[SloTarget]:
    """Targets of --limit and of the grid, each once."""
    found = [parse_slo(text) for text in texts]
    found += [slo_target("tpot_s", 0.95, value, "", where=f"--grid {TPOT_LIMIT}") for value in tpot_limits_s]
    classed = next((limit.traffic_class for limit in found if limit.traffic_class), None)
    if classed is not None:
        raise ConfigError(f"--limit of class {classed!r}: a sweep judges all requests; leave the class out")
    return list(dict.fromkeys(found))


def _rates(args: argparse.Namespace) -> list[float] | None:
    if not (math.isfinite(args.span) and 10.0 <= args.span <= 86_400.0):
        raise ConfigError(f"--span must be 10 to 86400 seconds, got {args.span}; correct it")
    if not 1 <= args.replications <= 1000:
        raise ConfigError(f"--replications must be 1 to 1000, got {args.replications}; correct it")
    if args.rates is None:
        return None
    try:
        rates = [float(word) for word in args.rates.split(",")]
    except ValueError:
        raise ConfigError(f"--rates must be numbers separated by commas, got {args.rates!r}; correct it") from None
    if not all(0.0 < rate < 1e6 for rate in rates):
        raise ConfigError(f"--rates must be above 0 requests/s, got {args.rates!r}; correct it")
    return rates


def _most_seqs(asked: Sequence[dict[str, Any]]) -> int:
    """The largest batch of the grid; what is no number or too large is refused later, by its point."""
    values = [str(point["max_num_seqs"]) for point in asked if "max_num_seqs" in point]
    return min(max((int(value) for value in values if value.isdecimal()), default=0), MAX_NUM_SEQS)
