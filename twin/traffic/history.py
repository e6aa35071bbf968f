"""Traffic seen so far, folded online in event time: arrivals, ends, and the rate forecasters they feed.

Holds at most `capacity` arrivals and the hashes of `PrefixMemory`; older ones are forgotten. Never holds the output
length of a request that has not finished. Laws: memory does not grow with time; what happens after t changes no plan
made as of t; restoring a snapshot changes no plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.requests import RequestAborted, RequestArrived, RequestEvent, RequestFinished, RequestRejected
from twin.metrics import FloatArray, IntArray, quantile
from twin.traffic.counted import CountedArrivals
from twin.traffic.forecast import RateForecast
from twin.traffic.lengths import OutputLengths
from twin.traffic.mix import same_mix_since_s
from twin.traffic.plan import UNKNOWN_TOKENS, Sources, TrafficPlan
from twin.traffic.prefixes import PrefixMemory
from twin.traffic.rate import RateForecaster
from twin.traffic.slots import US_PER_S, SlotCounter
from twin.traffic.sources import LEAST_BLOCK_ARRIVALS, Shape, operational_time, window_start_s

MAX_CLASSES = 64
VERSION = 4
READABLE_VERSIONS = (3, VERSION)
FAST_SLOT_S, FAST_HORIZONS_S = 5.0, (30.0, 60.0, 120.0)
MEDIUM_SLOT_S, MEDIUM_HORIZONS_S = 15.0, (120.0, 240.0)
"""Twice the time an engine takes to start: a line through the last minutes, where the fast ones see only noise."""
SLOW_SLOT_S, SLOW_HORIZONS_S = 60.0, (600.0, 1800.0, 3600.0, 7200.0)
LATE_WEIGHT = 0.01
LAG_REQUESTS = 256
LAG_QUANTILE = 0.95
STILL_OPEN_US = 2**62
COLUMNS = (
    "arrived_us",
    "known_us",
    "ended_us",
    "isl_tokens",
    "osl_tokens",
    "generated_tokens",
    "priority",
    "traffic_class",
    "known_blocks",
)
_ARRIVED, _KNOWN, _ENDED, _ISL, _OSL, _GENERATED, _PRIORITY, _CLASS, _BLOCKS = range(len(COLUMNS))


class TrafficHistory:
    """Traffic of one deployment.

    Parameters
    ----------
    capacity
        Most arrivals kept, at least 64.
    shape
        How past traffic is resampled.
    """

    def __init__(self, capacity: int = 16_384, shape: Shape | None = None) -> None:
        if capacity < 64:
            raise ValueError(f"history.capacity must be at least 64 arrivals, got {capacity}")
        self._capacity = capacity
        self._shape = shape or Shape()
        self._rows: IntArray = np.zeros((capacity, len(COLUMNS)), np.int64)
        self._ids = [""] * capacity
        self._prefixes = PrefixMemory(capacity)
        self._added = 0
        self._open: dict[str, int] = {}
        self._classes: dict[str, int] = {}
        self._hash_block_tokens = 0
        self._late_ratio = 0.0
        self._ended = 0
        self._counted = CountedArrivals()
        self._fast = SlotCounter(RateForecaster(FAST_SLOT_S, FAST_HORIZONS_S))
        self._medium = SlotCounter(RateForecaster(MEDIUM_SLOT_S, MEDIUM_HORIZONS_S))
        self._slow = SlotCounter(RateForecaster(SLOW_SLOT_S, SLOW_HORIZONS_S))

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def arrived(self, event: RequestArrived) -> None:
        """A request reached the frontend. One that is already known changes nothing."""
        if event.request_id in self._open:
            return
        self._late_ratio *= 1.0 - self._late_weight
        self._add(event, event.at_us, event.isl_tokens, event.priority, event.block_hashes)
        self._hash_block_tokens = event.hash_block_tokens or self._hash_block_tokens

    def finished(self, event: RequestFinished) -> None:
        """A request ended well: its output length is known from now on. An unknown one arrived unseen."""
        sequence = self._open.pop(event.request_id, None)
        if sequence is None:
            if self._is_forgotten(event.arrived_us):
                return
            self._late_ratio += self._late_weight * (1.0 - self._late_ratio)
            sequence = self._add(event, event.arrived_us, event.isl_tokens, event.priority, event.block_hashes)
            self._hash_block_tokens = event.hash_block_tokens or self._hash_block_tokens
            del self._open[event.request_id]
        row = self._end(sequence, event.at_us)
        if event.osl_tokens > 0:
            row[_OSL] = event.osl_tokens

    def ended(self, event: RequestRejected | RequestAborted) -> None:
        """A request ended otherwise: it was offered, but its output length is only known to be longer."""
        sequence = self._open.pop(event.request_id, None)
        if sequence is None:
            if event.arrived_us is None or event.isl_tokens is None or self._is_forgotten(event.arrived_us):
                return
            sequence = self._add(event, event.arrived_us, event.isl_tokens, 0, ())
            del self._open[event.request_id]
        row = self._end(sequence, event.at_us)
        row[_GENERATED] = event.osl_tokens if isinstance(event, RequestAborted) else 0

    def _end(self, sequence: int, at_us: int) -> IntArray:
        """Note an end; returns the request's row."""
        self._ended += 1
        row: IntArray = self._rows[sequence % self._capacity]
        row[_ENDED] = at_us
        return row

    def inside(self, at_us: int, requests: int) -> None:
        """The engines hold so many requests, waiting or running: with those that have ended, all that have arrived."""
        self._counted.on_counts(at_us, self._ended, requests)

    @property
    def arrivals(self) -> int:
        """All arrivals that were told of."""
        return self._added

    @property
    def late_ratio(self) -> float:
        """Share of recent requests that were told only at their end."""
        return self._late_ratio

    @property
    def _late_weight(self) -> float:
        """A plain mean at first: a service that tells nothing else must not look as if it told all."""
        return max(LATE_WEIGHT, 1.0 / (self._added + 1))

    def _is_forgotten(self, arrived_us: int) -> bool:
        """Whether the request came before all that are kept: nothing can be said of its time any more."""
        return self._added >= self._capacity and arrived_us < self._rows[self._added % self._capacity, _ARRIVED]

    def _add(self, event: RequestEvent, arrived_us: int, isl: int, priority: int, hashes: Sequence[int]) -> int:
        sequence = self._added
        slot = sequence % self._capacity
        if self._open.get(self._ids[slot]) == sequence - self._capacity:
            del self._open[self._ids[slot]]
        kind = self._class_of(event.traffic_class)
        self._rows[slot] = (
            arrived_us,
            event.at_us,
            STILL_OPEN_US,
            max(isl, 1),
            UNKNOWN_TOKENS,
            0,
            priority,
            kind,
            self._prefixes.add(sequence, hashes),
        )
        self._ids[slot] = event.request_id
        self._open[event.request_id] = sequence
        self._added += 1
        for slots in (self._fast, self._medium, self._slow):
            slots.count(arrived_us)
        return sequence

    def _class_of(self, name: str) -> int:
        """Number of a traffic class; beyond `MAX_CLASSES` new ones count as the first."""
        if name not in self._classes and len(self._classes) >= MAX_CLASSES:
            return 0
        return self._classes.setdefault(name, len(self._classes))

    def advance(self, at_us: int) -> None:
        """Event time has come to `at_us`: all arrivals before it, reporting lag aside, are in."""
        complete_us = at_us - round(self._lag_s() * US_PER_S)
        for slots in (self._fast, self._medium, self._slow):
            slots.advance(complete_us)
            if self._late_ratio >= 0.5:
                slots.advance_counted(self._counted, at_us)

    def _lag_s(self) -> float:
        """How long ago arrivals are known in full. 0 unless most are told only at their end."""
        if self._late_ratio < 0.5:
            return 0.0
        recent = np.arange(max(self._added - LAG_REQUESTS, 0), self._added) % self._capacity
        rows = self._rows[recent]
        ended = rows[rows[:, _OSL] != UNKNOWN_TOKENS]
        if not ended.size:
            return 0.0
        return quantile((ended[:, _ENDED] - ended[:, _ARRIVED]) / US_PER_S, LAG_QUANTILE)

    def rate(self) -> RateForecast:
        """Rate forecast from the last slot on: fast slots up to two minutes, medium ones up to four, then slow ones."""
        fast = self._until_medium(self._fast.forecaster.forecast())
        if not self._slow.forecaster.slots:
            return fast
        slow = self._slow.forecaster.forecast()
        last_s = float(fast.anchors_s[-1])
        extra = [(s, slow.mean_per_s(s) * (s - last_s), slow.sigma_at(s)) for s in SLOW_HORIZONS_S]
        arrivals = np.append(fast.arrivals, [fast.arrivals[-1] + more for _, more, _ in extra])
        return RateForecast(
            anchors_s=np.append(fast.anchors_s, SLOW_HORIZONS_S),
            arrivals=np.maximum.accumulate(arrivals),
            level_sigma=np.append(fast.level_sigma, [max(sigma, float(fast.level_sigma[-1])) for *_, sigma in extra]),
            dispersion=fast.dispersion,
            chosen=fast.chosen,
        )

    def _until_medium(self, fast: RateForecast) -> RateForecast:
        if not self._medium.forecaster.slots:
            return fast
        medium, (begin_s, end_s) = self._medium.forecaster.forecast(), MEDIUM_HORIZONS_S
        more = medium.expected_by(end_s) - medium.expected_by(begin_s)
        sigma = max(medium.sigma_at(end_s), float(fast.level_sigma[-1]))
        return RateForecast(
            anchors_s=np.append(fast.anchors_s, end_s),
            arrivals=np.append(fast.arrivals, fast.arrivals[-1] + more),
            level_sigma=np.append(fast.level_sigma, sigma),
            dispersion=fast.dispersion,
            chosen=fast.chosen,
        )

    def plan(self, as_of_us: int, generated_tokens: Mapping[str, int] | None = None) -> TrafficPlan:
        """Freeze what is known as of `as_of_us`; advances to it.

        `generated_tokens` tells how far unfinished requests are, by request id (0 where it does not tell).
        Raises ValueError if slots after `as_of_us` were already learned.
        """
        if max(each.handed_over_us for each in (self._fast, self._medium, self._slow)) > as_of_us:
            raise ValueError(
                f"history has already learned arrivals after {as_of_us} us; plan at or after the last tick"
            )
        self.advance(as_of_us)
        window = self._window(as_of_us)
        finished = (window.rows[:, _OSL] != UNKNOWN_TOKENS) & (window.rows[:, _ENDED] <= as_of_us)
        generated = self._generated(window, as_of_us, generated_tokens or {})
        rate = self.rate()
        n = window.rows.shape[0]
        block = max(self._shape.block_s * n / -window.start_s, LEAST_BLOCK_ARRIVALS)
        return TrafficPlan(
            sources=self._sources(window, np.where(finished, window.rows[:, _OSL], UNKNOWN_TOKENS), generated),
            block=min(block, max(float(n), 1.0)),
            rate=rate,
            lengths=OutputLengths.fit(np.where(finished, window.rows[:, _OSL], generated), finished),
            classes=tuple(self._classes) or ("",),
            hash_block_tokens=self._hash_block_tokens,
        )

    def _window(self, as_of_us: int) -> "_Window":
        """Rows to resample, sorted by arrival."""
        sequences = np.arange(max(self._added - self._capacity, 0), self._added)
        rows = self._rows[sequences % self._capacity]
        complete_us = as_of_us - round(self._lag_s() * US_PER_S)
        order = np.argsort(rows[:, _ARRIVED], kind="stable")
        order = order[(rows[order, _ARRIVED] <= complete_us) & (rows[order, _KNOWN] <= as_of_us)]
        arrived_s = (rows[order, _ARRIVED] - complete_us) / US_PER_S
        start_s = window_start_s(arrived_s, self._shape)
        order, arrived_s = order[arrived_s > start_s], arrived_s[arrived_s > start_s]
        start_s = same_mix_since_s(arrived_s, self._features(rows[order], as_of_us), start_s)
        inside = arrived_s > start_s
        return _Window(rows[order[inside]], sequences[order[inside]], arrived_s[inside], start_s)

    def _features(self, rows: IntArray, as_of_us: int) -> FloatArray:
        """Per request: log prompt, log output, share of the prompt known before.

        An output counts only if every earlier request has ended too: among the latest, the short ones end first.
        """
        open_now = rows[:, _ENDED] > as_of_us
        told = rows[:, _OSL] != UNKNOWN_TOKENS
        told[int(np.argmax(open_now)) if open_now.any() else rows.shape[0] :] = False
        output = np.full(rows.shape[0], np.nan)
        output[told] = np.log(rows[told, _OSL])
        reused = np.minimum(rows[:, _BLOCKS] * self._hash_block_tokens / rows[:, _ISL], 1.0)
        return np.stack((np.log(rows[:, _ISL]), output, reused), axis=1)

    def _generated(self, window: "_Window", as_of_us: int, known: Mapping[str, int]) -> IntArray:
        """Tokens of unfinished requests so far."""
        generated: IntArray = window.rows[:, _GENERATED].copy()
        for at in np.flatnonzero(window.rows[:, _ENDED] > as_of_us).tolist():
            generated[at] = known.get(self._ids[int(window.sequences[at]) % self._capacity], 0)
        return generated

    def _sources(self, window: "_Window", osl_tokens: IntArray, generated: IntArray) -> Sources:
        rows = window.rows
        n = rows.shape[0]
        hash_offsets, hash_values, hash_first = self._prefixes.columns(window.sequences)
        return Sources(
            at=operational_time(window.arrived_s, window.start_s, self._shape.bandwidth_s) if n else np.zeros(0),
            extent=float(n),
            isl_tokens=rows[:, _ISL].copy(),
            osl_tokens=osl_tokens,
            generated_tokens=generated,
            priority=rows[:, _PRIORITY].copy(),
            traffic_class=rows[:, _CLASS].copy(),
            hash_offsets=hash_offsets,
            hash_values=hash_values,
            hash_first=hash_first,
        )

    def snapshot(self) -> dict[str, Any]:
        """State as numbers, strings, lists and dicts."""
        sequences = np.arange(max(self._added - self._capacity, 0), self._added)
        slots = (sequences % self._capacity).tolist()
        return {
            "version": VERSION,
            "capacity": self._capacity,
            "added": self._added,
            "rows": self._rows[slots].tolist(),
            "ids": [self._ids[slot] for slot in slots],
            "prefixes": self._prefixes.snapshot(),
            "open": list(self._open.items()),
            "classes": list(self._classes),
            "hash_block_tokens": self._hash_block_tokens,
            "late_ratio": self._late_ratio,
            "ended": self._ended,
            "counted": self._counted.snapshot(),
            "fast": self._fast.snapshot(),
            "medium": self._medium.snapshot(),
            "slow": self._slow.snapshot(),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], shape: Shape | None = None) -> "TrafficHistory":
        """The history of a snapshot. Raises ValueError if it is of another version."""
        if state.get("version") not in READABLE_VERSIONS:
            raise ValueError(
                f"traffic history snapshot has version {state.get('version')}, this code reads {READABLE_VERSIONS}"
            )
        made = cls(state["capacity"], shape)
        made._added = state["added"]
        first = made._added - len(state["ids"])
        for at, row in enumerate(state["rows"]):
            slot = (first + at) % made._capacity
            made._rows[slot] = row
            made._ids[slot] = state["ids"][at]
        made._open = dict(state["open"])
        made._prefixes = PrefixMemory.restore(state["prefixes"])
        made._classes = {name: index for index, name in enumerate(state["classes"])}
        made._hash_block_tokens = state["hash_block_tokens"]
        made._late_ratio = state["late_ratio"]
        made._ended, made._counted = state["ended"], CountedArrivals.restore(state["counted"])
        made._fast = SlotCounter.restore(state["fast"])
        if "medium" in state:  # version 3 had none
            made._medium = SlotCounter.restore(state["medium"])
        made._slow = SlotCounter.restore(state["slow"])
        return made


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Rows to resample, sorted by arrival: their numbers, their times in (`start_s`, 0]."""

    rows: IntArray
    sequences: IntArray
    arrived_s: FloatArray
    start_s: float
