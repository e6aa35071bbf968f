"""What the traffic of an import looks like: rates, burstiness, lengths, latencies. Fits nothing, predicts nothing.

Laws: a number that cannot be had is None, never 0; gaps are not judged where the clock ticks coarsely or arrivals were
reconstructed; failures give no latency.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.ingest.recording import InputRecord
from pipelines.ingest.times import tick_of
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRejected

MINUTE_US = 60_000_000
QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, quantiles (P50, P90, P95, P99) and maximum of n values."""

    count: int
    mean: float
    quantiles: tuple[float, ...]
    highest: float


@dataclass(frozen=True, slots=True)
class TrafficStatistics:
    """Statistics of one deployment. Rates per second, peak per minute, CV of gaps; None where it cannot be said.

    TTFT and E2E count from arrival; `engine_ttft_s`, `engine_e2e_s` from when the engine queued the request, which is
    the basis of some published figures.
    """

    deployment: str
    requests: int
    span_s: float
    rate_per_s: float | None
    peak_per_minute: int
    gap_cv: float | None
    tick_us: int | None
    isl_tokens: Spread | None
    osl_tokens: Spread | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    e2e_s: Spread | None
    engine_ttft_s: Spread | None
    engine_e2e_s: Spread | None
    failures: int
    rejected: int
    prefix_reuse_ratio: float | None


def traffic_statistics(records: Iterable[InputRecord], *, judge_gaps: bool = True) -> tuple[TrafficStatistics, ...]:
    """One entry per deployment with requests, sorted by name. `judge_gaps` False: arrivals were reconstructed."""
    arrived: dict[str, dict[str, int]] = {}
    ends: dict[str, list[InputRecord]] = {}
    prompts: dict[str, list[RequestArrived]] = {}
    for record in records:
        if isinstance(record, RequestArrived):
            arrived.setdefault(record.deployment, {})[record.request_id] = record.at_us
            prompts.setdefault(record.deployment, []).append(record)
        elif isinstance(record, RequestFinished | RequestAborted | RequestRejected):
            ends.setdefault(record.deployment, []).append(record)
            if record.arrived_us is not None:
                arrived.setdefault(record.deployment, {}).setdefault(record.request_id, record.arrived_us)
    return tuple(
        _statistics(name, arrived.get(name, {}), ends.get(name, []), prompts.get(name, []), judge_gaps)
        for name in sorted({*arrived, *ends})
    )


def spread(values: Sequence[float] | Sequence[int]) -> Spread | None:
    """Mean, quantiles and maximum; None for no values."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    found = np.quantile(array, QUANTILES)
    return Spread(array.size, float(array.mean()), tuple(float(value) for value in found), float(array.max()))


def _statistics(
    name: str, arrived: dict[str, int], ends: list[InputRecord], prompts: list[RequestArrived], judge_gaps: bool
) -> TrafficStatistics:
    stamps = np.sort(np.fromiter(arrived.values(), dtype=np.int64, count=len(arrived)))
    finished = [record for record in ends if isinstance(record, RequestFinished)]
    timed = [record for record in finished if record.timed]
    span_s = float(stamps[-1] - stamps[0]) / 1e6 if stamps.size else 0.0
    tick_us = tick_of(stamps.tolist()) if judge_gaps else None
    gaps = np.diff(stamps)
    gaps_known = judge_gaps and tick_us is None and gaps.size > 1 and float(gaps.mean()) > 0.0
    minutes = Counter(((stamps - stamps[0]) // MINUTE_US).tolist()) if stamps.size else Counter()
    first = [(record, record.first_token_us) for record in timed if record.first_token_us is not None]
    return TrafficStatistics(
        deployment=name,
        requests=len(arrived),
        span_s=span_s,
        rate_per_s=len(arrived) / span_s if judge_gaps and span_s > 0.0 else None,
        peak_per_minute=max(minutes.values(), default=0),
        gap_cv=float(gaps.std() / gaps.mean()) if gaps_known else None,
        tick_us=tick_us,
        isl_tokens=spread([record.isl_tokens for record in (prompts or finished)]),
        osl_tokens=spread([record.osl_tokens for record in finished]),
        ttft_s=spread([(token_us - record.arrived_us) / 1e6 for record, token_us in first]),
        tpot_s=spread(
            [
                (record.at_us - token_us) / 1e6 / (record.osl_tokens - 1)
                for record, token_us in first
                if record.osl_tokens > 1
            ]
        ),
        e2e_s=spread([(record.at_us - record.arrived_us) / 1e6 for record in timed]),
        engine_ttft_s=_since_queued([(r.engine_queued_us, r.engine_first_token_us) for r in timed]),
        engine_e2e_s=_since_queued([(r.engine_queued_us, r.engine_last_token_us) for r in timed]),
        failures=sum(isinstance(record, RequestAborted) for record in ends),
        rejected=sum(isinstance(record, RequestRejected) for record in ends),
        prefix_reuse_ratio=_prefix_reuse(prompts),
    )


def _since_queued(stamps: list[tuple[int | None, int | None]]) -> Spread | None:
    return spread([(later - queued) / 1e6 for queued, later in stamps if queued is not None and later is not None])


def _prefix_reuse(prompts: list[RequestArrived]) -> float | None:
    """Share of prompt blocks that an unbounded prefix cache would have held; None without block hashes."""
    seen: set[int] = set()
    blocks = hits = 0
    for prompt in sorted(prompts, key=lambda record: record.at_us):
        blocks += len(prompt.block_hashes)
        for block in prompt.block_hashes:
            if block not in seen:
                break
            hits += 1
        seen.update(prompt.block_hashes)
    return hits / blocks if blocks else None
