"""One what-if, run: at the load as it came, and with a full batch. Ranks nothing.

Latencies are the client's, from arrival, queueing included. Law: numbers of a point depend on that point alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from schemas.slos import Metric, SloTarget
from twin.engine.types import EngineChoice, EngineName, Status
from twin.job import FrontendOverheads
from twin.known.chips import chip_use
from twin.known.comparison import quantile_name, twin_latencies
from twin.known.full_load import full_load
from twin.known.run import Routing, run_known
from twin.known.variants import Variant
from twin.metrics import METRICS, QUANTILES, Latencies, quantile, quantiles

OFFERED, FULL = "as offered", "full batch"
LOADS = (OFFERED, FULL)


@dataclass(frozen=True, slots=True)
class Judged:
    """A target at one load: the value (None: undefined, inf: never) and whether it is met."""

    load: str
    limit: SloTarget
    value_s: float | None

    @property
    def met(self) -> bool:
        """Whether the value is within the limit; an undefined one breaks nothing."""
        return self.value_s is None or self.value_s <= self.limit.limit_s


@dataclass(frozen=True, slots=True)
class Point:
    """Numbers of one variant. `latency_s[metric]["p95"]`; chip figures are of the run with a full batch.

    `mix` is what makes points comparable: mean prompt and output length in tokens, and prefill to decode engines.
    """

    name: str
    settings: Mapping[str, Any]
    chips: int
    mix: Mapping[str, float | str]
    offered_requests_per_s: float
    latency_s: Mapping[str, Mapping[str, float | None]]
    success_ratio: float
    preemptions: int
    prefix_hit_ratio: float
    ceiling_requests_per_s: float
    full_tpot_s: Mapping[str, float | None]
    prefill_chip_s_per_1000_tokens: float | None
    decode_chip_s_per_1000_tokens: float | None
    tokens_per_min_per_chip: float
    offered_tokens_per_min_per_chip: float
    judged: tuple[Judged, ...]
    simulator: EngineName
    notes: tuple[str, ...] = ()

    @property
    def meets_all(self) -> bool:
        """Whether it meets every target at every load at which it was judged."""
        return all(each.met for each in self.judged)


def run_point(
    variant: Variant,
    limits: Sequence[SloTarget] = (),
    *,
    routing: Routing = "least_outstanding",
    overheads: FrontendOverheads | None = None,
    notes: tuple[str, ...] = (),
    simulator: EngineChoice = "auto",
) -> Point:
    """Run a variant at both loads and judge it by `limits`; with a full batch only TPOT is judged."""
    requests = variant.requests
    engines, link = variant.engines, variant.link
    run = run_known(engines, requests, routing=routing, overheads=overheads, link=link, simulator=simulator)
    found = twin_latencies(requests, run, "client")
    full = full_load(engines, requests, link=link, simulator=simulator)
    busy = chip_use(run, requests.isl_tokens)
    span_s = max(run.end_s - float(requests.arrived_s[0]), 1e-9)
    arriving_s = float(requests.arrived_s[-1] - requests.arrived_s[0])
    return Point(
        name=variant.name,
        settings=variant.settings,
        chips=busy.chips,
        mix=_mix(variant),
        offered_requests_per_s=len(requests) / arriving_s if arriving_s > 0.0 else math.inf,
        latency_s={metric: _cells(found, metric) for metric in METRICS},
        success_ratio=float((run.status == Status.FINISHED).mean()),
        preemptions=int(run.preemptions.sum()),
        prefix_hit_ratio=float(run.cached_tokens.sum() / requests.isl_tokens.sum()),
        ceiling_requests_per_s=full.requests_per_s,
        full_tpot_s={quantile_name(q): _defined(quantile(full.tpot_s, q)) for q in QUANTILES},
        prefill_chip_s_per_1000_tokens=full.chips.prefill_chip_s_per_1000_tokens,
        decode_chip_s_per_1000_tokens=full.chips.decode_chip_s_per_1000_tokens,
        tokens_per_min_per_chip=full.tokens_per_min_per_chip,
        offered_tokens_per_min_per_chip=busy.output_tokens * 60.0 / span_s / busy.chips,
        judged=tuple(
            Judged(load, limit, _defined(quantile(values, limit.quantile)))
            for limit in limits
            for load, values in ((OFFERED, found.of(limit.metric)), (FULL, full.tpot_s))
            if load == OFFERED or limit.metric == "tpot_s"
        ),
        simulator=run.simulator,
        notes=notes,
    )


def _cells(found: Latencies, metric: Metric) -> dict[str, float | None]:
    values = quantiles(found.of(metric))
    return {quantile_name(q): _defined(float(value)) for q, value in zip(QUANTILES, values, strict=True)}


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _mix(variant: Variant) -> dict[str, float | str]:
    roles = [engine.config.role for engine in variant.engines]
    prefill, decode = roles.count("prefill"), roles.count("decode")
    common = gcd(prefill, decode) or 1
    return {
        "mean ISL": round(float(np.mean(variant.requests.isl_tokens)), 1),
        "mean OSL": round(float(np.mean(variant.requests.osl_tokens)), 1),
        "P:D": f"{prefill // common}:{decode // common}" if prefill or decode else "together",
    }
