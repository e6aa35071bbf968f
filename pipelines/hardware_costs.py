"""Step costs of a model on hardware, before any data: from the roofline, or from operators that were measured there.

Laws: equal configurations cost the same; an operator, model or link that is not known ends as one `ConfigError` that
names it, before anything runs.
"""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipelines.errors import ConfigError
from pipelines.hardware_file import load_hardware
from pipelines.model_file import read_graph
from pipelines.operator_tables import read_llmservingsim
from schemas.engines import EngineConfig
from twin.cost.exact import ExactStepCost
from twin.cost.freeze import freeze
from twin.cost.frozen import FrozenStepCost
from twin.cost.padding import padded_cost, padded_shape
from twin.cost.prior import engine_graph, operating_range, step_seconds
from twin.cost.roofline import Roofline
from twin.cost.tables import Measured, MeasuredCosts
from twin.graph.build import Parallelism
from twin.graph.operators import OperatorGraph
from twin.hardware.topology import Hardware


@dataclass(frozen=True, slots=True, eq=False)
class HardwareCosts:
    """Costs of any configuration.

    `model` is the model's file (None: each engine's record tells it); `rows` are measured operators (none: the
    roofline alone).
    """

    hardware: Hardware
    model: Path | None
    rows: tuple[Measured, ...] = ()
    _frozen: dict[bytes, FrozenStepCost] = field(default_factory=dict)

    def graph_of(self, config: EngineConfig) -> OperatorGraph:
        """The operators of one step. Raises ConfigError if the model is not told or cannot be split."""
        try:
            if self.model is None:
                if not config.model_config:
                    raise ConfigError(f"engine {config.engine!r} does not tell its model; give --model config.json")
                return engine_graph(config)
            if self.model.suffix == ".onnx":
                return read_graph(self.model)
            split = Parallelism(
                tensor=config.tensor_parallel, pipeline=config.pipeline_parallel, expert=config.expert_parallel
            )
            return read_graph(self.model, split, async_scheduling=config.async_scheduling)
        except ValueError as error:
            raise ConfigError(f"engine {config.engine!r}: {error}; change its model or its split") from error

    def operators_of(self, config: EngineConfig) -> Roofline | MeasuredCosts:
        """Costs of operators. Raises ConfigError for a measured operator that the model does not have."""
        roofline = Roofline(self.hardware)
        if not self.rows:
            return roofline
        try:
            return MeasuredCosts.of(self.rows, self.graph_of(config), roofline)
        except ValueError as error:
            raise ConfigError(f"--operators: {error}; give the profile of this model") from error

    def cost_of(self, config: EngineConfig) -> FrozenStepCost:
        """The affine form. Raises ConfigError if the hardware lacks what the model needs."""
        key = msgspec.json.encode(msgspec.structs.replace(config, engine="any", kv_blocks=1))
        if key not in self._frozen:
            step_s = step_seconds(self.graph_of(config), self.operators_of(config))
            try:
                cost = freeze(step_s, operating_range(config))
                self._frozen[key] = padded_cost(cost, config.cudagraph_capture_sizes)
            except ValueError as error:
                raise ConfigError(
                    f"engine {config.engine!r} on {self.hardware.name}: {error}; change one of them"
                ) from error
        return self._frozen[key]

    def exact_of(self, config: EngineConfig) -> ExactStepCost:
        """The step time itself, not affine. Raises ConfigError as `cost_of` does."""
        self.cost_of(config)
        step_s = step_seconds(self.graph_of(config), self.operators_of(config))
        return ExactStepCost(lambda shape: step_s(padded_shape(shape, config.cudagraph_capture_sizes)))

    @property
    def about(self) -> str:
        """In words."""
        model = "the recorded model" if self.model is None else str(self.model)
        origin = f"from {len(self.rows):,} measured operator shapes" if self.rows else "prior, no data"
        return f"of {model} on {self.hardware.name} ({origin})"


def read_hardware_costs(hardware: str, model: Path | None, operators: Path | None) -> HardwareCosts:
    """Read what can be read at once. Raises ConfigError if one of the files cannot be."""
    found = load_hardware(hardware)
    if model is not None:
        read_graph(model)
    rows = () if operators is None else tuple(read_llmservingsim(operators))
    return HardwareCosts(found, model, rows)
