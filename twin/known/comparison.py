"""Recorded latencies and counts beside the twin's. Simulates nothing, judges nothing.

Times are as the engine saw them (queued to first and last token) where the recording tells that, else as the client
did (arrival to token). Compared are the requests whose end is recorded. Laws: what was not recorded is None, never 0;
a recording compared with itself differs nowhere.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from schemas.steps import Step
from twin.engine.types import Status
from twin.known.requests import NOT_TOLD, End, KnownRequests
from twin.known.run import KnownRun
from twin.metrics import METRICS, QUANTILES, BoolArray, Latencies, latencies, quantiles

Basis = Literal["engine", "client"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One number: recorded (None: not told) and simulated (None: undefined)."""

    observed: float | None
    twin: float | None

    @property
    def error_ratio(self) -> float | None:
        """Twin against recorded, 0 for equal; None where either is missing or the recorded one is 0."""
        if self.observed is None or self.twin is None or self.observed == 0.0:
            return None
        return self.twin / self.observed - 1.0

    def plain(self) -> dict[str, float | None]:
        """For JSON; `observed` is left out where nothing was recorded."""
        return {"twin": self.twin} if self.observed is None else {"observed": self.observed, "twin": self.twin}

    def plain_count(self) -> dict[str, int | None]:
        """The same of what is counted."""
        return {name: None if value is None else round(value) for name, value in self.plain().items()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of `requests` requests. `metrics[metric]["p95"]` are seconds; `balance` the share of requests of each engine."""

    requests: int
    basis: Basis
    metrics: Mapping[str, Mapping[str, Pair]]
    preemptions: Pair
    success_ratio: Pair
    saturated_ratio: Pair
    prefill_tokens: Pair
    cached_tokens: Pair
    balance: Mapping[str, Pair]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        counts, ratios = ("preemptions", "prefill_tokens", "cached_tokens"), ("success_ratio", "saturated_ratio")
        return {
            "requests": self.requests,
            "basis": self.basis,
            "metrics": {
                metric: {name: pair.plain() for name, pair in cells.items()} for metric, cells in self.metrics.items()
            },
            **{name: getattr(self, name).plain_count() for name in counts},
            **{name: getattr(self, name).plain() for name in ratios},
            "balance": {name: pair.plain() for name, pair in self.balance.items()},
        }


def compare(requests: KnownRequests, run: KnownRun, steps: Mapping[str, Iterable[Step]] | None = None) -> Comparison:
    """The account of a run; `steps` are the recorded ones by engine, for what only they tell."""
    known = requests.end != End.OPEN
    basis: Basis = "engine" if requests.has_engine_stamps else "client"
    observed, twin = observed_latencies(requests, basis)[known], twin_latencies(requests, run, basis)[known]
    done = known & (requests.end == End.FINISHED)
    told = bool(np.isfinite(observed.e2e_s).any() or (requests.end[known] != End.FINISHED).any())
    recorded = {name: list(rows) for name, rows in (steps or {}).items() if rows}
    return Comparison(
        requests=int(np.count_nonzero(known)),
        basis=basis,
        metrics={metric: _cells(observed, twin, metric) for metric in METRICS},
        preemptions=Pair(_sum_of(requests.preemptions, done), float(run.preemptions[known].sum())),
        success_ratio=Pair(
            float(done.sum() / known.sum()) if told else None,
            float((run.status[known] == Status.FINISHED).mean()),
        ),
        saturated_ratio=Pair(_saturated(recorded), run.saturated_ratio),
        prefill_tokens=Pair(
            float(sum(step.prefill_tokens for rows in recorded.values() for step in rows)) if recorded else None,
            float(sum(result.prefill_tokens for result in run.results)),
        ),
        cached_tokens=Pair(_sum_of(requests.cached_tokens, done), float(run.cached_tokens[known].sum())),
        balance=_balance(requests, run, known),
    )


def observed_latencies(requests: KnownRequests, basis: Basis) -> Latencies:
    """Recorded latencies; NaN where a request did not finish or nobody told."""
    on_engine = basis == "engine"
    found = latencies(
        arrived_s=requests.queued_s if on_engine else requests.arrived_s,
        first_token_s=requests.engine_first_s if on_engine else requests.first_s,
        last_token_s=requests.engine_last_s if on_engine else requests.last_s,
        osl_tokens=requests.osl_tokens,
    )
    for values in (found.ttft_s, found.tpot_s, found.e2e_s):
        values[~np.isfinite(found.e2e_s)] = np.nan
    return found


def twin_latencies(requests: KnownRequests, run: KnownRun, basis: Basis) -> Latencies:
    """Simulated latencies on the same basis; NaN where the twin refused a request."""
    on_engine = basis == "engine"
    out_s = 0.0 if on_engine else run.to_client_s
    return latencies(
        arrived_s=run.queued_s if on_engine else requests.arrived_s,
        first_token_s=run.first_s + out_s,
        last_token_s=run.last_s + out_s,
        osl_tokens=run.generated_tokens,
        refused=run.status == Status.REJECTED,
    )


def quantile_name(level: float) -> str:
    """As keys of results have it.

    >>> quantile_name(0.95)
    'p95'
    """
    return f"p{level * 100:g}"


def _cells(observed: Latencies, twin: Latencies, metric: str) -> dict[str, Pair]:
    columns = [quantiles(getattr(side, metric)) for side in (observed, twin)]
    return {
        quantile_name(level): Pair(*(float(column[i]) if math.isfinite(column[i]) else None for column in columns))
        for i, level in enumerate(QUANTILES)
    }


def _sum_of(counts: np.ndarray[Any, np.dtype[np.int64]], done: BoolArray) -> float | None:
    values = counts[done]
    return None if not values.size or (values == NOT_TOLD).all() else float(values[values != NOT_TOLD].sum())


def _saturated(steps: Mapping[str, list[Step]]) -> float | None:
    """Share of step time with requests waiting, of the most saturated engine; None where steps do not count them."""
    ratios = []
    for rows in steps.values():
        worked = [step for step in rows if step.prefill_tokens + step.decode_requests and step.waiting is not None]
        total_us = sum(step.duration_us for step in worked)
        if total_us:
            ratios.append(sum(step.duration_us for step in worked if step.waiting) / total_us)
    return max(ratios, default=None)


def _balance(requests: KnownRequests, run: KnownRun, known: BoolArray) -> dict[str, Pair]:
    names = [engine.config.engine for engine in run.engines]
    served = np.array([names.index(name) if name in names else NOT_TOLD for name in requests.engine], np.int64)[known]
    told = bool((served != NOT_TOLD).all()) or len(names) == 1
    return {
        name: Pair(
            (float((served == place).mean()) if len(names) > 1 else 1.0) if told else None,
            float((run.engine[known] == place).mean()),
        )
        for place, name in enumerate(names)
    }
