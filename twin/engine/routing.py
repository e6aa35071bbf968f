"""Which engine gets a request. Policies only: they see counts, not time steps or requests' contents.

A policy is deterministic and chooses among engines that take requests now. Law: the choice is always one of those.
`round_robin` and `weighted` look at nothing, so their choices are known before anything is simulated.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from twin.engine.types import Int64Array

GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole part, fill 0 .. 1 evenly from the first on."""


class FleetView(Protocol):
    """What a router may know of the engines, each named by its index."""

    outstanding: list[int]
    """Requests sent to each engine that have not left."""

    def kv_used_blocks(self, engine: int) -> int:
        """KV blocks in use."""
        ...

    def cached_blocks(self, engine: int, row: int) -> int:
        """Leading prompt blocks of this request that its prefix cache holds."""
        ...

    def prompt_blocks(self, engine: int, row: int) -> int:
        """KV blocks of this request's prompt."""
        ...


class Router(Protocol):
    """Chooses engines; one object per simulation, for it may count."""

    def choose(self, row: int, fleet: FleetView, open_now: Sequence[int]) -> int:
        """The index of one of the engines `open_now` (ascending, not empty) for the request of this row."""
        ...


class RoundRobin:
    """The k-th request goes to the engine k modulo those that are open."""

    def __init__(self) -> None:
        self._requests = 0

    def choose(self, row: int, fleet: FleetView, open_now: Sequence[int]) -> int:
        self._requests += 1
        return open_now[(self._requests - 1) % len(open_now)]


class Weighted:
    """In proportion to weights, spread evenly over any stretch of requests."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = np.asarray(weights, np.float64)
        self._requests = 0

    def choose(self, row: int, fleet: FleetView, open_now: Sequence[int]) -> int:
        self._requests += 1
        return int(_by_weight(self._weights, np.array(open_now), np.array([self._requests - 1]))[0])


class LeastOutstanding:
    """The engine with the fewest requests that have not left; ties go round from the engine after the last one."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, row: int, fleet: FleetView, open_now: Sequence[int]) -> int:
        loads = fleet.outstanding
        if len(open_now) == len(loads):
            # Those after the last one first; a list's own searches are what is quick here.
            after = self._last + 1
            fewest, before = min(loads[after:], default=2**62), min(loads[:after], default=2**62)
            self._last = loads.index(fewest, after) if fewest <= before else loads.index(before)
        else:
            last, width = self._last, len(loads)
            self._last = min(open_now, key=lambda i: (loads[i], (i - last - 1) % width))
        return self._last


class PrefixAware:
    """The engine where most of the prompt is cached, unless it holds too much already.

    Costs in blocks: prompt blocks to compute, times `overlap_weight`, and blocks in use; the least wins, the first of
    equals. This is the rule of NVIDIA Dynamo's KV router at temperature 0.
    """

    def __init__(self, overlap_weight: float = 1.0) -> None:
        if not 0.0 <= overlap_weight < 1e6:
            raise ValueError(f"overlap_weight must be a finite number >= 0, got {overlap_weight}")
        self._weight = overlap_weight

    def choose(self, row: int, fleet: FleetView, open_now: Sequence[int]) -> int:
        def cost(i: int) -> float:
            missing = fleet.prompt_blocks(i, row) - fleet.cached_blocks(i, row)
            return self._weight * missing + fleet.kv_used_blocks(i)

        return min(open_now, key=cost)


STATIC = ("round_robin", "weighted")
"""Policies that can be applied before the simulation."""


def make_router(name: str, weights: Sequence[float]) -> Router:
    """A fresh router. Raises ValueError for an unknown name."""
    routers: dict[str, Callable[[], Router]] = {
        "round_robin": RoundRobin,
        "weighted": lambda: Weighted(weights),
        "least_outstanding": LeastOutstanding,
        "prefix_aware": PrefixAware,
    }
    if name not in routers:
        raise ValueError(f"routing must be one of {', '.join(sorted(routers))}, got {name!r}")
    return routers[name]()


def assigned(
    name: str, arrival_ps: Int64Array, windows: Sequence[tuple[int, int]], weights: Sequence[float]
) -> Int64Array:
    """The engine of each request under a static policy; -1 where none takes requests at its arrival."""
    engine = np.full(len(arrival_ps), -1, np.int64)
    edges = sorted({0, *(edge for window in windows for edge in window)})
    place = np.searchsorted(np.array(edges), arrival_ps, side="right") - 1
    open_at = [[e for e, (opens, closes) in enumerate(windows) if opens <= start < closes] for start in edges]
    # A request that nobody takes is not counted.
    turns = np.cumsum(np.array([len(some) > 0 for some in open_at])[place]) - 1
    for i, some in enumerate(open_at):
        inside = place == i
        if not some or not inside.any():
            continue
        open_now, turn = np.array(some, np.int64), turns[inside]
        if name == "round_robin":
            engine[inside] = open_now[turn % len(open_now)]
        else:
            engine[inside] = _by_weight(np.asarray(weights, np.float64), open_now, turn)
    return engine


def _by_weight(weights: NDArray[np.float64], open_now: Int64Array, turn: Int64Array) -> Int64Array:
    shares = np.cumsum(weights[open_now])
    at = np.modf((turn + 1) * GOLDEN)[0] * shares[-1]
    chosen: Int64Array = open_now[np.minimum(np.searchsorted(shares, at, side="right"), len(open_now) - 1)]
    return chosen
