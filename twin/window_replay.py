"""The closed-window twin: what the engines would have done with the requests that really came, from the live state.

Draws no random number and makes no forecast: real arrivals, real lengths, costs and noise as given. Compare its
latencies with the recorded ones to learn the bias of the costs. Law: with true costs on an engine that follows the same
rules, the bias is zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from twin.cost.frozen import PS_PER_S
from twin.engine.run import simulate_many
from twin.engine.types import EngineResult, Grid, Job, Noise, Outcomes, Status
from twin.job import EngineSetup, FrontendOverheads
from twin.metrics import CLOSES_AFTER_S, FloatArray, IntArray, Latencies, latencies
from twin.replicate import workload_of
from twin.tally import seconds
from twin.traffic.draw import Arrivals


@dataclass(frozen=True, slots=True, eq=False)
class WindowReplay:
    """The twin's word on n requests, in order of arrival.

    `latencies` are at the client, comparable with recorded ones. The `_s` arrays are the engine's own clock, seconds
    from the window's start, NaN where it never came to that. `saturated_ratio` is the share of step time with
    requests waiting, of the most saturated engine.
    """

    latencies: Latencies
    queued_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    last_token_s: FloatArray
    preemptions: IntArray
    cached_tokens: IntArray
    saturated_ratio: float
    results: tuple[EngineResult, ...]


def replay_window(
    engines: Sequence[EngineSetup],
    arrivals: Arrivals,
    *,
    window_s: float,
    served_by: IntArray | None = None,
    overheads: FrontendOverheads | None = None,
    closes_after_s: float = CLOSES_AFTER_S,
    grid_s: float | None = None,
    noises: Sequence[Noise | None] | None = None,
) -> WindowReplay:
    """Replay one closed window.

    Parameters
    ----------
    engines
        With their states at the window's start, whose `osl_tokens` here mean what they say.
    arrivals
        One replication, times from the window's start; requests after `window_s` keep the last members company.
    served_by
        Index of the engine that served each request, as recorded (None: all by the first).
    overheads
        Their means are added.
    noises
        One for each engine (None: costs as given).

    Raises ValueError without engines, with more than one replication, or if `served_by` or `noises` do not fit.
    """
    served_by = np.zeros(arrivals.arrived_s.size, np.int64) if served_by is None else served_by
    _check(engines, arrivals, served_by)
    into_s, out_s = _means(overheads or FrontendOverheads())
    engine_ps = np.rint((arrivals.arrived_s + into_s) * PS_PER_S).astype(np.int64)
    places = [np.flatnonzero(served_by == index) for index in range(len(engines))]
    until_s = window_s + closes_after_s
    grid = None if grid_s is None else Grid(round(grid_s * PS_PER_S), int(until_s / grid_s) + 1)
    results = simulate_many(
        [
            Job(
                config=setup.config,
                cost=setup.cost,
                workload=workload_of(arrivals, engine_ps, place, setup.config),
                state=setup.state,
                grid=grid,
                noise=noise,
                until_ps=round(until_s * PS_PER_S),
            )
            for setup, place, noise in zip(engines, places, noises or [None] * len(engines), strict=True)
        ]
    )
    return _gathered(arrivals, places, results, out_s, until_s)


def _check(engines: Sequence[EngineSetup], arrivals: Arrivals, served_by: IntArray) -> None:
    if not engines:
        raise ValueError("replay_window needs at least one engine")
    if arrivals.replications != 1:
        raise ValueError(f"replay_window takes one replication, got {arrivals.replications}")
    if served_by.shape != arrivals.arrived_s.shape:
        raise ValueError(f"served_by must name an engine for each of {arrivals.arrived_s.size} requests")
    if served_by.size and (served_by.min() < 0 or served_by.max() >= len(engines)):
        raise ValueError(f"served_by must be in 0 .. {len(engines) - 1}, got {served_by.min()} .. {served_by.max()}")


def _means(overheads: FrontendOverheads) -> tuple[float, float]:
    into, out = overheads.to_engine_s, overheads.to_client_s
    return (sum(into) / len(into) if into else 0.0), (sum(out) / len(out) if out else 0.0)


def _gathered(
    arrivals: Arrivals, places: Sequence[IntArray], results: Sequence[EngineResult], out_s: float, until_s: float
) -> WindowReplay:
    column = {field.name: np.zeros(arrivals.arrived_s.size, np.int64) for field in fields(Outcomes)}
    for place, result in zip(places, results, strict=True):
        for name, values in column.items():
            values[place] = getattr(result.requests, name)
    first_s, last_s = seconds(column["first_token_ps"]), seconds(column["last_token_ps"])
    return WindowReplay(
        latencies=latencies(
            arrived_s=arrivals.arrived_s,
            first_token_s=first_s + out_s,
            last_token_s=last_s + out_s,
            osl_tokens=column["generated_tokens"],
            closes_s=until_s,
            refused=column["status"] == Status.REJECTED,
        ),
        queued_s=seconds(column["queued_ps"]),
        scheduled_s=seconds(column["scheduled_ps"]),
        first_token_s=first_s,
        last_token_s=last_s,
        preemptions=column["preemptions"],
        cached_tokens=column["cached_tokens"],
        saturated_ratio=max(result.saturated_ps / max(result.busy_ps, 1) for result in results),
        results=tuple(results),
    )
