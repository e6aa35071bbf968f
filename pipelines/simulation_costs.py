"""Where the step costs of a simulation come from: a file, hardware and model, or what a recording teaches.

Laws: exactly one origin; the costs of two equal configurations are equal; what cannot be had ends as one `ConfigError`
before anything runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.cost_file import read_costs
from pipelines.errors import ConfigError
from pipelines.hardware_costs import HardwareCosts, read_hardware_costs
from pipelines.traffic_source import TrafficSource
from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from schemas.steps import Step
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost, StepCost
from twin.cost.model import StepCostModel
from twin.cost.noise import StepNoise
from twin.cost.prior import kv_capacity_tokens, operating_range
from twin.cost.static import StaticCost, static_cost
from twin.ends.effective_costs import EffectiveCosts
from twin.engine.types import STEPS_PER_EPOCH, Noise
from twin.known.effects import CostChange, Kind, class_shares, cost_changes, hardware_changes

SPEED_WINDOW_S = 5.0
"""How closely a recorded speed is followed: long against a step, short against a burst."""
LONG_AFTER_US = 600_000_000
"""So long after the last end nothing can be under way that would tell more."""
FAR_BEYOND = 1.25
"""A batch so much larger than any recorded one is worth a word."""
LEAST_TABLE = 64
"""Learned costs are written out at least for batches up to this many, so that a grid finds the same costs."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of any configuration, `about` in words.

    `learned` is by engine where steps taught them, `prior` is there where hardware and model did.
    """

    about: str
    cost_of: Callable[[EngineConfig], FrozenStepCost]
    learned: Mapping[str, StaticCost] = field(default_factory=dict)
    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    prior: HardwareCosts | None = None

    @property
    def noise(self) -> StepNoise | None:
        """What learned costs leave unexplained (of the first engine)."""
        return next((found.noise for found in self.learned.values()), None)

    def speed_of(self, config: EngineConfig) -> Noise | None:
        """How the speed of the recorded machine went, None where costs were not learned."""
        found = self._of(config)
        if found is None:
            return None
        ratios = found.speed_ratios(SPEED_WINDOW_S, STEPS_PER_EPOCH)
        return Noise.from_ratios([ratios] * 3)

    def notes(self, config: EngineConfig) -> tuple[str, ...]:
        """What is beyond what the costs were learned from, or beyond the hardware."""
        if self.prior is not None:
            return _beyond_memory(self.prior, config)
        found = self._of(config)
        if found is None or config.max_num_seqs <= FAR_BEYOND * found.most_decodes:
            return ()
        return (
            f"max_num_seqs {config.max_num_seqs}: no recorded step had more than {found.most_decodes} sequences, so"
            " costs of larger batches are extrapolated",
        )

    def changes(self, config: EngineConfig) -> dict[tuple[Kind, str], CostChange]:
        """Everything that can be made cheaper, for a ranking by effect."""
        if self.prior is not None:
            limits = {key: change for key, change in cost_changes().items() if key[1] in _LIMITS or key[0] == "role"}
            graph, operators = self.prior.graph_of(config), self.prior.operators_of(config)
            return limits | hardware_changes(graph, operators, operating_range(config))
        return cost_changes(class_shares([step for rows in self.steps.values() for step in rows]))

    def exact_of(self, config: EngineConfig) -> StepCost:
        """Costs that are not forced into the affine form, where there are such. Raises ConfigError where not."""
        if self.prior is None:
            raise ConfigError("--exact needs --hardware: other costs are affine already; leave it out")
        return self.prior.exact_of(config)

    def _of(self, config: EngineConfig) -> StaticCost | None:
        return self.learned.get(config.engine) or next(iter(self.learned.values()), None)


def _beyond_memory(prior: HardwareCosts, config: EngineConfig) -> tuple[str, ...]:
    """A word where the engine holds more KV than fits beside the model."""
    graph = prior.graph_of(config)
    if not graph.kv_bytes_per_token:
        return ()
    try:
        most = kv_capacity_tokens(graph, prior.hardware) // config.block_size_tokens
    except ValueError as error:
        return (f"engine {config.engine!r}: {error}; simulated as if it fitted",)
    if config.kv_blocks <= FAR_BEYOND * most:
        return ()
    return (f"kv_blocks {config.kv_blocks:,}: about {most:,} fit beside the model on {prior.hardware.name}",)


_LIMITS = ("kv_blocks", "max_num_seqs", "max_num_batched_tokens")


def learned_costs(source: TrafficSource, engines: Sequence[EngineConfig], most_seqs: int = 0) -> Costs:
    """Static costs of every engine of a source, from its steps, or where there are none from its finished requests.

    `engines` are those of the source, or what it is to be taken for; one that taught nothing takes the costs of the
    first. `most_seqs` is the largest batch that will be asked for. Raises ConfigError if nothing can be learned.
    """
    if not source.steps:
        return _costs_of_ends(source, engines, most_seqs)
    limits = {config.engine: config.max_num_seqs for config in engines}
    found = {}
    for name, steps in source.steps.items():
        table = max(most_seqs, limits.get(name, 0), LEAST_TABLE)
        try:
            found[name] = static_cost(StepBlock.from_steps(steps), table)
        except ValueError as error:
            raise ConfigError(f"{source.name}, engine {name}: {error}; give costs another way") from error
    first = next(iter(found.values()))
    steps_told = ", ".join(f"{cost.steps:,} of engine {name}" for name, cost in found.items())
    return Costs(
        about=f"learned from the steps of {source.name} ({steps_told})",
        cost_of=lambda config: found.get(config.engine, first).cost,
        learned=found,
        steps=source.steps,
    )


def _costs_of_ends(source: TrafficSource, engines: Sequence[EngineConfig], most_seqs: int) -> Costs:
    """Costs that explain when finished requests got their tokens; each engine's requests teach its own."""
    by_engine: dict[str, list[RequestFinished]] = {}
    for record in source.finished:
        if record.timed and record.first_token_us is not None:
            by_engine.setdefault(record.engine if len(engines) > 1 else "", []).append(record)
    budget = max((config.max_num_batched_tokens for config in engines), default=0)
    found = {}
    for name, records in sorted(by_engine.items()):
        teacher = EffectiveCosts()
        for record in sorted(records, key=lambda record: record.at_us):
            teacher.on_finished(record)
        model, _ = teacher.learn(records[-1].at_us + LONG_AFTER_US, StepCostModel(), budget)
        if model.steps:
            found[name] = model
    if not found or not budget:
        raise ConfigError(
            f"{source.name} holds neither steps nor finished requests with times to learn costs from;"
            " give --costs-from RECORDING, --costs FILE, or --hardware and --model"
        )
    table = max(most_seqs, LEAST_TABLE, *(config.max_num_seqs for config in engines))
    costs = {name: model.freeze(table) for name, model in found.items()}
    first = next(iter(costs.values()))
    count = sum(map(len, by_engine.values()))
    return Costs(
        about=f"learned from {count:,} finished requests of {source.name} alone (no steps: less exact)",
        cost_of=lambda config: costs.get(config.engine, first),
    )


def file_costs(path: Path) -> Costs:
    """The costs of a file, for every engine. Raises ConfigError."""
    cost = read_costs(path)
    return Costs(about=f"from {path}", cost_of=lambda _: cost)


def hardware_costs(hardware: str, model: Path | None, operators: Path | None = None) -> Costs:
    """The prior of a model on hardware, or what its `operators` were measured to take. Raises ConfigError.

    Without `model` each engine's record must carry its model's config; `cost_of` says if it does not.
    """
    found = read_hardware_costs(hardware, model, operators)
    return Costs(about=found.about, cost_of=found.cost_of, prior=found)


def kv_blocks_of(costs: Costs) -> Callable[[EngineConfig], int] | None:
    """The KV blocks that fit beside the model on its hardware, where these are known."""
    prior = costs.prior
    if prior is None:
        return None

    def blocks(config: EngineConfig) -> int:
        try:
            return kv_capacity_tokens(prior.graph_of(config), prior.hardware) // config.block_size_tokens
        except ValueError as error:
            raise ConfigError(f"engine {config.engine!r}: kv_blocks: {error}; or set kv_blocks") from error

    return blocks
