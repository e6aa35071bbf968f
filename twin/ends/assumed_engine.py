"""The configuration to assume of an engine that has not told its own. Guesses limits, never costs.

What cannot be seen keeps vLLM's defaults for servers. A limit on sequences or on KV tokens is believed only once
requests were seen to wait while the engine was as full as it ever was; until then twice the most seen, or the default,
is assumed, so that a forecast does not invent a queue.
Law: no limit assumed is below the most that was seen.

References
----------
vLLM, vllm/config and docs "Engine arguments": max_num_seqs 256, max_num_batched_tokens 2048, block_size 16.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from schemas.engines import EngineConfig
from twin.metrics import FloatArray, IntArray

MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2_048
BLOCK_SIZE_TOKENS = 16
KV_TOKENS = 131_072
FULL_RATIO = 0.85
LEAST_QUEUE_S = 5.0
QUEUE_REQUESTS = 2
HALF_LIFE_S = 1_800.0


class AssumedLimits:
    """What likely steps have shown of an engine's limits."""

    def __init__(self) -> None:
        self.most_seqs = 0
        self.most_tokens = 0
        self._queue_s = 0.0
        self._full_seqs_s = 0.0
        self._full_tokens_s = 0.0

    def on_steps(self, shapes: FloatArray, waiting: IntArray, duration_s: FloatArray) -> None:
        """Take likely steps: shapes (K, 5), requests waiting (K,), seconds (K,)."""
        if not len(shapes):
            return
        seqs = shapes[:, 0] + shapes[:, 3]
        tokens = shapes[:, 1] + shapes[:, 4]
        self.most_seqs = max(self.most_seqs, round(float(seqs.max())))
        self.most_tokens = max(self.most_tokens, round(float(tokens.max())))
        keep = 0.5 ** (float(duration_s.sum()) / HALF_LIFE_S)
        queued_s = np.where(waiting >= QUEUE_REQUESTS, duration_s, 0.0)
        self._queue_s = self._queue_s * keep + float(queued_s.sum())
        full = seqs >= FULL_RATIO * self.most_seqs, tokens >= FULL_RATIO * self.most_tokens
        self._full_seqs_s = self._full_seqs_s * keep + float(queued_s[full[0]].sum())
        self._full_tokens_s = self._full_tokens_s * keep + float(queued_s[full[1]].sum())

    def config(self, deployment: str, engine: str, at_us: int) -> EngineConfig:
        """The configuration to simulate with."""
        queued = self._queue_s >= LEAST_QUEUE_S
        seqs_bound = queued and self._full_seqs_s >= self._queue_s / 2
        tokens_bound = queued and self._full_tokens_s >= self._queue_s / 2
        seqs = self.most_seqs if seqs_bound else max(MAX_NUM_SEQS, 2 * self.most_seqs)
        tokens = self.most_tokens if tokens_bound else max(KV_TOKENS, 2 * self.most_tokens)
        return EngineConfig(
            deployment=deployment,
            engine=engine or "0",
            at_us=at_us,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            kv_blocks=-(-tokens // BLOCK_SIZE_TOKENS) + seqs + 1,
            max_num_seqs=max(seqs, 1),
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            emits_steps=False,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "most": [self.most_seqs, self.most_tokens],
            "seconds": [self._queue_s, self._full_seqs_s, self._full_tokens_s],
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The limits of a snapshot."""
        limits = cls()
        limits.most_seqs, limits.most_tokens = data["most"]
        limits._queue_s, limits._full_seqs_s, limits._full_tokens_s = data["seconds"]
        return limits
