"""The shape of one engine step: what was scheduled, as five counts. Knows nothing of time or requests."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a step does; each role has its own costs."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class StepShape:
    """Counts of one step, all >= 0.

    `prefill_attention_pairs` is the number of query-key pairs of the prefill tokens,
    sum over prefill chunks of `n * before + n * (n + 1) / 2` with n tokens after `before` computed ones.
    `decode_context_tokens` is the sum over decoding sequences of the tokens attended to.

    >>> StepShape(prefill_requests=1, prefill_tokens=4, prefill_attention_pairs=10).role
    <Role.PREFILL: 'prefill'>
    >>> StepShape(decode_requests=2, decode_context_tokens=700).role
    <Role.DECODE: 'decode'>
    """

    prefill_requests: int = 0
    prefill_tokens: int = 0
    prefill_attention_pairs: int = 0
    decode_requests: int = 0
    decode_context_tokens: int = 0

    @property
    def role(self) -> Role:
        """Prefill only, decode only, or both; a step that schedules nothing counts as decode."""
        if self.prefill_tokens == 0:
            return Role.DECODE
        return Role.MIXED if self.decode_requests else Role.PREFILL
