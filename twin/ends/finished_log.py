"""Finished requests of one engine as a bounded table, in the order in which they became known. Learns nothing.

Laws: a request stays until the stretch it took part in has been learned, and the newest `KEPT` stay in any case;
memory is bounded by `CAPACITY` and `MAX_HASHES`, whatever comes in.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from schemas.requests import RequestFinished
from twin.metrics import quantile

IntArray = NDArray[np.int64]

KEPT = 256
CAPACITY = 16_384
MAX_HASHES = 65_536
UNKNOWN = -1
LAG_QUANTILE = 0.98
LAG_REQUESTS = (48, KEPT)
MAX_LAG_US = 120_000_000
MAX_ISL_TOKENS, MAX_OSL_TOKENS = 10_000_000, 1_000_000
LEAST_GAP_US = 100
"""A mean gap between tokens below this means that the record does not tell when its first token came."""
COLUMNS = (
    "arrived_us",
    "scheduled_us",
    "first_us",
    "last_us",
    "known_us",
    "isl_tokens",
    "computed_tokens",
    "osl_tokens",
    "preemptions",
    "counted_steps",
)
ARRIVED, SCHEDULED, FIRST, LAST, KNOWN, ISL, COMPUTED, OSL, PREEMPTIONS, COUNTED = range(len(COLUMNS))


class FinishedLog:
    """Rows of `COLUMNS`, whole numbers.

    Token times are the engine's own where the record has them, else the client's. `scheduled_us` is `UNKNOWN` where no
    record tells. `computed_tokens` is the prompt without what the prefix cache gave (as the record says, else what its
    block hashes let expect of those seen before), as far as it lies in no stretch that was learned. `counted_steps` is
    `UNKNOWN` until the request's first token lies in such a stretch; then it counts its later steps in them.
    """

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._hashes: OrderedDict[int, None] = OrderedDict()
        self.refused: Counter[str] = Counter()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._rows)

    def on_finished(self, event: RequestFinished, cache_tokens: int = 0) -> bool:
        """Take one finished request; False and a count by reason where it tells no latency.

        `cache_tokens`: most tokens that the engine's prefix cache can hold; 0 means it has none.
        """
        reason = _objection(event)
        if reason:
            self.refused[reason] += 1
            return False
        first_us, last_us = event.engine_first_token_us, event.engine_last_token_us
        if first_us is None or last_us is None or not event.arrived_us <= first_us <= last_us:
            first_us, last_us = event.first_token_us or event.at_us, event.at_us
        scheduled_us = event.engine_scheduled_us
        known = scheduled_us is not None and event.arrived_us <= scheduled_us <= first_us
        row = [
            event.arrived_us,
            scheduled_us if known and scheduled_us is not None else UNKNOWN,
            first_us,
            last_us,
            event.at_us,
            max(event.isl_tokens, 1),
            max(event.isl_tokens - self._cached_tokens(event, cache_tokens), 1),
            event.osl_tokens,
            event.preemptions or 0,
            UNKNOWN,
        ]
        self._rows.append(row)
        if len(self._rows) > CAPACITY:
            del self._rows[0]
            self.forgotten += 1
        return True

    def _cached_tokens(self, event: RequestFinished, cache_tokens: int) -> int:
        """What the cache gave: as told, else the prompt's leading blocks that were seen among the newest blocks."""
        if event.cached_tokens is not None:
            return event.cached_tokens
        if not (cache_tokens and event.hash_block_tokens):
            return 0
        hits = 0
        for value in event.block_hashes:
            if value not in self._hashes:
                break
            hits += 1
        for value in reversed(event.block_hashes):
            self._hashes[value] = None
            self._hashes.move_to_end(value)
        while len(self._hashes) > min(cache_tokens // event.hash_block_tokens, MAX_HASHES):
            self._hashes.popitem(last=False)
        return min(hits * event.hash_block_tokens, event.isl_tokens - 1)

    def table(self) -> IntArray:
        """All rows (n, `COLUMNS`), in the order in which they became known."""
        return np.array(self._rows, np.int64).reshape(-1, len(COLUMNS))

    def known_since(self, at_us: int) -> int:
        """How many rows became known after `at_us`."""
        return sum(row[KNOWN] > at_us for row in self._rows)

    def lag_us(self) -> int:
        """How long after its arrival a request is almost surely known, from the newest ones."""
        ages = [row[KNOWN] - row[ARRIVED] for row in self._rows[-KEPT:]]
        if not ages:
            return 0
        lags = (quantile(np.array(ages[-newest:], np.float64), LAG_QUANTILE) for newest in LAG_REQUESTS)
        return min(round(max(lags)), MAX_LAG_US)

    def count(self, counted: IntArray, left_tokens: IntArray, until_us: int) -> None:
        """All is learned up to `until_us`: note `counted_steps` and what is left of `computed_tokens` of each row (n,),
        and forget who is of no more use."""
        for row, steps, left in zip(self._rows, counted.tolist(), left_tokens.tolist(), strict=True):
            row[COUNTED], row[COMPUTED] = steps, left
        old, newest = self._rows[:-KEPT], self._rows[-KEPT:]
        self._rows = [row for row in old if row[LAST] > until_us] + newest

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rows": [list(row) for row in self._rows],
            "hashes": list(self._hashes),
            "refused": dict(sorted(self.refused.items())),
            "forgotten": self.forgotten,
        }

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Self:
        """The log of a snapshot."""
        log = cls()
        log._rows = [list(row) for row in data["rows"]]
        log._hashes = OrderedDict.fromkeys(data["hashes"])
        log.refused.update(data["refused"])
        log.forgotten = data["forgotten"]
        return log


def _objection(event: RequestFinished) -> str:
    """Why a record tells no latency; empty if it does."""
    if not event.timed or event.first_token_us is None:
        return "no_token_times"
    if not event.arrived_us <= event.first_token_us <= event.at_us:
        return "times_out_of_order"
    if event.osl_tokens < 1:
        return "no_output"
    if event.isl_tokens > MAX_ISL_TOKENS or event.osl_tokens > MAX_OSL_TOKENS:
        return "absurd_tokens"
    if event.at_us - event.first_token_us < LEAST_GAP_US * (event.osl_tokens - 1):
        return "all_tokens_at_once"
    return ""
