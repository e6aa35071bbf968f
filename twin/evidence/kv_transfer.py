"""The link that hands KV from prefill to decode engines, as loads of finished requests tell it. Simulates nothing.

A load is a fixed time and a time per token loaded, fitted by least squares, neither below zero. Law: loads that lie on
such a line give that line back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from twin.engine.cluster_types import KvLink
from twin.metrics import FloatArray

LEAST_LOADS = 20
PS_PER_US = 1_000_000
NO_LINK = (
    "prefill and decode engines hand KV over a link that nothing tells, so nothing was simulated;"
    " give --kv-link, or kv_load_us of chunks"
)
NOT_VARIED = (
    "the link between prefill and decode engines was not varied: these engines keep their KV to themselves, and loads"
    " from their own tiers are not simulated"
)


def hands_over(configs: Sequence[EngineConfig]) -> bool:
    """Whether some engines only prefill or only decode."""
    return any(config.role != "both" for config in configs)


def fitted_link(finished: Iterable[RequestFinished]) -> KvLink | None:
    """The link that `kv_load_us` of chunks tells; None with fewer than `LEAST_LOADS` loads of a token or more."""
    tokens, load_us = _loads(finished)
    if tokens.size < LEAST_LOADS:
        return None
    token_us, fixed_us = _line(tokens, load_us)
    strayed = load_us / np.maximum(fixed_us + token_us * tokens, 1e-9)
    cv = float(np.std(strayed)) if fixed_us + token_us > 0.0 else 0.0
    return KvLink(round(token_us * PS_PER_US), round(fixed_us * PS_PER_US), cv=min(cv, 2.0))


def load_ratio(base: Iterable[RequestFinished], candidate: Iterable[RequestFinished]) -> float | None:
    """How many times as long the candidate's loads take for the base's tokens; None where a side does not tell."""
    base = tuple(base)
    links = fitted_link(base), fitted_link(candidate)
    if links[0] is None or links[1] is None:
        return None
    tokens = float(_loads(base)[0].mean())
    sides = [link.fixed_ps + link.token_ps * tokens for link in (links[0], links[1])]
    return sides[1] / sides[0] if sides[0] > 0.0 and sides[1] > 0.0 else None


def scaled(link: KvLink, factor: float) -> KvLink:
    """A link that takes `factor` times as long."""
    return replace(link, token_ps=round(link.token_ps * factor), fixed_ps=round(link.fixed_ps * factor))


def _loads(finished: Iterable[RequestFinished]) -> tuple[FloatArray, FloatArray]:
    """Tokens loaded and microseconds, per chunk that loaded any."""
    rows = [
        (chunk.tokens if chunk.hit_tokens is None else chunk.hit_tokens, chunk.kv_load_us)
        for record in finished
        for chunk in record.chunks
        if chunk.kv_load_us
    ]
    found = np.array([row for row in rows if row[0]], np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _line(tokens: FloatArray, load_us: FloatArray) -> tuple[float, float]:
    """Slope and intercept >= 0."""
    spread = tokens - tokens.mean()
    slope = float(spread @ load_us / (spread @ spread)) if spread.any() else 0.0
    if slope <= 0.0:
        return 0.0, float(load_us.mean())
    fixed = float(load_us.mean() - slope * tokens.mean())
    return (slope, fixed) if fixed >= 0.0 else (float(tokens @ load_us / (tokens @ tokens)), 0.0)
