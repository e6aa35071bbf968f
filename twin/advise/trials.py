"""Candidate actions of a forecast job, each simulated on the same random numbers as doing nothing. Proposes nothing.

More engines where doing nothing is in danger of missing a target, one by one until it is not; one fewer, unless the
job is coarse, with some more traffic than is expected, as giving one up must not need it back; every other action where
doing nothing soon misses a target. Calm costs three runs at most, danger up to four, other actions one each.
Law: a candidate that changes nothing is found exactly as doing nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from schemas.actions import CutOver, EngineWeight, HoldBack, LimitName, Scale, SetLimit, ShiftTraffic, What
from twin.advise.upper_side import upper_sides
from twin.job import HorizonResult, SimulationJob, Trials, Tried
from twin.simulate import run
from twin.traffic.forecast import RateForecast
from twin.traffic.plan import Sources
from twin.traffic.scenarios import BASELINE, Scenario
from twin.whatif import EnginesPoint, resized, with_config

LIMIT_FACTORS: dict[LimitName, tuple[float, ...]] = {"max_num_seqs": (0.5, 1.5), "max_num_batched_tokens": (0.5, 2.0)}
COARSE_REPLICATIONS = 2
ONSET_PARTS = 4
KV_RESERVE_RATIO = 0.05
SLOWER_RATIO = 1.5
"""An engine whose decode steps take so many times those of the others may be cut off from new requests."""
LEAST_HELD_RATIO = 0.02
"""Low-priority traffic below this share is not worth holding back."""


def tried(job: SimulationJob) -> tuple[Tried, ...]:
    """All that the job asks to try, doing nothing (a `Scale` to as many) first; nothing without targets."""
    asked = job.trials
    if asked is None or not job.slos or not job.traffic.sources.requests:
        return ()
    few = _few(job, asked)
    ready = _demanded(few, asked)
    more = tuple(_more(ready, asked))
    if job.phase == "coarse":
        return more
    return (*more, *_fewer(ready, asked), *(_others(few, asked) if asked.others else ()))


def surface(job: SimulationJob, found: tuple[Tried, ...]) -> list[EnginesPoint]:
    """The response surface over the requests that arrive once an engine added now is ready, fewest engines first.

    What was tried is not simulated again. Empty where the job tries nothing.
    """
    asked = job.trials
    if asked is None or not found:
        return []
    same = asked.demand_per_s is None
    known = {each.what: each.found for each in found if same and each.members_from_s == asked.start_s}
    few = _few(job, asked)
    later = _window(few, asked.start_s, asked.window_s)
    points = []
    for delta in (each for each in asked.deltas if len(job.engines) + each >= 1):
        engines = resized(job.engines, delta, asked.start_s if delta > 0 else 0.0)
        one = known.get(_scale(few, delta)) or _found(replace(later, engines=engines))
        count = len(job.engines) + delta
        missed = np.any(one.breached, axis=1)
        points.append(
            EnginesPoint(count, one.goodput_requests_per_s, missed, later.members_from_s, later.horizons_s[-1])
        )
    return points


def _few(job: SimulationJob, asked: Trials) -> SimulationJob:
    """Of a coarse job as few as give an interval: it is to be quick. The same however the job is dealt out."""
    replications = COARSE_REPLICATIONS if job.phase == "coarse" else asked.replications
    return replace(
        job.at_phase("coarse"),
        coarse_replications=min(replications, job.fine_replications),
        share=(0, 1),
        scenarios=(BASELINE,),
        with_insight=False,
        trials=None,
    )


def _demanded(job: SimulationJob, asked: Trials) -> SimulationJob:
    """The job on the traffic to be ready for: from the rate of now to the demand when an engine is ready, then on."""
    if asked.demand_per_s is None:
        return job
    anchors_s = np.array(
        [0.0, asked.start_s, asked.start_s + asked.window_s] if asked.start_s else [0.0, asked.window_s]
    )
    rates = np.full(anchors_s.size - 1, asked.demand_per_s)
    if asked.start_s:
        rates[0] = (asked.now_per_s + asked.demand_per_s) / 2.0
    arrivals = np.concatenate(([0.0], np.cumsum(rates * np.diff(anchors_s))))
    rate = RateForecast(anchors_s, arrivals, np.zeros(anchors_s.size), job.traffic.rate.dispersion, "demand")
    return replace(job, traffic=replace(job.traffic, rate=rate))


def in_danger(found: HorizonResult, job: SimulationJob, asked: Trials) -> bool:
    """Whether the upper side of any target's interval reaches the asked share of its limit."""
    return upper_sides(found, job.slos, asked.widen)[1] >= asked.trip_ratio


def _window(job: SimulationJob, from_s: float, span_s: float) -> SimulationJob:
    return replace(job, horizons_s=(from_s + span_s,), members_from_s=from_s)


def _found(job: SimulationJob) -> HorizonResult:
    return run(job).scenarios[0].horizons[-1]


def _onset(job: SimulationJob, asked: Trials) -> tuple[HorizonResult, float | None]:
    """Doing nothing over the job's window, and the begin of the first part of it with which it comes into danger."""
    from_s, to_s = job.members_from_s, job.horizons_s[-1]
    parts = max(min(ONSET_PARTS, int((to_s - from_s) / job.grid_s)), 1)
    ends_s = (*(from_s + (to_s - from_s) * part / parts for part in range(1, parts)), to_s)
    horizons = run(replace(job, horizons_s=ends_s)).scenarios[0].horizons
    begins = zip((from_s, *ends_s), horizons, strict=False)
    onset_s = next((begin_s for begin_s, found in begins if in_danger(found, job, asked)), None)
    return horizons[-1], onset_s


def _scale(job: SimulationJob, delta: int) -> Scale:
    before = len(job.engines)
    gone = tuple(setup.name for setup in job.engines[before + min(delta, 0) :])
    return Scale(
        engines_before=before, engines_after=before + delta, device=job.engines[0].config.hardware, remove=gone
    )


def _fewer(job: SimulationJob, asked: Trials) -> Iterator[Tried]:
    """One engine fewer, if that is enough. Members from now on: an engine that is missed is missed at once, and for as
    long as a new one needs."""
    if len(job.engines) < 2 or min(asked.deltas) >= 0:
        return
    whole = replace(
        _window(job, 0.0, asked.start_s + asked.window_s),
        scenarios=(Scenario("headroom", rate_factor=asked.headroom_ratio),),
    )
    found = _found(replace(whole, engines=resized(job.engines, -1, 0.0)))
    if not in_danger(found, job, asked):
        yield Tried(_scale(job, -1), found, _found(whole))


def _more(job: SimulationJob, asked: Trials) -> Iterator[Tried]:
    """Doing nothing; and, while that is in danger, more engines, one by one, until nothing is."""
    later = _window(job, asked.start_s, asked.window_s)
    without, onset_s = _onset(later, asked)
    found = without
    yield Tried(_scale(job, 0), without, without, asked.start_s, onset_s)
    for delta in (each for each in asked.deltas if each > 0):
        if not in_danger(found, job, asked):
            return
        found = _found(replace(later, engines=resized(job.engines, delta, asked.start_s)))
        yield Tried(_scale(job, delta), found, without, asked.start_s, onset_s)


def _others(job: SimulationJob, asked: Trials) -> Iterator[Tried]:
    near = _window(job, 0.0, asked.near_s)
    without, onset_s = _onset(near, asked)
    if not in_danger(without, job, asked):
        return
    asking: tuple[tuple[What, SimulationJob], ...]
    asking = (*_limits(near), *_weights(near), *_cut_over(near), *_held_back(near))
    for what, changed in asking:
        yield Tried(what, _found(changed), without, danger_after_s=onset_s)


def _limits(job: SimulationJob) -> Iterator[tuple[SetLimit, SimulationJob]]:
    """Batch and cache limits; all engines get the same, those of the first are told."""
    first = job.engines[0].config
    for limit, factors in LIMIT_FACTORS.items():
        for factor in factors:
            before, after = getattr(first, limit), max(int(getattr(first, limit) * factor), 1)
            if after != before:
                yield SetLimit(limit=limit, before=before, after=after), with_config(job, **{limit: after})
    after_ratio = 0.0 if first.watermark_ratio else KV_RESERVE_RATIO
    changed = with_config(job, watermark_ratio=after_ratio)
    yield SetLimit(limit="watermark_ratio", before=first.watermark_ratio, after=after_ratio), changed


def _weights(job: SimulationJob) -> Iterator[tuple[ShiftTraffic, SimulationJob]]:
    """Shares of traffic by how fast engines decode now; least outstanding routing does that by itself."""
    if len(job.engines) < 2 or job.routing == "least_outstanding":
        return
    speeds = [1.0 / max(setup.cost.decode.decode_requests_ps[-1], 1) for setup in job.engines]
    weights = [speed / sum(speeds) for speed in speeds]
    engines = tuple(replace(setup, weight=weight) for setup, weight in zip(job.engines, weights, strict=True))
    told = tuple(EngineWeight(engine=setup.name, weight=setup.weight) for setup in engines)
    yield ShiftTraffic(weights=told), replace(job, engines=engines, routing="weighted")


def _cut_over(job: SimulationJob) -> Iterator[tuple[CutOver, SimulationJob]]:
    """All new requests from the slowest engine to the others, where it is clearly slower than they are."""
    open_ = [at for at, setup in enumerate(job.engines) if setup.available_until_s > job.horizons_s[-1]]
    if len(open_) < 2 or any(not job.engines[at].available_from_s < job.horizons_s[-1] for at in open_):
        return
    steps_ps = {at: float(job.engines[at].cost.decode.decode_requests_ps[-1]) for at in open_}
    slowest = max(open_, key=lambda at: (steps_ps[at], -at))
    others = [at for at in open_ if at != slowest]
    if steps_ps[slowest] < SLOWER_RATIO * float(np.median([steps_ps[at] for at in others])):
        return
    engines = tuple(
        replace(setup, available_from_s=0.0, available_until_s=0.0) if at == slowest else setup
        for at, setup in enumerate(job.engines)
    )
    what = CutOver(engine=job.engines[slowest].name, to=tuple(job.engines[at].name for at in others))
    yield what, replace(job, engines=engines)


def _held_back(job: SimulationJob) -> Iterator[tuple[HoldBack, SimulationJob]]:
    """The least important traffic, where some is less important than the rest: behind all others, or not at all."""
    sources = job.traffic.sources
    lowest = int(sources.priority.max())
    held = sources.priority >= lowest
    ratio = float(held.mean())
    if not LEAST_HELD_RATIO <= ratio <= 1.0 - LEAST_HELD_RATIO:
        return
    if any(setup.config.policy != "priority" for setup in job.engines):
        what = HoldBack(how="defer", priority_from=lowest, traffic_ratio=ratio)
        yield what, with_config(job, policy="priority")
    kept = replace(job.traffic, sources=_only(sources, ~held))
    shed = replace(job, traffic=kept, scenarios=(Scenario("shed", rate_factor=1.0 - ratio),))
    yield HoldBack(how="shed", priority_from=lowest, traffic_ratio=ratio), shed


def _only(sources: Sources, kept: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Sources:
    """Some of the sources, their operational time drawn together so that the rate stays 1; prefixes are left out."""
    rows = np.flatnonzero(kept)
    none = np.zeros(0, np.int64)
    return Sources(
        at=sources.at[rows] * rows.size / sources.at.size,
        extent=sources.extent * rows.size / sources.at.size,
        isl_tokens=sources.isl_tokens[rows],
        osl_tokens=sources.osl_tokens[rows],
        generated_tokens=sources.generated_tokens[rows],
        priority=sources.priority[rows],
        traffic_class=sources.traffic_class[rows],
        hash_offsets=np.zeros(rows.size + 1, np.int64),
        hash_values=none,
        hash_first=none,
    )
