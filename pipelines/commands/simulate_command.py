"""Simulate a recording or a trace, and compare with what was recorded."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import msgspec

from pipelines.cost_file import costs_json
from pipelines.errors import ConfigError
from pipelines.perfetto import perfetto_trace
from pipelines.progress import progress_bar
from pipelines.settings import Settings
from pipelines.simulation_arguments import Inputs, add_input_arguments, read_inputs
from pipelines.simulation_rows import require_rows_file, rows_file
from pipelines.simulation_text import engine_lines, plain_console, print_comparison, print_effects
from pipelines.whole_file import require_writable, write_whole
from twin.cost.frozen import PS_PER_S
from twin.engine.types import EngineChoice, Grid
from twin.known.comparison import compare
from twin.known.effects import KnownEffect, rank_effects
from twin.known.requests import require_fit
from twin.known.run import ROUTINGS, KnownEngine, KnownRun, Routing, run_known

CURVE_POINTS = 2000
LEAST_GRID_S = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast simulate --help`."""
    add_input_arguments(parser)
    parser.add_argument("--routing", choices=ROUTINGS, help="over several engines (default: as recorded)")
    parser.add_argument(
        "--speed",
        choices=("constant", "recorded"),
        default="constant",
        help="of the machine: constant, or as it went in the recording that taught the costs",
    )
    parser.add_argument(
        "--simulator", choices=get_args(EngineChoice), default="auto", help="default: the fastest that can"
    )
    parser.add_argument("--effects", action="store_true", help="rank bottlenecks by what ten per cent of each is worth")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison as JSON (- for stdout)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write a row per request, .csv or .jsonl")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument(
        "--save-costs", type=Path, metavar="FILE", help="write the costs of the first engine, for --costs"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Simulate, print, and write what was asked for."""
    _check_outputs(args)
    with progress_bar(f"reading {', '.join(path.name for path in args.source)}") as progress:
        inputs = read_inputs(args)
        progress(1.0)
    if args.speed == "recorded" and not inputs.own_costs:
        raise ConfigError(
            "--speed recorded follows the source's own steps; leave --costs, --costs-from, --hardware out"
        )
    routing: Routing = args.routing or _default_routing(inputs)
    try:
        require_fit(inputs.source.requests, inputs.engines)
        engines = [
            KnownEngine(config, inputs.costs.cost_of(config), _noise(inputs, config, args.speed))
            for config in inputs.engines
        ]
        started = time.perf_counter()
        result = run_known(
            engines,
            inputs.source.requests,
            routing=routing,
            overheads=inputs.source.overheads,
            simulator=args.simulator,
        )
        wall_s = time.perf_counter() - started
    except ValueError as error:
        raise ConfigError(f"{inputs.source.name}: {error}") from error
    found = compare(inputs.source.requests, result, inputs.source.steps)
    effects = _effects(inputs, engines, routing) if args.effects else []
    account = {
        "source": inputs.source.name,
        "deployment": inputs.source.deployment,
        **found.plain(),
        "costs": inputs.costs.about,
        "routing": routing,
        "speed": args.speed,
        "engine": result.simulator,
        "fallback": result.fallback,
        "wall_s": wall_s,
        "notes": list(_notes(inputs)),
        **({"effects": [asdict(effect) for effect in effects]} if args.effects else {}),
    }
    _write(args, inputs, engines, result, routing, account)
    if str(args.json) == "-":
        return 0
    console = plain_console()
    console.print(f"{inputs.source.name}: costs {inputs.costs.about}", soft_wrap=True)
    for line in engine_lines(inputs.engines, routing):
        console.print(line, soft_wrap=True)
    print_comparison(found, console)
    if effects:
        print_effects(effects, console)
    simulated = f"simulated {result.end_s:,.1f} s in {wall_s:.3f} s ({result.simulator})"
    console.print(simulated + (f"; not the kernel: {result.fallback}" if result.fallback else ""), soft_wrap=True)
    for note in _notes(inputs):
        console.print(f"note: {note}", soft_wrap=True)
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    for path in (args.json, args.rows, args.perfetto, args.save_costs):
        if path is not None and str(path) != "-":
            require_writable(path)
    if args.rows is not None:
        require_rows_file(args.rows)


def _default_routing(inputs: Inputs) -> Routing:
    """As recorded, if the recording says which of these engines served each request."""
    names = {config.engine for config in inputs.engines}
    return "recorded" if set(inputs.source.requests.engine) <= names else "round_robin"


def _noise(inputs: Inputs, config: Any, speed: str) -> Any:
    return inputs.costs.speed_of(config) if speed == "recorded" else None


def _effects(inputs: Inputs, engines: list[KnownEngine], routing: Routing) -> list[KnownEffect]:
    with progress_bar("ranking effects") as progress:
        return rank_effects(
            engines,
            inputs.source.requests,
            inputs.costs.changes(inputs.engines[0]),
            noise=inputs.costs.noise,
            routing=routing,
            overheads=inputs.source.overheads,
            progress=progress,
        )


def _notes(inputs: Inputs) -> tuple[str, ...]:
    notes = (*inputs.source.notes, *(note for config in inputs.engines for note in inputs.costs.notes(config)))
    return tuple(dict.fromkeys(notes))


def _write(
    args: argparse.Namespace,
    inputs: Inputs,
    engines: list[KnownEngine],
    result: KnownRun,
    routing: Routing,
    account: dict[str, Any],
) -> None:
    requests = inputs.source.requests
    if args.rows is not None:
        write_whole(args.rows, rows_file(args.rows, requests, result, account["basis"]))
    if args.perfetto is not None:
        step_s = max(result.end_s / CURVE_POINTS, LEAST_GRID_S)
        grid = Grid(round(step_s * PS_PER_S), int(result.end_s / step_s) + 2)
        drawn = run_known(engines, requests, routing=routing, overheads=inputs.source.overheads, grid=grid)
        write_whole(args.perfetto, perfetto_trace(requests, drawn, inputs.source.name))
    if args.save_costs is not None:
        write_whole(args.save_costs, costs_json(inputs.costs.cost_of(inputs.engines[0]), inputs.costs.about))
    if args.json is not None:
        data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
        if str(args.json) == "-":
            sys.stdout.write(data.decode())
        else:
            write_whole(args.json, data)
