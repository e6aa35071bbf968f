"""Facts of two windows on request and engine level, each with an interval, and where the cache gave how much.

Says whether a figure changed, never why. A figure changed if its interval leaves out zero and it moved by more than
the noise floor: what the same service strays by from one run to the next. Laws: a window compared with itself changed
nowhere; what neither side tells is left out, never 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from schemas.evidence import EvidenceLevel, Fact
from schemas.steps import Step
from twin.evidence.phases import Stretch, stretches
from twin.evidence.resample import LEAST_IN_STRETCH, Blocks, Change, Sample, Statistic, change
from twin.evidence.window import Window, same_workload
from twin.known.requests import End
from twin.metrics import METRICS, FloatArray, quantile

BLOCK_S = 30.0
NOISE_FLOOR_RATIO = 0.15
"""One trace recorded twice on one machine differed by 6 to 15 % at P50, P95 and P99 (recordings of this project)."""
OFFERED, THROUGHPUT, SERVED = "offered requests", "output throughput", "served"
RATES = (OFFERED, THROUGHPUT)
_MS = 1e3
_TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@dataclass(frozen=True, slots=True)
class Judging:
    """How a change is judged. `floor_ratio` is replaced by what repeats show, where there are some."""

    block_s: float = BLOCK_S
    floor_ratio: float = NOISE_FLOOR_RATIO
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1.0 <= self.block_s <= 86_400.0:
            raise ValueError(f"block must be 1 to 86400 seconds, got {self.block_s:g}")
        if not 0.0 <= self.floor_ratio < 10.0:
            raise ValueError(f"noise floor must be a ratio in 0 .. 10, got {self.floor_ratio:g}")


@dataclass(frozen=True, slots=True)
class Measured:
    """Facts with the changes behind them, by (name, group)."""

    facts: tuple[Fact, ...]
    changes: dict[tuple[str, str], Change]
    groups: tuple[Stretch, ...]
    paired: bool
    floor_ratio: float

    def fact(self, name: str, group: str = "") -> Fact | None:
        """One of the facts."""
        return next((each for each in self.facts if (each.name, each.group) == (name, group)), None)

    @property
    def user_changed(self) -> bool:
        """Whether a latency changed, or what was put through of one and the same workload."""
        return any(each.changed for each in self.facts if each.level == "request" and self.speaks(each))

    def speaks(self, fact: Fact) -> bool:
        """Whether a figure tells of the service: rates follow the traffic where that differs."""
        return fact.name not in RATES or (self.paired and fact.name == THROUGHPUT)


def group_name(stretch: Stretch) -> str:
    """A stretch for people.

    >>> group_name(Stretch(0.0, 60.0, 0.373))
    'hit ratio 37 %'
    """
    return f"hit ratio {stretch.hit_ratio * 100:.0f} %"


def measure(base: Window, candidate: Window, judging: Judging) -> Measured:
    """All facts of both sides."""
    paired = same_workload(base, candidate)
    floor = floor_of(base, candidate, judging)
    groups = _groups(base, candidate) if paired else ()
    bounds_s = [stretch.from_s for stretch in groups[1:]]
    whole = (
        Blocks.of(base.span_s, judging.block_s, bounds_s),
        Blocks.of(base.span_s if paired else candidate.span_s, judging.block_s, bounds_s),
    )
    facts: list[Fact] = []
    changes: dict[tuple[str, str], Change] = {}
    for level, name, unit, scale, sides, statistic, told in _figures(base, candidate):
        found = change(*sides, statistic, cuts=whole, paired=paired, seed=judging.seed)
        changes[name, ""] = found
        facts.append(_fact(level, name, unit, scale, sides, statistic, found, floor, told, ""))
    for stretch in groups:
        sides = _in_stretch(base, stretch), _in_stretch(candidate, stretch)
        own = Blocks.of(stretch.span_s, stretch.span_s / LEAST_IN_STRETCH)
        found = change(*sides, _median, cuts=(own, own), paired=True, seed=judging.seed)
        changes["TTFT P50", group_name(stretch)] = found
        facts.append(_fact("request", "TTFT P50", "ms", _MS, sides, _median, found, floor, "P50", group_name(stretch)))
    return Measured(tuple(facts), changes, groups, paired, floor)


def floor_of(base: Window, candidate: Window, judging: Judging) -> float:
    """The noise floor: the largest difference between repeats of one side, at least 3 %; as set without repeats."""
    strays = [
        abs(np.log(quantile(one.latencies.of(metric), q) / quantile(other.latencies.of(metric), q)))
        for side in (base, candidate)
        for one, other in _pairs((side, *side.repeats))
        for metric in METRICS
        for q in (0.5, 0.95)
    ]
    known = [stray for stray in strays if np.isfinite(stray)]
    return max(0.03, float(np.expm1(max(known)))) if known else judging.floor_ratio


def in_stretch(window: Window, stretch: Stretch) -> np.ndarray:
    """Which members arrived in a stretch, bool[members]."""
    at_s = window.arrived_s
    return (at_s >= stretch.from_s) & (at_s < stretch.to_s)


def _pairs(windows: tuple[Window, ...]) -> Iterator[tuple[Window, Window]]:
    for place, one in enumerate(windows):
        for other in windows[place + 1 :]:
            yield one, other


_Figure = tuple[EvidenceLevel, str, str, float, tuple[Sample, Sample], Statistic, str]


def _figures(base: Window, candidate: Window) -> Iterator[_Figure]:
    """Level, name, unit, scale, samples, statistic and its name."""
    for metric in METRICS:
        for q in (0.5, 0.95):
            sides = base.sample(base.latencies.of(metric)), candidate.sample(candidate.latencies.of(metric))
            if all(side.values.size for side in sides):
                name = f"{_TITLES[metric]} P{q * 100:g}"
                yield "request", name, "ms", _MS, sides, _quantile(q), f"P{q * 100:g}"
    served = _served(base), _served(candidate)
    if all(side.values.size for side in served):
        yield "request", SERVED, "%", 1e2, served, _mean, "mean"
    yield from _rates(base, candidate)
    waits = [_queue_waits(side) for side in (base, candidate)]
    if all(side.values.size for side in waits):
        yield "engine", "queue wait", "ms", _MS, (waits[0], waits[1]), _mean, "mean"
    for name, unit, scale, of in _STEP_FIGURES:
        own = [_step_values(side, of) for side in (base, candidate)]
        if all(side.values.size for side in own):
            yield "engine", name, unit, scale, (own[0], own[1]), _mean, "mean"


def _rates(base: Window, candidate: Window) -> Iterator[_Figure]:
    for name, unit, of in ((OFFERED, "1/s", _arrivals), (THROUGHPUT, "tokens/s", _output_tokens)):
        sides = of(base), of(candidate)
        if all(side.values.size for side in sides):
            yield "request", name, unit, 1.0, sides, _mean, "mean"


def _per_second(window: Window, at_s: FloatArray, weights: FloatArray) -> Sample:
    """Sums per second of the window, as n values whose mean is the rate."""
    seconds = max(int(window.span_s), 1)
    inside = (at_s >= 0.0) & (at_s < seconds)
    sums = np.bincount(at_s[inside].astype(np.int64), weights[inside], seconds).astype(np.float64)
    return Sample(np.arange(seconds, dtype=np.float64) + 0.5, sums, float(seconds))


def _arrivals(window: Window) -> Sample:
    at_s = window.arrived_s
    return _per_second(window, at_s, np.ones(at_s.size))


def _output_tokens(window: Window) -> Sample:
    """Tokens of requests that finished within the window, whenever they came."""
    last_s = window.requests.last_s - window.from_s
    told = np.isfinite(last_s)
    return _per_second(window, last_s[told], window.requests.osl_tokens[told].astype(np.float64))


def _served(window: Window) -> Sample:
    """1 for a member that finished, 0 for one that was refused or aborted; those still open are left out."""
    end = window.requests.end[window.members]
    values = np.where(end == End.OPEN, np.nan, (end == End.FINISHED).astype(np.float64))
    return window.sample(values)


def _queue_waits(window: Window) -> Sample:
    rows = [
        (record.arrived_us, record.engine_scheduled_us - record.engine_queued_us)
        for record in window.finished
        if record.engine_scheduled_us is not None and record.engine_queued_us is not None
    ]
    at_us = np.array([at for at, _ in rows], np.float64) - window.requests.t0_us
    return Sample(at_us / 1e6 - window.from_s, np.array([wait / 1e6 for _, wait in rows]), window.span_s)


_Of = Callable[[Step], float | None]
_STEP_FIGURES: tuple[tuple[str, str, float, _Of], ...] = (
    ("schedule", "ms", 1.0, lambda step: None if step.schedule_us is None else step.schedule_us / 1e3),
    ("execute_model", "ms", 1.0, lambda step: None if step.execute_us is None else step.execute_us / 1e3),
    ("step", "ms", 1.0, lambda step: step.duration_us / 1e3),
    ("prefill tokens per step", "tokens", 1.0, lambda step: float(step.prefill_tokens)),
    ("decode requests per step", "requests", 1.0, lambda step: float(step.decode_requests)),
    ("waiting", "requests", 1.0, lambda step: None if step.waiting is None else float(step.waiting)),
)


def _step_values(window: Window, of: _Of) -> Sample:
    steps = window.working_steps
    return window.step_sample([of(step) for step in steps], steps)


def _in_stretch(window: Window, stretch: Stretch) -> Sample:
    values, inside = window.latencies.ttft_s, in_stretch(window, stretch)
    told = inside & ~np.isnan(values)
    return Sample(window.arrived_s[told] - stretch.from_s, values[told], stretch.span_s)


def _groups(base: Window, candidate: Window) -> tuple[Stretch, ...]:
    """Stretches by what the side with more hits got; none where nobody tells of hits or there are none."""
    told = [(side, side.hit_ratio) for side in (base, candidate)]
    known = [(side, ratio) for side, ratio in told if ratio is not None and ratio.any()]
    if not known:
        return ()
    side, ratio = max(known, key=lambda pair: float(pair[1].mean()))
    found = stretches(side.arrived_s, ratio, side.span_s)
    return tuple(_weighted(side, ratio, stretch) for stretch in found)


def _weighted(side: Window, ratio: FloatArray, stretch: Stretch) -> Stretch:
    """The same stretch with its hit ratio by tokens."""
    inside = in_stretch(side, stretch)
    isl = side.requests.isl_tokens[side.members][inside]
    return Stretch(stretch.from_s, stretch.to_s, float((ratio[inside] * isl).sum() / max(isl.sum(), 1)))


def _fact(
    level: EvidenceLevel,
    name: str,
    unit: str,
    scale: float,
    sides: tuple[Sample, Sample],
    statistic: Statistic,
    found: Change,
    floor: float,
    told: str,
    group: str,
) -> Fact:
    values = [statistic(side.values) * scale if side.values.size else np.nan for side in sides]
    base, candidate = (float(value) if np.isfinite(value) else None for value in values)
    return Fact(
        level=level,
        name=name,
        unit=unit,
        base=base,
        candidate=candidate,
        change_ratio=found.ratio,
        low_ratio=found.low,
        high_ratio=found.high,
        changed=found.beyond(floor),
        group=group,
        statistic=told,
    )


def _quantile(q: float) -> Statistic:
    return lambda values: quantile(values, q)


def _median(values: FloatArray) -> float:
    return quantile(values, 0.5)


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else np.nan
