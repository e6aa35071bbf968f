"""Who is probably in an engine now, where records tell of requests only at their end. Simulates nothing.

Requests that have arrived and not ended are unseen. How many is drawn per age, and how far each is follows a recent
request that lasted longer. Where the engine's own counts are known for a moment just before, the numbers of that
moment are kept and only what came since is drawn.
Laws: a draw depends on the presence and the generator alone; every state drawn fits the engine's limits; with counts
of this very moment a draw has just these, but for what the limits forbid.
"""

from dataclasses import dataclass, replace

import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import PS_PER_S
from twin.engine.types import CarriedRequest, EngineState
from twin.metrics import FloatArray, IntArray

MAX_DRAWN = 20_000
KV_DRAWS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Donors:
    """Recent finished requests, arrays of m >= 1: prompt (int64), seconds to the first token, mean seconds between
    tokens (> 0), and seconds from first to last token."""

    isl_tokens: IntArray
    ttft_s: FloatArray
    gap_s: FloatArray
    decode_s: FloatArray

    @property
    def e2e_s(self) -> FloatArray:
        """Arrival to last token (m,)."""
        return self.ttft_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine told of itself `age_s` ago, without those requests that are known to have ended since.

    `kv_tokens` is the size of the contexts of the `running` ones; None where it was not told.
    """

    age_s: float
    running: int
    waiting: int
    kv_tokens: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Presence:
    """Requests of one engine that have not ended as of a moment.

    `age_s` (float64[k + 1], rising from 0) bounds k bins of age; `expected` (k,) requests are unseen in each, their
    number being negative binomial with the shape parameter `shape` (k,) > 0. `told_age_s` and `told_isl_tokens` (n,)
    are of requests whose arrival is known.
    """

    donors: Donors
    age_s: FloatArray
    expected: FloatArray
    shape: FloatArray
    told_age_s: FloatArray
    told_isl_tokens: IntArray
    counts: Counts | None = None

    def draw(self, config: EngineConfig, limit_tokens: int, generator: np.random.Generator) -> EngineState:
        """One likely state, in the scheduler's order; output lengths are placeholders.

        `limit_tokens` is the longest request that the engine can hold.
        """
        told = replace(_aged(self.donors, self.told_age_s, generator), isl_tokens=self.told_isl_tokens)
        parts = [told]
        newest_s = float(self.age_s[-1])
        if self.counts is not None:
            parts.append(self._running_then(self.counts, generator))
            parts.append(_waiting(self.donors, self.counts.waiting, self.counts.age_s, generator))
            newest_s = self.counts.age_s
        parts.append(_aged(self.donors, self._ages_s(newest_s, generator), generator))
        return _fitted(_joined(parts), config, limit_tokens)

    def _ages_s(self, oldest_s: float, generator: np.random.Generator) -> FloatArray:
        """Ages of unseen requests up to `oldest_s`."""
        width_s = np.diff(self.age_s)
        share = np.clip((oldest_s - self.age_s[:-1]) / width_s, 0.0, 1.0)
        mean = generator.gamma(self.shape) / self.shape * self.expected * share
        numbers = generator.poisson(np.minimum(mean, MAX_DRAWN))
        bins = np.repeat(np.arange(numbers.size), numbers)[:MAX_DRAWN]
        return np.asarray(self.age_s[bins] + generator.random(bins.size) * (width_s * share)[bins])

    def _running_then(self, counts: Counts, generator: np.random.Generator) -> "_Drawn":
        """Who ran when the counts were taken and runs still; of some draws the one whose contexts fit best."""
        if counts.kv_tokens is None:
            return _decoding(self.donors, counts.running, counts.age_s, generator)
        tries = [_decoding(self.donors, counts.running, counts.age_s, generator) for _ in range(KV_DRAWS)]
        return min(tries, key=lambda each: abs(each.tokens_before(counts.age_s) - (counts.kv_tokens or 0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Requests, arrays of n: age, prompt, mean seconds between tokens, seconds since the first token (< 0: none)."""

    age_s: FloatArray
    isl_tokens: IntArray
    gap_s: FloatArray
    decoded_s: FloatArray

    @property
    def generated_tokens(self) -> IntArray:
        """Tokens so far (n,)."""
        return np.where(self.decoded_s >= 0.0, 1 + self.decoded_s // self.gap_s, 0).astype(np.int64)

    def tokens_before(self, age_s: float) -> float:
        """Contexts of all together so long ago."""
        return float((self.isl_tokens + np.maximum((self.decoded_s - age_s) / self.gap_s, 0.0) + 1.0).sum())


def _taken(donors: Donors, which: IntArray, age_s: FloatArray) -> _Drawn:
    return _Drawn(age_s, donors.isl_tokens[which], donors.gap_s[which], age_s - donors.ttft_s[which])


def _aged(donors: Donors, age_s: FloatArray, generator: np.random.Generator) -> _Drawn:
    """Requests of known age, each like a donor that lasted longer (the longest one where none did)."""
    longest_first = np.argsort(-donors.e2e_s, kind="stable")
    longer = np.searchsorted(-donors.e2e_s[longest_first], -age_s, side="left")
    pick = (generator.random(age_s.size) * np.maximum(longer, 1)).astype(np.int64)
    return _taken(donors, longest_first[pick], age_s)


def _decoding(donors: Donors, count: int, age_s: float, generator: np.random.Generator) -> _Drawn:
    """Requests that had their first token `age_s` ago and have not ended: the longer a donor, the likelier."""
    left_s = np.maximum(donors.decode_s - age_s, 0.0)
    which = _weighted(left_s, count, generator)
    decoded_s = age_s + generator.random(count) * left_s[which]
    return _taken(donors, which, donors.ttft_s[which] + decoded_s)


def _waiting(donors: Donors, count: int, age_s: float, generator: np.random.Generator) -> _Drawn:
    """Requests that waited for their first token `age_s` ago; some have it by now, none has ended."""
    which = _weighted(donors.ttft_s, count, generator)
    aged_s = generator.random(count) * donors.ttft_s[which] + age_s
    return _taken(donors, which, np.minimum(aged_s, donors.e2e_s[which]))


def _weighted(weights: FloatArray, count: int, generator: np.random.Generator) -> IntArray:
    total = np.cumsum(weights)
    if total[-1] <= 0.0:
        return np.asarray(generator.integers(0, weights.size, count))
    at = np.searchsorted(total, generator.random(count) * total[-1], side="right")
    return np.asarray(np.minimum(at, weights.size - 1), np.int64)


def _joined(parts: list[_Drawn]) -> _Drawn:
    """All together, the oldest first."""
    age_s = np.concatenate([part.age_s for part in parts])
    order = np.argsort(-age_s, kind="stable")
    return _Drawn(
        age_s[order],
        np.concatenate([part.isl_tokens for part in parts])[order],
        np.concatenate([part.gap_s for part in parts])[order],
        np.concatenate([part.decoded_s for part in parts])[order],
    )


def _fitted(drawn: _Drawn, config: EngineConfig, limit_tokens: int) -> EngineState:
    """The state, oldest first; who does not fit beside those before waits, with nothing computed."""
    free = config.kv_blocks - config.reserved_blocks
    running: list[CarriedRequest] = []
    waiting: list[CarriedRequest] = []
    isl_tokens = np.minimum(drawn.isl_tokens, limit_tokens - 1)
    generated_tokens = np.minimum(drawn.generated_tokens, limit_tokens - 1 - isl_tokens)
    columns = (drawn.age_s, drawn.decoded_s, isl_tokens, generated_tokens)
    for age_s, decoded_s, isl, generated in zip(*(column.tolist() for column in columns), strict=True):
        blocks = -(-(isl + generated - 1) // config.block_size_tokens)
        arrival_ps = -round(age_s * PS_PER_S)
        if generated and blocks <= free and len(running) < config.max_num_seqs:
            free -= blocks
            first_ps = -round(decoded_s * PS_PER_S)
            running.append(
                CarriedRequest(
                    isl_tokens=isl,
                    osl_tokens=generated + 1,
                    arrival_ps=arrival_ps,
                    computed_tokens=isl + generated - 1,
                    generated_tokens=generated,
                    scheduled_ps=first_ps,
                    first_token_ps=first_ps,
                )
            )
        else:
            waiting.append(CarriedRequest(isl_tokens=isl, osl_tokens=1, arrival_ps=arrival_ps))
    return EngineState(running=tuple(running), waiting=tuple(waiting))
