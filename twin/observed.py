"""What became of the requests of the last minutes, as far as event time has come. Forecasts nothing.

Laws: a request is one member, by its arrival; a refused one has no latency; an unfinished or aborted one is +inf,
never a number; memory is bounded by the span and the capacity.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRecord, RequestRejected
from twin.metrics import Latencies, tpot_s
from twin.scoring import US_PER_S, Members

CAPACITY = 100_000


@dataclass(slots=True)
class _Observed:
    """Latencies of one request in seconds; +inf while it has not ended, NaN where undefined or refused."""

    arrived_us: int
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf


class ObservedRequests:
    """Requests by arrival over the last `span_s` seconds of event time."""

    def __init__(self, span_s: float) -> None:
        self._span_us = round(span_s * US_PER_S)
        self._requests: OrderedDict[str, _Observed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def on_event(self, event: RequestRecord) -> None:
        """Fold one life-cycle event."""
        if isinstance(event, RequestArrived):
            self._put(event.request_id, event.at_us)
        elif isinstance(event, RequestFinished):
            if event.timed and event.first_token_us is not None:
                seen = self._put(event.request_id, event.arrived_us)
                seen.ttft_s, seen.tpot_s, seen.e2e_s = latencies_of(event)
        elif isinstance(event, RequestRejected):
            seen = self._put(event.request_id, event.arrived_us or event.at_us)
            seen.ttft_s = seen.tpot_s = seen.e2e_s = math.nan
        elif isinstance(event, RequestAborted) and event.arrived_us is not None:
            seen = self._put(event.request_id, event.arrived_us)
            if event.first_token_us:
                seen.ttft_s = (event.first_token_us - event.arrived_us) / US_PER_S

    def _put(self, request_id: str, arrived_us: int) -> _Observed:
        seen = self._requests.get(request_id)
        if seen is None:
            seen = self._requests[request_id] = _Observed(arrived_us)
            if len(self._requests) > CAPACITY:
                self._requests.popitem(last=False)
        return seen

    def members(self, closed_us: int) -> Members:
        """All requests that had arrived, with their latencies as of `closed_us`: what came later is +inf."""
        seen = [request for request in self._requests.values() if request.arrived_us <= closed_us]
        columns = np.array([(r.ttft_s, r.tpot_s, r.e2e_s) for r in seen], dtype=np.float64).reshape(-1, 3)
        arrived_us = np.array([r.arrived_us for r in seen], dtype=np.int64)
        age_s = (closed_us - arrived_us) / US_PER_S
        columns[columns[:, 0] > age_s, 0] = math.inf
        columns[columns[:, 2] > age_s, 1:] = math.inf
        return Members(
            arrived_us=arrived_us,
            latencies=Latencies(ttft_s=columns[:, 0], tpot_s=columns[:, 1], e2e_s=columns[:, 2]),
            closed_us=closed_us,
        )

    def forget_before(self, at_us: int) -> None:
        """Drop requests that arrived more than the span before `at_us`."""
        floor_us = at_us - self._span_us
        for request_id in [name for name, seen in self._requests.items() if seen.arrived_us < floor_us]:
            del self._requests[request_id]

    def snapshot(self) -> list[list[Any]]:
        """Plain data; infinite and undefined numbers as words."""
        return [
            [name, seen.arrived_us, _plain(seen.ttft_s), _plain(seen.tpot_s), _plain(seen.e2e_s)]
            for name, seen in self._requests.items()
        ]

    def restore(self, data: list[list[Any]]) -> None:
        """Take over what `snapshot` gave."""
        self._requests = OrderedDict(
            (name, _Observed(arrived_us, float(ttft), float(tpot), float(e2e)))
            for name, arrived_us, ttft, tpot, e2e in data
        )


def latencies_of(event: RequestFinished) -> tuple[float, float, float]:
    """TTFT, TPOT (NaN if undefined) and E2E in seconds, as the client saw them; needs `first_token_us`."""
    first_us = event.first_token_us if event.first_token_us is not None else event.at_us
    gap_s = tpot_s(
        first_token_s=(first_us - event.arrived_us) / US_PER_S,
        last_token_s=(event.at_us - event.arrived_us) / US_PER_S,
        osl_tokens=event.osl_tokens,
    )
    return (
        (first_us - event.arrived_us) / US_PER_S,
        math.nan if gap_s is None else gap_s,
        (event.at_us - event.arrived_us) / US_PER_S,
    )


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
