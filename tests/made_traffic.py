"""Traffic made for tests: arrival times of known shape, fed into a history as wire records."""

from collections.abc import Iterable

import numpy as np

from schemas.requests import RequestArrived, RequestFinished
from twin.traffic.history import TrafficHistory

START_US = 1_796_052_000_000_000


def us(time_s: float) -> int:
    return START_US + round(time_s * 1e6)


def poisson(rate_per_s: float, seconds: float, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0.0, seconds, rng.poisson(rate_per_s * seconds)))


def bursty(rate_per_s: float, seconds: float, seed: int = 1, cv: float = 4.0) -> np.ndarray:
    """Gamma gaps with coefficient of variation `cv`."""
    rng = np.random.default_rng(seed)
    shape = 1.0 / cv**2
    gaps = rng.gamma(shape, 1.0 / (rate_per_s * shape), int(rate_per_s * seconds * 3) + 50)
    times = np.cumsum(gaps)
    return times[times < seconds]


def ramp(low_per_s: float, high_per_s: float, seconds: float, seed: int = 1) -> np.ndarray:
    """Poisson arrivals whose rate rises (or falls) linearly."""
    rng = np.random.default_rng(seed)
    most = max(low_per_s, high_per_s)
    times = np.sort(rng.uniform(0.0, seconds, rng.poisson(most * seconds)))
    rate = low_per_s + (high_per_s - low_per_s) * times / seconds
    return times[rng.random(times.size) < rate / most]


def arrived(number: int, time_s: float, isl: int = 100, hashes: Iterable[int] = (), block: int = 0) -> RequestArrived:
    return RequestArrived(
        deployment="d",
        request_id=f"r{number}",
        at_us=us(time_s),
        isl_tokens=isl,
        block_hashes=tuple(hashes),
        hash_block_tokens=block,
    )


def finished(number: int, time_s: float, end_s: float, isl: int = 100, osl: int = 20) -> RequestFinished:
    return RequestFinished(
        deployment="d",
        request_id=f"r{number}",
        at_us=us(end_s),
        arrived_us=us(time_s),
        isl_tokens=isl,
        osl_tokens=osl,
        first_token_us=us((time_s + end_s) / 2),
    )


def history_of(
    times_s: np.ndarray, until_s: float, *, serve_s: float = 1.0, seed: int = 1, ends_only: bool = False
) -> TrafficHistory:
    """A history that has seen all records up to `until_s`; each request takes `serve_s`; lengths are random."""
    rng = np.random.default_rng(seed)
    isl, osl = rng.integers(10, 2_000, times_s.size), rng.integers(1, 200, times_s.size)
    events: list[tuple[float, int, RequestArrived | RequestFinished]] = []
    for i, time_s in enumerate(times_s.tolist()):
        if not ends_only:
            events.append((time_s, i, arrived(i, time_s, int(isl[i]))))
        events.append((time_s + serve_s, i, finished(i, time_s, time_s + serve_s, int(isl[i]), int(osl[i]))))
    history = TrafficHistory()
    for at_s, _, event in sorted(events, key=lambda each: each[:2]):
        if at_s > until_s:
            break
        if isinstance(event, RequestArrived):
            history.arrived(event)
        else:
            history.finished(event)
        history.advance(event.at_us)
    return history
