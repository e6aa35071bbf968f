"""The configuration to assume of an engine that has not told its own. Guesses limits, never costs.

What cannot be seen keeps vLLM's defaults for servers. The token budget of a step is that of a few under which likely
steps are explained best; the default, unless another is clearly better. Limits on sequences and KV tokens are believed
only once requests were seen to wait while steps computed no prompt, which an engine does for want of a place, not of
time. Then the most that was ever in it is what it holds; until then twice that, or the default, so that a forecast
does not invent a queue.
Law: no limit assumed is below the most that was seen.

References
----------
vLLM, vllm/config and docs "Engine arguments": max_num_seqs 256, max_num_batched_tokens 2048, block_size 16.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from schemas.engines import EngineConfig
from twin.metrics import FloatArray, IntArray

MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2_048
BUDGETS_TOKENS = (256, 512, 1_024, 2_048, 4_096, 8_192)
CLEARLY_WORSE_RATIO, CLEARLY_WORSE = 1.1, 0.005
BLOCK_SIZE_TOKENS = 16
KV_TOKENS = 131_072
LEAST_BLOCKED_S = 3.0
LEAST_BLOCKED_RATIO = 0.01
QUEUE_REQUESTS = 2
HALF_LIFE_S = 1_800.0


class AssumedLimits:
    """What likely steps have shown of an engine's limits."""

    def __init__(self) -> None:
        self.most_seqs = 0
        self.most_tokens = 0
        self.budget_tokens = MAX_NUM_BATCHED_TOKENS
        self._seen_s = 0.0
        self._blocked_s = 0.0

    def on_steps(self, shapes: FloatArray, waiting: IntArray, duration_s: FloatArray) -> None:
        """Take likely steps: shapes (K, 5), requests waiting (K,), seconds (K,)."""
        if not len(shapes):
            return
        self.most_seqs = max(self.most_seqs, round(float((shapes[:, 0] + shapes[:, 3]).max())))
        self.most_tokens = max(self.most_tokens, round(float((shapes[:, 1] + shapes[:, 4]).max())))
        blocked = (waiting >= QUEUE_REQUESTS) & (shapes[:, 1] == 0.0)
        seen_s = float(duration_s.sum())
        keep = 0.5 ** (seen_s / HALF_LIFE_S)
        self._seen_s = self._seen_s * keep + seen_s
        self._blocked_s = self._blocked_s * keep + float(np.where(blocked, duration_s, 0.0).sum())

    def on_budgets(self, spread: Mapping[int, float]) -> None:
        """Take how far likely steps stray from their costs under each of some token budgets; lower is better."""
        enough = min(spread.values()) * CLEARLY_WORSE_RATIO + CLEARLY_WORSE
        near = [budget for budget, value in spread.items() if value <= enough]
        self.budget_tokens = min(near, key=lambda budget: abs(math.log(budget / MAX_NUM_BATCHED_TOKENS)))

    @property
    def reached(self) -> bool:
        """Whether requests were seen to wait for a place."""
        return self._blocked_s >= max(LEAST_BLOCKED_S, LEAST_BLOCKED_RATIO * self._seen_s)

    def config(self, deployment: str, engine: str, at_us: int) -> EngineConfig:
        """The configuration to simulate with."""
        seqs = self.most_seqs if self.reached else max(MAX_NUM_SEQS, 2 * self.most_seqs)
        tokens = self.most_tokens if self.reached else max(KV_TOKENS, 2 * self.most_tokens)
        return EngineConfig(
            deployment=deployment,
            engine=engine or "0",
            at_us=at_us,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            kv_blocks=-(-tokens // BLOCK_SIZE_TOKENS) + seqs + 1,
            max_num_seqs=max(seqs, 1),
            max_num_batched_tokens=self.budget_tokens,
            emits_steps=False,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "most": [self.most_seqs, self.most_tokens],
            "budget_tokens": self.budget_tokens,
            "seconds": [self._seen_s, self._blocked_s],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The limits of a snapshot."""
        limits = cls()
        limits.most_seqs, limits.most_tokens = data["most"]
        limits.budget_tokens = data["budget_tokens"]
        limits._seen_s, limits._blocked_s = data["seconds"]
        return limits
