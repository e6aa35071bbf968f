"""How attention kernels cut a step into tiles: work wasted on padding, and the longest piece. Knows no time or device.

Steps are known by sums only, so prefill chunks are taken as equal among themselves, and decoding contexts too.
References: Dao, FlashAttention-2, arXiv 2307.08691, section 3; Dao et al., Flash-Decoding, 2023.
Law: tiled work is never less than the model's own FLOPs.
"""

import math
from dataclasses import dataclass

from twin.cost.shape import StepShape

TILE_ROWS = 64
"""Query rows of one tile: what the kernels of FlashAttention-2 and later use for decoding and short chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Query heads over key-value heads on one device; `key_dim` and `value_dim` are elements per head."""

    query: int
    kv: int
    key_dim: int
    value_dim: int

    @property
    def flops_per_pair(self) -> float:
        """FLOPs of one query token with one key token, all heads."""
        return 2.0 * self.query * (self.key_dim + self.value_dim)

    def tiled_flops(self, tokens: float, *, packed: bool) -> float:
        """FLOPs per key token of `tokens` query tokens of one sequence, rows padded to whole tiles."""
        rows = self.query // self.kv if packed else 1
        padded = math.ceil(tokens * rows / TILE_ROWS) * TILE_ROWS
        return self.flops_per_pair * padded / rows

    @property
    def tile_flops(self) -> float:
        """FLOPs per key token of one tile."""
        return 2.0 * TILE_ROWS * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """Attention of one layer on one device. Latent attention decodes in another form than it prefills."""

    prefill: Heads
    decode: Heads
    kv_bytes_per_token: float

    def kv_bytes(self, shape: StepShape) -> float:
        """Bytes of keys and values read: once per prefill chunk, once per decoding request."""
        before, chunk = _chunks(shape)
        tokens = shape.prefill_requests * (before + chunk) + shape.decode_context_tokens
        return tokens * self.kv_bytes_per_token

    def tiled_flops(self, shape: StepShape, *, packed: bool) -> tuple[float, float]:
        """(all FLOPs, FLOPs of the longest tile), padding included.

        A tile runs on one core from its first key to its last. Decoding in a step of its own, or with packed heads, is
        split along the keys over all cores, so it has no longest tile.
        """
        before, chunk = _chunks(shape)
        total = longest = 0.0
        if shape.prefill_requests:
            rows = self.prefill.tiled_flops(chunk, packed=packed)
            total += shape.prefill_requests * rows * (before + (chunk + 1) / 2)
            longest = self.prefill.tile_flops * (before + chunk)
        if shape.decode_requests:
            alone = packed or not shape.prefill_requests
            total += self.decode.tiled_flops(1, packed=alone) * shape.decode_context_tokens
            if not alone:
                longest = max(longest, self.decode.tile_flops * shape.decode_context_tokens / shape.decode_requests)
        return total, longest


def _chunks(shape: StepShape) -> tuple[float, float]:
    """(tokens computed before, tokens) of the mean prefill chunk."""
    if not shape.prefill_requests or not shape.prefill_tokens:
        return 0.0, 0.0
    chunk = shape.prefill_tokens / shape.prefill_requests
    return max(shape.prefill_attention_pairs / shape.prefill_tokens - (chunk + 1) / 2, 0.0), chunk
