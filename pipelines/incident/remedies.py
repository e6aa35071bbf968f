"""What each candidate action would have done: as expected at the moment before the breach, and with what really came.

*Expected* is a forecast from the recorded state of that moment, on the same random numbers for every candidate.
*In hindsight* the requests that really came go through the engines from the window's start, with the costs known at
that moment. Proposes nothing and knows no cost of an action. Law: a candidate that changes nothing is expected to do
exactly what doing nothing does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.incident.findings import Breach
from schemas.requests import RequestRecord
from twin.job import SimulationJob
from twin.known.comparison import twin_latencies
from twin.known.requests import KnownRequests, known_requests
from twin.known.run import KnownEngine, run_known
from twin.metrics import FloatArray, quantile
from twin.simulate import run as simulate
from twin.traffic.scenarios import BASELINE, Scenario
from twin.whatif import resized, with_config

US_PER_S = 1_000_000
DELTAS = (-1, 0, 1, 2, 3)
READY_S = 30.0
"""An engine that is not there yet takes at least so long to start."""
REPLICATIONS = 12
HELD_BACK = Scenario("held_back", rate_factor=0.75)


@dataclass(frozen=True, slots=True)
class Expected:
    """The target's quantile over the longest horizon: median and 90 % interval of replications, seconds (inf: never
    served), the share of them that miss it, and requests per second within all targets."""

    value_s: float
    low_s: float
    high_s: float
    breach_probability: float
    goodput_requests_per_s: float


@dataclass(frozen=True, slots=True)
class Hindsight:
    """The target's quantile over the requests that arrived while it was missed, and the share over the limit."""

    value_s: float
    missed_ratio: float


@dataclass(frozen=True, slots=True)
class Remedy:
    """One candidate. `note` says why something is None."""

    name: str
    is_nothing: bool
    expected: Expected | None
    hindsight: Hindsight | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    job: SimulationJob
    engines: tuple[KnownEngine, ...] | None
    is_nothing: bool = False
    scenario: Scenario = BASELINE


def remedies(job: SimulationJob, breach: Breach, records: Sequence[RequestRecord], t0_us: int) -> tuple[Remedy, ...]:
    """All candidates tried from `job`; `records` are of the window, whose start is `t0_us`."""
    few = replace(
        job.at_phase("coarse"),
        coarse_replications=min(REPLICATIONS, job.fine_replications),
        horizons_s=job.horizons_s[-1:],
        slos=(breach.target,),
        scenarios=(BASELINE,),
        with_insight=False,
        trials=None,
    )
    try:
        came = known_requests(records, t0_us)
    except ValueError:
        came = None
    return tuple(_tried(candidate, breach, came, t0_us) for candidate in _candidates(few))


def _candidates(job: SimulationJob) -> Iterator[_Candidate]:
    count = len(job.engines)
    for delta in DELTAS:
        if count + delta < 1:
            continue
        name = f"{count + delta} engine{'s' if count + delta > 1 else ''}"
        asked = replace(job, engines=resized(job.engines, delta, 0.0))
        yield _Candidate(name + (" (as it was)" if not delta else ""), asked, _known(asked, count + delta), not delta)
    late = replace(job, engines=resized(job.engines, 1, READY_S))
    yield _Candidate(f"{count + 1} engines, the new one ready after {READY_S:g} s", late, None)
    config = job.engines[0].config
    for name, factors in (("max_num_batched_tokens", (0.5, 2.0)), ("max_num_seqs", (0.5, 2.0)), ("kv_blocks", (1.5,))):
        before = getattr(config, name)
        for factor in factors:
            after = max(round(before * factor), 1)
            asked = with_config(job, **{name: after})
            yield _Candidate(f"{name} {before} to {after}", asked, _known(asked, count))
    yield _Candidate(
        "hold back a quarter of new requests", replace(job, scenarios=(HELD_BACK,)), None, False, HELD_BACK
    )


def _known(job: SimulationJob, count: int) -> tuple[KnownEngine, ...]:
    return tuple(KnownEngine(setup.config, setup.cost) for setup in job.engines[:count])


def _tried(candidate: _Candidate, breach: Breach, came: KnownRequests | None, t0_us: int) -> Remedy:
    try:
        expected = _expected(candidate, breach)
    except ValueError as error:  # such as fewer sequences than are running
        return Remedy(candidate.name, candidate.is_nothing, None, None, f"cannot be tried: {error}")
    hindsight, note = None, ""
    if came is not None and candidate.engines is not None:
        try:
            hindsight = _hindsight(candidate.engines, breach, came, t0_us)
        except ValueError as error:
            note = f"no hindsight: {error}"
    return Remedy(candidate.name, candidate.is_nothing, expected, hindsight, note)


def _expected(candidate: _Candidate, breach: Breach) -> Expected:
    found = simulate(candidate.job).scenario(candidate.scenario.name).horizons[0]
    values = found.latency(breach.target.metric, breach.target.quantile)
    low_s, value_s, high_s = _spread(values)
    return Expected(
        value_s=value_s,
        low_s=low_s,
        high_s=high_s,
        breach_probability=float(found.breached[:, 0].mean()),
        goodput_requests_per_s=float(np.mean(found.goodput_requests_per_s)),
    )


def _spread(values: FloatArray) -> tuple[float, float, float]:
    known = values[~np.isnan(values)]
    if not known.size:
        return (float("nan"),) * 3
    return quantile(known, 0.05), quantile(known, 0.5), quantile(known, 0.95)


def _hindsight(engines: tuple[KnownEngine, ...], breach: Breach, came: KnownRequests, t0_us: int) -> Hindsight | None:
    run = run_known(engines, came, routing="least_outstanding")
    values = twin_latencies(came, run, "client").of(breach.target.metric)
    end_us = (
        breach.recovered_us if breach.recovered_us is not None else t0_us + round(came.arrived_s[-1] * US_PER_S) + 1
    )
    begin_s, end_s = (breach.broke_us - t0_us) / US_PER_S, (end_us - t0_us) / US_PER_S
    inside = values[(came.arrived_s >= begin_s) & (came.arrived_s < end_s)]
    inside = inside[~np.isnan(inside)]
    if not inside.size:
        return None
    return Hindsight(quantile(inside, breach.target.quantile), float(np.mean(inside > breach.target.limit_s)))
