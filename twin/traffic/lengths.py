"""Output lengths that are not known yet: Kaplan-Meier of all lengths, given the tokens generated so far.

Never sees the true length of an unfinished request: that one counts as "longer than what it has generated".
Law: a drawn length is > the tokens generated so far; with nothing censored and nothing generated, draws follow the
empirical distribution.
"""

from dataclasses import dataclass

import numpy as np

from twin.metrics import BoolArray, FloatArray, IntArray

_TAIL_SHARE = 0.1
_TAIL_LEAST = 5
DEFAULT_MEAN_TOKENS = 256.0
"""Mean output length where nothing is known; geometric."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputLengths:
    """Distribution of output lengths: `survival[i]` = P(length > `tokens[i]`), `tokens` ascending, k >= 0 of them.

    Beyond the last of `tokens` the hazard per token is `tail_hazard`.

    References
    ----------
    Kaplan and Meier, Nonparametric Estimation from Incomplete Observations, JASA 1958.
    """

    tokens: IntArray
    survival: FloatArray
    tail_hazard: float

    @classmethod
    def fit(cls, lengths_tokens: IntArray, finished: BoolArray) -> "OutputLengths":
        """From lengths of finished requests and, where not `finished`, the tokens generated so far (both int64[n]).

        >>> OutputLengths.fit(np.array([4, 9]), np.array([True, True])).survival.tolist()
        [0.5, 0.0]
        >>> OutputLengths.fit(np.array([4, 6, 9]), np.array([True, False, True])).survival.round(2).tolist()
        [0.67, 0.0]
        """
        events, died = np.unique(lengths_tokens[finished], return_counts=True)
        if not events.size:
            return cls(events.astype(np.int64), np.empty(0), 1.0 / DEFAULT_MEAN_TOKENS)
        ordered = np.sort(lengths_tokens)
        at_risk = ordered.size - np.searchsorted(ordered, events, side="left")
        survival: FloatArray = np.cumprod(1.0 - died / at_risk, dtype=np.float64)
        survival[survival < 1e-12] = 0.0
        return cls(events.astype(np.int64), survival, _tail_hazard(lengths_tokens, finished))

    def draw(self, generated_tokens: IntArray, uniform: FloatArray) -> IntArray:
        """Total lengths int64[n], each > its `generated_tokens`, by inversion of `uniform` in [0, 1) (float64[n])."""
        alive = self._survival_at(generated_tokens)
        level = alive * (1.0 - uniform)
        # survival falls, so the first event at which it is <= level is a search in its reverse
        index = self.tokens.size - np.searchsorted(self.survival[::-1], level, side="right")
        index = np.maximum(index, np.searchsorted(self.tokens, generated_tokens, side="right"))
        beyond = (index >= self.tokens.size) | (alive <= 0.0)
        found = self.tokens[np.minimum(index, max(self.tokens.size - 1, 0))] if self.tokens.size else generated_tokens
        if beyond.any():
            last = float(self.survival[-1]) if self.tokens.size else 1.0
            start = np.maximum(generated_tokens, int(self.tokens[-1]) if self.tokens.size else 0)
            ratio = np.where(alive > 0.0, np.maximum(level, 1e-300) / max(last, 1e-300), 1.0 - uniform)
            extra = np.floor(np.log(np.minimum(ratio, 1.0)) / np.log1p(-self.tail_hazard)).astype(np.int64)
            found = np.where(beyond, start + 1 + extra, found)
        return found

    def _survival_at(self, tokens: IntArray) -> FloatArray:
        if not self.tokens.size:
            return np.ones(tokens.shape)
        index = np.searchsorted(self.tokens, tokens, side="right")
        return np.concatenate(([1.0], self.survival))[index]


def _tail_hazard(lengths_tokens: IntArray, finished: BoolArray) -> float:
    """Ends per token beyond the length that a tenth of the finished requests exceed, within (0, 0.5]."""
    events = np.sort(lengths_tokens[finished])
    start = int(events[max(events.size - max(int(events.size * _TAIL_SHARE), _TAIL_LEAST), 0)])
    exposure = float(np.maximum(lengths_tokens - start, 0).sum())
    ended = int(np.count_nonzero(events > start))
    return min(max((ended + 0.5) / (exposure + DEFAULT_MEAN_TOKENS / 2), 1e-6), 0.5)
