"""Time that requests spend outside the engine's steps, learned from their stamps. Knows no steps and no scheduler.

Arrival to `engine_queued` holds the rest of the step that was running, for an engine takes requests in only between
steps. A simulation makes that wait itself, so the part that is not a step is learned: the lowest tenth of what was
seen, which are the requests that found the engine at the end of a step or idle.
Law: every value kept is finite and >= 0; what is refused is counted by reason and changes nothing else.
"""

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from schemas.requests import RequestFinished
from twin.job import FrontendOverheads

KEPT_REQUESTS = 256
VALUES = 32
"""Equally likely values handed to a simulation."""
MAX_OVERHEAD_US = 30_000_000
STEP_FREE_SHARE = 0.1
MIN_REQUESTS = 10
"""Fewer than this say too little of a tenth: no time is assumed."""
VERSION = 1


class FrontendModel:
    """Arrival to the engine's queue without the running step, and a token in the engine to the same at the client."""

    def __init__(self) -> None:
        self._to_engine_us: deque[int] = deque(maxlen=KEPT_REQUESTS)
        self._to_client_us: deque[int] = deque(maxlen=KEPT_REQUESTS)
        self.refused: Counter[str] = Counter()

    def on_finished(self, event: RequestFinished) -> None:
        """Learn from one finished request; stamps the source does not give are passed over."""
        if not event.timed:
            return
        if event.engine_queued_us is not None:
            self._keep(self._to_engine_us, event.engine_queued_us - event.arrived_us, "to_engine")
        if event.engine_first_token_us is not None and event.first_token_us is not None:
            self._keep(self._to_client_us, event.first_token_us - event.engine_first_token_us, "to_client")

    def _keep(self, values: deque[int], value_us: int, name: str) -> None:
        if value_us < 0:
            self.refused[f"{name}_negative"] += 1
        elif value_us > MAX_OVERHEAD_US:
            self.refused[f"{name}_absurd"] += 1
        else:
            values.append(value_us)

    def overheads(self) -> FrontendOverheads:
        """What has been learned, as a simulation takes it; no time where fewer than 10 requests were seen."""
        to_engine = sorted(self._to_engine_us)
        to_engine = to_engine[: max(round(len(to_engine) * STEP_FREE_SHARE), 1)]
        return FrontendOverheads(
            to_engine_s=_spread(to_engine) if len(self._to_engine_us) >= MIN_REQUESTS else (),
            to_client_s=_spread(sorted(self._to_client_us)) if len(self._to_client_us) >= MIN_REQUESTS else (),
        )

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, lists and dicts."""
        return {
            "version": VERSION,
            "to_engine_us": list(self._to_engine_us),
            "to_client_us": list(self._to_client_us),
            "refused": dict(sorted(self.refused.items())),
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The model of a snapshot. Raises ValueError if it is of another version or damaged."""
        _check_version("frontend overheads", data)
        model = cls()
        for name, values in (("to_engine_us", model._to_engine_us), ("to_client_us", model._to_client_us)):
            for value in data.get(name, ()):
                if not (isinstance(value, int) and 0 <= value <= MAX_OVERHEAD_US):
                    raise ValueError(
                        f"frontend overheads snapshot: {name} must hold 0 .. {MAX_OVERHEAD_US}, got {value!r}"
                    )
                values.append(value)
        model.refused.update({str(name): int(count) for name, count in data.get("refused", {}).items()})
        return model


class TransferModel:
    """KV loads that requests tell of in their chunks: seconds = fixed + per token, how far single ones stray from it,
    and what share of latency they are.

    `half_life_transfers`: transfers, or requests, until an old one has lost half its weight.

    >>> model = TransferModel()
    >>> for tokens in (100, 200, 300, 400):
    ...     model.learn_one(tokens, 0.001 + tokens * 1e-6)
    >>> round(model.predict_one(1000), 6)
    0.002
    """

    def __init__(self, half_life_transfers: float = 500.0) -> None:
        if not 1.0 <= half_life_transfers < 1e9:
            raise ValueError(f"half_life_transfers must be in 1 .. 1e9, got {half_life_transfers}")
        self.half_life_transfers = half_life_transfers
        self.refused: Counter[str] = Counter()
        self._sums = np.zeros(6)
        self._loading_s = 0.0
        self._latency_s = 0.0

    def on_finished(self, event: RequestFinished) -> None:
        """Learn the loads of one finished request whose latency is known."""
        loads_us = [(chunk, chunk.kv_load_us) for chunk in event.chunks if chunk.kv_load_us]
        for chunk, load_us in loads_us:
            self.learn_one(chunk.tokens if chunk.hit_tokens is None else chunk.hit_tokens, load_us * 1e-6)
        keep = 0.5 ** (1.0 / self.half_life_transfers)
        latency_us = max(event.at_us - event.arrived_us, 0)
        self._loading_s = self._loading_s * keep + min(sum(us for _, us in loads_us), latency_us) * 1e-6
        self._latency_s = self._latency_s * keep + latency_us * 1e-6

    @property
    def latency_ratio(self) -> float:
        """Share of the latency of recent requests that was KV load, 0 .. 1."""
        return self._loading_s / self._latency_s if self._latency_s > 0.0 else 0.0

    def learn_one(self, tokens: int, seconds: float) -> None:
        """Learn one transfer. What is not finite, not > 0, without tokens or beyond 30 s is refused and counted."""
        if not np.isfinite(seconds):
            self.refused["not_finite"] += 1
        elif seconds <= 0.0:
            self.refused["not_positive"] += 1
        elif tokens <= 0:
            self.refused["no_tokens"] += 1
        elif seconds * 1e6 > MAX_OVERHEAD_US:
            self.refused["absurd"] += 1
        else:
            row = np.array([1.0, tokens, tokens * tokens, seconds, tokens * seconds, seconds * seconds])
            self._sums = self._sums * 0.5 ** (1.0 / self.half_life_transfers) + row

    @property
    def line(self) -> tuple[float, float]:
        """Fixed seconds and seconds per token, both >= 0; zeros before the first transfer."""
        n, x, xx, y, xy, _ = self._sums
        if n == 0.0:
            return 0.0, 0.0
        spread = xx - x * x / n
        slope = max((xy - x * y / n) / spread, 0.0) if spread > 1e-9 * xx else 0.0
        fixed = (y - slope * x) / n
        if fixed < 0.0:
            return 0.0, float(xy / xx)
        return float(fixed), float(slope)

    def predict_one(self, tokens: int) -> float:
        """Mean seconds of a transfer of so many tokens; 0 before the first was learned."""
        fixed_s, token_s = self.line
        return fixed_s + token_s * tokens

    @property
    def sigma_s(self) -> float:
        """Standard deviation of single transfers around the mean; 0 before the second."""
        n, x, xx, y, xy, yy = self._sums
        if n == 0.0:
            return 0.0
        a, b = self.line
        squares = yy - 2 * (a * y + b * xy) + a * a * n + 2 * a * b * x + b * b * xx
        return float(np.sqrt(max(squares / n, 0.0)))

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, lists and dicts."""
        return {
            "version": VERSION,
            "half_life_transfers": self.half_life_transfers,
            "sums": self._sums.tolist(),
            "spent_s": [self._loading_s, self._latency_s],
            "refused": dict(sorted(self.refused.items())),
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The model of a snapshot. Raises ValueError if it is of another version or damaged."""
        _check_version("transfer model", data)
        model = cls(float(data.get("half_life_transfers", 0.0)))
        sums = np.array(data.get("sums", ()), dtype=np.float64)
        if sums.shape != (6,) or not np.isfinite(sums).all():
            raise ValueError(f"transfer model snapshot: sums must be 6 finite numbers, got {data.get('sums')!r}")
        model._sums = sums
        model._loading_s, model._latency_s = (float(value) for value in data.get("spent_s", (0.0, 0.0)))
        model.refused.update({str(name): int(count) for name, count in data.get("refused", {}).items()})
        return model


def _spread(ascending_us: list[int]) -> tuple[float, ...]:
    """At most VALUES equally likely values, in seconds."""
    if len(ascending_us) <= VALUES:
        return tuple(value * 1e-6 for value in ascending_us)
    levels = (np.arange(VALUES) + 0.5) / VALUES
    return tuple(float(value) * 1e-6 for value in np.quantile(ascending_us, levels))


def _check_version(what: str, data: Mapping[str, Any]) -> None:
    if data.get("version") != VERSION:
        raise ValueError(f"{what} snapshot: version {data.get('version')!r} cannot be read here, expected {VERSION}")
