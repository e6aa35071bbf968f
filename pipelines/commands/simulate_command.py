"""Simulate a recording or a trace, and compare with what was recorded."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec

from pipelines.cost_file import costs_json
from pipelines.errors import ConfigError
from pipelines.perfetto import perfetto_trace
from pipelines.progress import progress_bar
from pipelines.settings import Settings
from pipelines.simulation import Simulation, routing_of, simulate_inputs
from pipelines.simulation_arguments import add_input_arguments, read_inputs
from pipelines.simulation_rows import require_rows_file, rows_file
from pipelines.simulation_text import engine_lines, plain_console, print_comparison, print_effects
from pipelines.whole_file import require_writable, write_whole
from twin.engine.types import EngineChoice
from twin.known.effects import KnownEffect
from twin.known.run import ROUTINGS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast simulate --help`."""
    add_input_arguments(parser)
    parser.add_argument("--routing", choices=ROUTINGS, help="over several engines (default: the deployment's setting)")
    parser.add_argument(
        "--speed",
        choices=("constant", "recorded"),
        help="of the machine: as it went by the steps of the source itself (default where they taught the costs), or "
        "constant",
    )
    parser.add_argument(
        "--exact", action="store_true", help="with --hardware: cost every step by itself, closer and slower"
    )
    parser.add_argument(
        "--simulator", choices=get_args(EngineChoice), default="auto", help="default: the fastest that can"
    )
    parser.add_argument("--effects", action="store_true", help="rank bottlenecks by what ten per cent of each is worth")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON (- for stdout)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write a row per request, .csv or .jsonl")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--save-costs", type=Path, metavar="FILE", help="write the costs of the first engine")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Simulate, print, and write what was asked for."""
    _check_outputs(args)
    with progress_bar(f"reading {', '.join(path.name for path in args.source)}"):
        inputs = read_inputs(args)
    speed = args.speed or ("recorded" if inputs.follows_speed else "constant")
    with progress_bar(f"simulating {len(inputs.source.requests):,} requests"):
        found = simulate_inputs(
            inputs,
            routing=routing_of(args.routing, inputs, settings.core(inputs.source.deployment).routing),
            speed_as_recorded=speed == "recorded",
            exact=args.exact,
            simulator=args.simulator,
        )
    effects: list[KnownEffect] | None = None
    if args.effects:
        with progress_bar("ranking effects") as progress:
            effects = found.effects(progress)
    account = found.account() | {"speed": speed}
    if effects is not None:
        account["effects"] = [asdict(effect) for effect in effects]
    _write(args, found, account)
    if str(args.json) != "-":
        _print(found, effects, speed)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    named: dict[Path, str] = {}
    for name in ("json", "rows", "perfetto", "save_costs"):
        path, flag = getattr(args, name), "--" + name.replace("_", "-")
        if path is None or (name == "json" and str(path) == "-"):
            continue
        if str(path) == "-":
            raise ConfigError(f"{flag} -: only --json goes to stdout; name a file")
        require_writable(path)
        other = named.setdefault(path.resolve(), flag)
        if other != flag and (path.is_file() or not path.exists()):
            raise ConfigError(f"{other} and {flag} both name {path}; give each its own file")
    if args.rows is not None:
        require_rows_file(args.rows)


def _write(args: argparse.Namespace, found: Simulation, account: dict[str, Any]) -> None:
    source, costs = found.inputs.source, found.inputs.costs
    if args.rows is not None:
        write_whole(args.rows, rows_file(args.rows, source.requests, found.run, found.comparison.basis))
    if args.perfetto is not None:
        write_whole(args.perfetto, perfetto_trace(source.requests, found.with_curves(), source.name))
    if args.save_costs is not None:
        write_whole(args.save_costs, costs_json(costs.cost_of(found.inputs.engines[0]), costs.about))
    if args.json is not None:
        data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
        if str(args.json) == "-":
            sys.stdout.write(data.decode())
        else:
            write_whole(args.json, data)


def _print(found: Simulation, effects: list[KnownEffect] | None, speed: str) -> None:
    console = plain_console()
    followed = "; the machine's speed as recorded (--speed constant leaves that out)" * (speed == "recorded")
    console.print(f"{found.inputs.source.name}: costs {found.inputs.costs.about}{followed}", soft_wrap=True)
    for line in engine_lines(found.inputs.engines, found.routing):
        console.print(line, soft_wrap=True)
    print_comparison(found.comparison, console)
    if effects is not None:
        print_effects(effects, console)
    simulated = f"simulated {found.run.end_s:,.1f} s in {found.wall_s:.3f} s ({found.run.simulator})"
    reason = f"; not the kernel: {found.run.fallback}" if found.run.fallback else ""
    console.print(simulated + reason, soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)
