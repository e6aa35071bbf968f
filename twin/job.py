"""What a simulation of the near future takes and gives, as plain frozen data. Simulates nothing.

Everything pickles, so a job can run in another process. Law: a result depends on its job alone, byte for byte; the
first replications of a longer job are those of a shorter one.
"""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from schemas.actions import What
from schemas.changes import Phase
from schemas.engines import EngineConfig
from schemas.forecasts import Bottleneck, EnginesResponse, Estimate
from schemas.slos import Metric, SloTarget
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import StepNoise
from twin.ends.presence import Presence
from twin.engine.cluster_types import KvLink
from twin.engine.types import EngineName, EngineState
from twin.metrics import CLOSES_AFTER_S, METRICS, QUANTILES, BoolArray, FloatArray, IntArray
from twin.traffic.plan import TrafficPlan
from twin.traffic.scenarios import BASELINE, Scenario
from twin.traffic.streams import Streams

if TYPE_CHECKING:
    from twin.closed_window import ClosedWindow
    from twin.window_job import WindowJob

DEFAULT_HORIZONS_S = (30.0, 60.0, 120.0)


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """One engine as of the job's `as_of`. Output lengths in `state` are placeholders: they are drawn anew.

    Where nobody tells who is in the engine, `presence` is given, and each replication draws its state from it.

    It takes new requests from `available_from_s` (an engine that is starting) to `available_until_s` (one that will
    drain; 0: it drains already), and is lost at `gone_at_s`, seconds from `as_of`. Engines with the same `device` (not
    empty) slow each other down by `sharing_ratio`. `weight` is for weighted routing.
    """

    name: str
    config: EngineConfig
    cost: FrozenStepCost
    noise: StepNoise | None = None
    state: EngineState = field(default_factory=EngineState)
    available_from_s: float = 0.0
    available_until_s: float = math.inf
    presence: Presence | None = None
    gone_at_s: float = math.inf
    device: str = ""
    sharing_ratio: float = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("available_until_s", "gone_at_s"):
            end_s = getattr(self, name)
            if not 0.0 <= self.available_from_s <= end_s:
                raise ValueError(
                    f"engine {self.name!r} must have 0 <= available_from_s <= {name}, "
                    f"got {self.available_from_s} and {end_s}"
                )


@dataclass(frozen=True, slots=True)
class FrontendOverheads:
    """Time a request spends outside the engine, each as equally likely values in seconds, ascending (none: no time).

    `to_engine_s`: arrival at the frontend to the engine's input queue. `to_client_s`: a token in the engine to the
    same token at the client.
    """

    to_engine_s: tuple[float, ...] = ()
    to_client_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("to_engine_s", "to_client_s"):
            values = getattr(self, name)
            if any(not (math.isfinite(value) and value >= 0.0) for value in values) or list(values) != sorted(values):
                raise ValueError(f"overheads.{name} must be finite, >= 0 and ascending")


@dataclass(frozen=True, slots=True)
class Trials:
    """Which actions a job is to try. An engine added now is ready after `start_s`; `window_s` after that is judged.

    `deltas` are engines more or less, rising, 0 among them; fewer are tried with `headroom_ratio` times the traffic.
    Other actions, if `others`, act at once and are tried over `near_s`. More engines, and these, are tried only where
    the upper side of doing nothing, its interval stretched by `widen`, is over `trip_ratio` of a limit.
    Where `demand_per_s` is given, engines are tried on traffic that goes from `now_per_s` to that rate by the time an
    engine is ready, its level beyond doubt, instead of on the forecast: whoever gives it has put the doubt into it.
    """

    start_s: float = 120.0
    window_s: float = 60.0
    near_s: float = 60.0
    deltas: tuple[int, ...] = (-1, 0, 1, 2, 3)
    trip_ratio: float = 1.0
    replications: int = 8
    others: bool = True
    widen: float = 1.0
    headroom_ratio: float = 1.2
    demand_per_s: float | None = None
    now_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start_s", "window_s", "near_s", "trip_ratio", "widen", "headroom_ratio", "now_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"trials.{name} must be a finite number >= 0, got {value}")
        if self.demand_per_s is not None and not (math.isfinite(self.demand_per_s) and self.demand_per_s >= 0.0):
            raise ValueError(f"trials.demand_per_s must be a finite number >= 0 or None, got {self.demand_per_s}")
        if min(self.window_s, self.near_s) < 1.0:
            raise ValueError(f"trials need window_s and near_s >= 1 s, got {self.window_s} and {self.near_s}")
        if list(self.deltas) != sorted(set(self.deltas)) or 0 not in self.deltas:
            raise ValueError(f"trials.deltas must rise and hold 0, got {self.deltas}")
        if self.replications < 2:
            raise ValueError(f"trials.replications must be at least 2, got {self.replications}")


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """One forecast to compute, and with it, if `window` is given, a closed window to replay.

    Simulated arrivals go on for `arrivals_beyond_s` after the longest horizon, so that its last members meet company;
    a horizon's window closes `closes_after_s` after its end, and what is unfinished then is +inf. `routing` is a policy
    of `twin.engine.routing`; `link` joins prefill and decode engines. `grid_s` is the interval of curves.
    `with_insight` asks a fine job for the ceiling, the bottlenecks and the response surface too, which are further
    simulations; `trials` asks for actions tried. Members of a horizon arrive after `members_from_s`, which is below the
    shortest horizon. `share` = (k, n) asks for the k-th of n parts of each scenario's replications, see `twin.split`.
    """

    deployment: str
    as_of_us: int
    tick: int
    phase: Phase
    engines: tuple[EngineSetup, ...]
    traffic: TrafficPlan
    root_seed: int
    routing: str = "least_outstanding"
    link: KvLink | None = None
    overheads: FrontendOverheads = FrontendOverheads()
    slos: tuple[SloTarget, ...] = ()
    horizons_s: tuple[float, ...] = DEFAULT_HORIZONS_S
    coarse_replications: int = 3
    fine_replications: int = 30
    scenarios: tuple[Scenario, ...] = (BASELINE,)
    grid_s: float = 1.0
    arrivals_beyond_s: float = CLOSES_AFTER_S
    closes_after_s: float = CLOSES_AFTER_S
    with_insight: bool = False
    share: tuple[int, int] = (0, 1)
    members_from_s: float = 0.0
    trials: Trials | None = None
    window: "WindowJob | None" = None

    def __post_init__(self) -> None:
        if not self.engines:
            raise ValueError("job.engines must not be empty")
        if not self.horizons_s or list(self.horizons_s) != sorted(set(self.horizons_s)) or self.horizons_s[0] <= 0:
            raise ValueError(f"job.horizons_s must be > 0 and rise, got {self.horizons_s}")
        if not 1 <= self.coarse_replications <= self.fine_replications:
            raise ValueError(
                "job needs 1 <= coarse_replications <= fine_replications, "
                f"got {self.coarse_replications} and {self.fine_replications}"
            )
        part, parts = self.share
        if not 0 <= part < parts <= self.coarse_replications:
            raise ValueError(f"job.share must be part k of n <= {self.coarse_replications}, got {self.share}")
        names = [scenario.name for scenario in self.scenarios]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"job.scenarios must have names, each once, got {names}")
        for setting, least in (("grid_s", 1e-3), ("arrivals_beyond_s", 0.0), ("closes_after_s", 0.0)):
            value = getattr(self, setting)
            if not least <= value <= 86_400.0:
                raise ValueError(f"job.{setting} must be in [{least}, 86400] s, got {value}")
        if self.horizons_s[0] < self.grid_s:
            raise ValueError(
                f"job.grid_s must be at most the shortest horizon {self.horizons_s[0]} s, got {self.grid_s}"
            )
        if not 0.0 <= self.members_from_s < self.horizons_s[0]:
            raise ValueError(
                f"job.members_from_s must be >= 0 and below the shortest horizon {self.horizons_s[0]} s, "
                f"got {self.members_from_s}"
            )
        if self.horizons_s[-1] > 86_400.0:
            raise ValueError(f"job.horizons_s must be at most 86400 s, got {self.horizons_s}; use the rate outlook")

    @property
    def replications(self) -> int:
        """How many of its first scenario this job runs."""
        return len(self.replication_numbers(0))

    def replication_numbers(self, scenario: int) -> range:
        """Which replications of `scenarios[scenario]` in this phase this job runs, at least one.

        Where they do not divide evenly, each scenario favours another part than the one before it.
        """
        count = self.coarse_replications if self.phase == "coarse" else self.fine_replications
        part, parts = self.share
        favoured = scenario % parts
        return range((count * part + favoured) // parts, (count * (part + 1) + favoured) // parts)

    @property
    def arrivals_span_s(self) -> float:
        """Arrivals are drawn in (0, this]."""
        return self.horizons_s[-1] + self.arrivals_beyond_s

    @property
    def span_s(self) -> float:
        """Simulated time: until the last window closes."""
        return self.horizons_s[-1] + self.closes_after_s

    @property
    def streams(self) -> Streams:
        """Random streams of the job. Candidates that share seed, deployment and `as_of` share random numbers."""
        return Streams(self.root_seed, self.deployment, self.as_of_us)

    def at_phase(self, phase: Phase) -> "SimulationJob":
        """The same job with the replications of another phase."""
        return replace(self, phase=phase)


@dataclass(frozen=True, slots=True, eq=False)
class HorizonResult:
    """Requests that arrived in (0, `horizon_s`], one entry per replication (R of them) unless said otherwise.

    `latency_s` is float64[R, metrics, quantiles] in the order of `METRICS` and `QUANTILES`. `breached`, bool[R, slos]:
    the target's quantile is over its limit. Success, goodput, latencies and preemptions are of members; throughput,
    tokens and peaks are of the engines during the horizon, requests in flight at `as_of` included. Undefined is NaN.
    """

    horizon_s: float
    arrivals: IntArray
    latency_s: FloatArray
    throughput_requests_per_s: FloatArray
    output_tokens_per_s: FloatArray
    success_ratio: FloatArray
    goodput_requests_per_s: FloatArray
    waiting_peak_requests: FloatArray
    kv_peak_ratio: FloatArray
    preemptions: FloatArray
    busy_ratio: FloatArray
    breached: BoolArray

    def latency(self, metric: Metric, quantile: float) -> FloatArray:
        """One quantile of one metric, float64[R]. Raises ValueError for one that was not computed."""
        if quantile not in QUANTILES:
            raise ValueError(f"quantile must be one of {QUANTILES}, got {quantile}")
        return self.latency_s[:, METRICS.index(metric), QUANTILES.index(quantile)]


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """Engine totals sampled every `interval_s` from `as_of`, each float64[R, points].

    `kv_ratio` is the fullest engine's; `busy_ratio` and `saturated_ratio` are shares of time since the last sample
    (mean over engines, worst engine).
    """

    interval_s: float
    waiting_requests: FloatArray
    running_requests: FloatArray
    kv_ratio: FloatArray
    busy_ratio: FloatArray
    saturated_ratio: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ScenarioResult:
    """One scenario. Balance: `requests_ratio` and `engine_busy_ratio` are float64[R, engines]."""

    scenario: str
    horizons: tuple[HorizonResult, ...]
    curves: Curves
    requests_ratio: FloatArray
    engine_busy_ratio: FloatArray

    def horizon(self, horizon_s: float) -> HorizonResult:
        """One horizon. Raises ValueError for one that was not computed."""
        for candidate in self.horizons:
            if candidate.horizon_s == horizon_s:
                return candidate
        raise ValueError(f"scenario {self.scenario!r} has no horizon of {horizon_s} s")


@dataclass(frozen=True, slots=True)
class Insight:
    """What further simulations gave: the ceiling, the effect of making things cheaper, other engine counts."""

    ceiling_requests_per_s: Estimate | None = None
    bottlenecks: tuple[Bottleneck, ...] = ()
    responses: tuple[EnginesResponse, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """One action as it was simulated, and doing nothing over the same members: equal random numbers on both sides.

    `danger_after_s`: doing nothing is not in danger for requests that arrive earlier than that, seconds from `as_of`,
    as far as was looked (not before `members_from_s`); None where it is in no danger.
    """

    what: What
    found: HorizonResult
    without: HorizonResult
    members_from_s: float = 0.0
    danger_after_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult:
    """All scenarios of a job. `engine` says what ran, `fallback` why it was not the kernel (empty: it was).

    `tried` holds the actions that the job asked to try, `window` the closed window that it gave to replay.
    """

    deployment: str
    as_of_us: int
    tick: int
    phase: Phase
    replications: int
    engine_names: tuple[str, ...]
    slos: tuple[SloTarget, ...]
    scenarios: tuple[ScenarioResult, ...]
    simulated_requests: int
    engine: EngineName
    fallback: str = ""
    insight: Insight = Insight()
    tried: tuple[Tried, ...] = ()
    window: "ClosedWindow | None" = None

    def scenario(self, name: str = BASELINE.name) -> ScenarioResult:
        """One scenario. Raises ValueError for one that was not asked for."""
        for candidate in self.scenarios:
            if candidate.scenario == name:
                return candidate
        raise ValueError(f"result of tick {self.tick} has no scenario {name!r}")

    def breach_probability(self, slo: int, horizon_s: float, scenario: str = BASELINE.name) -> float:
        """Share of replications in which target `slos[slo]` is missed."""
        return float(np.mean(self.scenario(scenario).horizon(horizon_s).breached[:, slo]))
