"""The arguments that `simulate` and `sweep` share: what is served, by which engines, at which costs.

Law: everything that can be wrong with them is found before anything is simulated.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.engine_file import KvBlocksOf, changed_engines, parse_settings, read_engines
from pipelines.errors import ConfigError
from pipelines.ingest.registry import FORMATS
from pipelines.kv_link import link_of, parse_link
from pipelines.simulation_costs import Costs, file_costs, hardware_costs, kv_blocks_of, learned_costs
from pipelines.traffic_source import TrafficSource, read_source
from schemas.engines import EngineConfig
from twin.engine.cluster_types import KvLink
from twin.hardware.presets import PRESETS


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """All that a simulation is made of. `own_costs`: they were learned from the source itself.

    `kv_blocks_of` is there if the engine file leaves the blocks to be computed: another setting may mean others.
    `link_of` says how KV travels between prefill and decode engines, where that is known.
    """

    source: TrafficSource
    engines: tuple[EngineConfig, ...]
    costs: Costs
    own_costs: bool
    kv_blocks_of: KvBlocksOf | None = None
    link_of: Callable[[EngineConfig], KvLink] | None = None

    @property
    def follows_speed(self) -> bool:
        """Whether steps of the source itself taught the costs, and so tell how fast its machine went when."""
        return self.own_costs and bool(self.costs.learned)

    @property
    def link(self) -> KvLink | None:
        """Between these engines; None if each does both. Raises ConfigError where one is needed and unknown."""
        if all(config.role == "both" for config in self.engines):
            return None
        if self.link_of is None:
            raise ConfigError("prefill and decode engines need --kv-link US_PER_TOKEN to say how long transfers take")
        return self.link_of(self.engines[0])


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, engines, costs."""
    parser.add_argument(
        "source", type=Path, nargs="+", metavar="SOURCE", help="a recording, an archive, or files of a trace"
    )
    parser.add_argument("--format", choices=tuple(FORMATS), metavar="NAME", help="of the files (default: told by them)")
    parser.add_argument("--deployment", metavar="NAME", help="which one, where the source holds several")
    parser.add_argument("--skip-refused", action="store_true", help="leave bad rows of a trace out instead of stopping")
    parser.add_argument("--engine", type=Path, metavar="FILE", help="engines instead of those of the recording")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of every engine, such as kv_blocks=400",
    )
    parser.add_argument("--kv-link", metavar="US_PER_TOKEN[:FIXED_US[:CV]]", help="KV transfer from prefill to decode")
    parser.add_argument("--kv-overlapped", action="store_true", help="KV transfers begin with the prefill")
    costs = parser.add_argument_group("step costs (default: what the source itself teaches)")
    costs.add_argument("--costs-from", type=Path, metavar="DIR", help="learned from this recording")
    costs.add_argument("--costs", type=Path, metavar="FILE", help="of a file, as --save-costs writes it")
    costs.add_argument(
        "--hardware", metavar="NAME|FILE", help=f"prior of a preset ({', '.join(PRESETS)}) or .toml file"
    )
    costs.add_argument("--model", type=Path, metavar="FILE", help="with --hardware: config.json or ONNX of the model")
    costs.add_argument(
        "--operators", type=Path, metavar="DIR", help="with --hardware: operators measured there (LLMServingSim's CSV)"
    )


def read_inputs(args: argparse.Namespace, most_seqs: int = 0) -> Inputs:
    """Read everything. `most_seqs` is the largest batch that will be asked for. Raises ConfigError."""
    origins = [name for name in ("costs_from", "costs", "hardware") if getattr(args, name) is not None]
    if len(origins) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in origins)
        raise ConfigError(f"{flags} are two origins of step costs; give one")
    for name in ("model", "operators"):
        if getattr(args, name) is not None and args.hardware is None:
            raise ConfigError(f"--{name} says nothing without --hardware; give both")
    fields = parse_settings(args.set)
    given_link = None if args.kv_link is None else parse_link(args.kv_link, overlapped=args.kv_overlapped)
    costs = _given_costs(args, most_seqs)
    source = read_source(
        args.source, format_name=args.format, deployment=args.deployment, skip_refused=args.skip_refused
    )
    engines, blocks_of = source.engines, None
    if args.engine is not None:
        blocks_of = None if costs is None else kv_blocks_of(costs)
        engines, computed = read_engines(args.engine, blocks_of, source.deployment)
        blocks_of = blocks_of if computed and "kv_blocks" not in fields else None
    if not engines:
        raise ConfigError(f"{source.name} does not tell how its engines are set; give --engine FILE")
    engines = changed_engines(engines, fields)
    if blocks_of is not None:
        engines = tuple(msgspec.structs.replace(config, kv_blocks=blocks_of(config)) for config in engines)
    largest = max(most_seqs, *(config.max_num_seqs for config in engines))
    known = costs or learned_costs(source, engines, largest)
    links = link_of(known, given_link, overlapped=args.kv_overlapped)
    return Inputs(source, engines, known, costs is None, blocks_of, links)


def _given_costs(args: argparse.Namespace, most_seqs: int) -> Costs | None:
    """Costs from elsewhere; None for those that the source itself teaches, named or not."""
    if args.costs_from is not None and [path.resolve() for path in args.source] == [args.costs_from.resolve()]:
        return None
    if args.costs_from is not None:
        teacher = read_source([args.costs_from])
        return learned_costs(teacher, teacher.engines, most_seqs)
    if args.costs is not None:
        return file_costs(args.costs)
    return None if args.hardware is None else hardware_costs(args.hardware, args.model, args.operators)
