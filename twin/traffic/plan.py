"""A frozen traffic plan: past arrivals to resample in blocks, lengths to draw, and the rate to reach. Draws nothing.

Sources lie on *operational time*: the axis on which past traffic had rate 1, so that slow changes of the rate are
taken out and bursts stay in. Law: a plan holds nothing that was unknown at `as_of`.
"""

from dataclasses import dataclass

import numpy as np

from twin.metrics import FloatArray, IntArray
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths

UNKNOWN_TOKENS = -1


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Past arrivals in order, arrays int64[n] unless said otherwise.

    `at` (float64[n]) is their operational time in (0, `extent`]. `osl_tokens` is `UNKNOWN_TOKENS` where the request
    has not finished; `generated_tokens` is then how far it got. Hashes of request i are
    `hash_values[hash_offsets[i]:hash_offsets[i + 1]]`; `hash_first[k]` is the index of the first arrival with that
    hash, or -1 if it was seen before all of them.
    """

    at: FloatArray
    extent: float
    isl_tokens: IntArray
    osl_tokens: IntArray
    generated_tokens: IntArray
    priority: IntArray
    traffic_class: IntArray
    hash_offsets: IntArray
    hash_values: IntArray
    hash_first: IntArray

    def __post_init__(self) -> None:
        n = self.at.size
        for name in ("isl_tokens", "osl_tokens", "generated_tokens", "priority", "traffic_class"):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"sources.{name} must have one entry per arrival: {n}")
        if self.hash_offsets.shape != (n + 1,) or self.hash_values.shape != self.hash_first.shape:
            raise ValueError(f"sources.hash_offsets must have {n + 1} entries, hash_values and hash_first one length")
        if n and (
            self.isl_tokens.min() < 1 or not ((self.osl_tokens >= 1) | (self.osl_tokens == UNKNOWN_TOKENS)).all()
        ):
            raise ValueError("sources.isl_tokens and osl_tokens must be >= 1 (or UNKNOWN_TOKENS for an output)")
        if n and not (self.at[0] >= 0.0 and self.at[-1] <= self.extent and (np.diff(self.at) >= 0).all()):
            raise ValueError("sources.at must be sorted and lie in 0 .. extent")

    @classmethod
    def plain(
        cls, at: FloatArray, extent: float, isl_tokens: IntArray, osl_tokens: IntArray, traffic_class: int = 0
    ) -> "Sources":
        """Finished requests without priorities and hashes."""
        n = at.size
        zeros, none = np.zeros(n, np.int64), np.zeros(0, np.int64)
        return cls(
            at,
            extent,
            isl_tokens,
            osl_tokens,
            zeros,
            zeros,
            zeros + traffic_class,
            np.zeros(n + 1, np.int64),
            none,
            none,
        )

    @property
    def requests(self) -> int:
        """How many."""
        return int(self.at.size)


@dataclass(frozen=True, slots=True, eq=False)
class TrafficPlan:
    """What is expected of traffic as of one instant.

    `block` is the length of a resampled block on operational time (that many arrivals on average). `classes` names
    the traffic classes, in the order of `sources.traffic_class`. `hash_block_tokens` is 0 without prefix hashes.
    """

    sources: Sources
    block: float
    rate: RateForecast
    lengths: OutputLengths
    classes: tuple[str, ...] = ("",)
    hash_block_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.block < float("inf"):
            raise ValueError(f"plan.block must be a finite number > 0, got {self.block}")
