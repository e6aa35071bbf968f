"""One setting turned in the twin: the base's requests on the base's engines with something changed. Explains nothing.

Every run meets the same draws of the costs' noise, so that a change is the setting's own. Laws: a turn that turns
nothing has an effect of exactly zero; numbers of a run depend on the window, the costs and the turn alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import FrozenStepCost
from twin.cost.noise import StepNoise
from twin.cost.shape import Role
from twin.engine.cluster_types import KvLink
from twin.evidence.hypotheses import PREFIX_SETTING, Turn
from twin.evidence.kv_transfer import hands_over, scaled
from twin.evidence.measure import group_name, in_stretch
from twin.evidence.phases import Stretch
from twin.evidence.window import Window, same_workload
from twin.known.comparison import twin_latencies
from twin.known.full_load import full_load
from twin.known.requests import KnownRequests, require_fit
from twin.known.run import KnownEngine, KnownRun, Routing, run_known
from twin.known.variants import CONFIG_FIELDS, with_fields, with_traffic
from twin.metrics import METRICS, BoolArray, FloatArray, IntArray, quantile
from twin.replicate import noise_of
from twin.traffic.streams import Streams

DRAWS = 8
"""Draws of noise behind an interval."""
CEILING = "ceiling"
PREFILL = "prefill tokens per step"
STEP = "step"
_TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
Figures = Mapping[tuple[str, str], FloatArray]
"""One value per draw by (name, group): latencies in seconds, the ceiling in requests/s, means per step."""


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """Step costs of any configuration; `classes` are shares of span classes in the step time of each role."""

    cost_of: Callable[[EngineConfig], FrozenStepCost]
    noise: StepNoise | None
    about: str
    classes: Mapping[str, Mapping[Role, float]]


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """The base under what-ifs. `other` is the window whose requests a turn of traffic takes."""

    base: Window
    other: Window
    costs: FittedCosts
    groups: tuple[Stretch, ...]
    routing: Routing = "recorded"
    link: KvLink | None = None
    seed: int = 0

    def figures(self, turn: Turn, settings: Mapping[str, Any] | None = None, *, draws: int = DRAWS) -> Figures:
        """All figures under a turn and settings of `twin.known.variants` (traffic fields and engine fields).

        Raises ValueError, naming the field, for a setting that cannot work.
        """
        window = self.other if turn.traffic else self.base
        asked = {**turn.settings, **(settings or {})}
        engines = self._engines(turn, asked)
        requests = with_traffic(self._with_hits(window, engines, turn), asked, engines[0].config.block_size_tokens)
        require_fit(requests, [engine.config for engine in engines])
        apart = hands_over(self.base.configs)
        link = None if self.link is None else scaled(self.link, turn.link_factor)
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(draws if self.costs.noise is not None else 1):
            run = run_known(
                [self._noised(engine, number) for engine in engines],
                requests,
                routing="least_outstanding" if apart and self.routing == "recorded" else self.routing,
                overheads=window.overheads,
                link=link,
            )
            for key, value in self._read(run, requests, window.members).items():
                found.setdefault(key, []).append(value)
        full = full_load(engines, requests, link=link)
        return {
            **{key: np.array(values) for key, values in found.items()},
            (CEILING, ""): np.array([full.requests_per_s]),
        }

    def _with_hits(self, window: Window, engines: Sequence[KnownEngine], turn: Turn) -> KnownRequests:
        """Requests that can hit: by their block hashes, or where they tell none, as often as they were recorded to."""
        requests = window.requests
        caching = any(engine.config.enable_prefix_caching for engine in engines)
        if not caching or requests.arrivals.hash_values.size:
            return requests
        cached = requests.cached_tokens
        if not (cached > 0).any() and same_workload(self.base, self.other):
            cached = self.other.requests.cached_tokens
        if (cached > 0).any():
            return sharing_as_recorded(requests, cached, engines[0].config.block_size_tokens)
        if turn.settings.get(PREFIX_SETTING):
            raise ValueError("requests tell neither block hashes nor cached tokens, so hits cannot be simulated")
        return requests

    def _engines(self, turn: Turn, settings: Mapping[str, Any]) -> list[KnownEngine]:
        fields = {name: value for name, value in settings.items() if name in CONFIG_FIELDS}
        if "prefix_hit_ratio" in settings:
            fields["enable_prefix_caching"] = True
        configs = [with_fields(config, fields) for config in self.base.configs]
        return [KnownEngine(config, self._cost(config, turn)) for config in configs]

    def _cost(self, config: EngineConfig, turn: Turn) -> FrozenStepCost:
        """Costs of the configuration with roles and classes dearer or cheaper."""
        cost = self.costs.cost_of(config)
        factors = {role: turn.role_factors.get(role, 1.0) for role in Role}
        for name, factor in turn.class_factors.items():
            for role in Role:
                factors[role] *= 1.0 + self.costs.classes.get(name, {}).get(role, 0.0) * (factor - 1.0)
        scaled = {str(role): cost.role(role).scaled(factors[role]) for role in Role if factors[role] != 1.0}
        return replace(cost, **scaled)

    def _noised(self, engine: KnownEngine, number: int) -> KnownEngine:
        streams = Streams(self.seed, "evidence", 0)
        return replace(engine, noise=noise_of(self.costs.noise, streams, number, engine.config.engine))

    def _read(self, run: KnownRun, requests: KnownRequests, members: BoolArray) -> dict[tuple[str, str], float]:
        latencies = twin_latencies(requests, run, "client")[members]
        found = {
            (f"{_TITLES[metric]} P{q * 100:g}", ""): quantile(latencies.of(metric), q)
            for metric in METRICS
            for q in (0.5, 0.95)
        }
        for stretch in self.groups:
            inside = in_stretch(self.base, stretch)
            if inside.size == latencies.ttft_s.size:
                found["TTFT P50", group_name(stretch)] = quantile(latencies.ttft_s[inside], 0.5)
        work = np.sum([result.work for result in run.results], axis=0)
        steps = max(float(work[:, 0].sum()), 1.0)
        return {
            **found,
            (PREFILL, ""): float(work[:, 2].sum()) / steps,
            (STEP, ""): float(work[:, 6].sum()) / steps / 1e9,
        }


def sharing_as_recorded(requests: KnownRequests, cached_tokens: IntArray, block_tokens: int) -> KnownRequests:
    """Requests whose first blocks, as many as were recorded to hit, are one text that all share."""
    old = requests.arrivals
    blocks = old.isl_tokens // block_tokens
    shared = np.minimum(np.maximum(cached_tokens, 0) // block_tokens, blocks)
    ends = np.cumsum(blocks)
    request = np.repeat(np.arange(blocks.size), blocks)
    place = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - blocks, blocks)
    own = (request + 1) * np.int64(2**31) + place
    arrivals = replace(
        old,
        hash_offsets=np.concatenate(([0], ends)).astype(np.int64),
        hash_values=np.where(place < shared[request], place, own),
        hash_block_tokens=block_tokens,
    )
    return replace(requests, arrivals=arrivals)


def ratios(before: Figures, after: Figures) -> dict[tuple[str, str], FloatArray]:
    """Relative change of each figure that both have, draw by draw; NaN where undefined."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {key: after[key] / before[key] - 1.0 for key in before if key in after}


def engine_differences(base: Sequence[EngineConfig], other: Sequence[EngineConfig]) -> dict[str, tuple[Any, Any]]:
    """Settings in which the engines differ, with both values; engines are compared in order."""
    found: dict[str, tuple[Any, Any]] = {}
    for one, two in zip(base, other, strict=False):
        sides = [msgspec.to_builtins(config) for config in (one, two)]
        for name in CONFIG_FIELDS:
            values = getattr(one, name), getattr(two, name)
            if values[0] != values[1] and name in sides[0] | sides[1]:
                found.setdefault(name, values)
    return found
