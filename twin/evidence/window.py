"""One window of one service: its requests, steps and engines, cut from a recording. Compares nothing.

Members arrived in [from_s, to_s); earlier requests come along unmeasured, so that a simulation meets engines as full
as they were. Laws: the windows of a cut recording share no member; a window over everything has all requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from schemas.evidence import Boundary, Side
from schemas.requests import RequestFinished
from schemas.steps import Step
from twin.evidence.resample import Sample
from twin.job import FrontendOverheads
from twin.known.comparison import observed_latencies
from twin.known.requests import NOT_TOLD, End, KnownRequests
from twin.metrics import BoolArray, FloatArray, Latencies
from twin.traffic.draw import Arrivals

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Requests up to the window's end, which of them are `members` (bool[n]), and the steps of its time by engine.

    `finished` are the members' own records, for what only they tell. `repeats` are further windows of the same kind.
    """

    source: str
    deployment: str
    from_s: float
    to_s: float
    requests: KnownRequests
    members: BoolArray
    steps: Mapping[str, tuple[Step, ...]]
    finished: tuple[RequestFinished, ...]
    configs: tuple[EngineConfig, ...]
    overheads: FrontendOverheads
    repeats: tuple["Window", ...] = ()

    @property
    def span_s(self) -> float:
        """Wall time of the window."""
        return self.to_s - self.from_s

    @property
    def member_count(self) -> int:
        """Requests that arrived in it."""
        return int(np.count_nonzero(self.members))

    @property
    def arrived_s(self) -> FloatArray:
        """Arrival of each member, seconds from the window's start."""
        return self.requests.arrived_s[self.members] - self.from_s

    @property
    def working_steps(self) -> tuple[Step, ...]:
        """Steps that scheduled something, all engines together."""
        rows = (step for own in self.steps.values() for step in own)
        return tuple(step for step in rows if step.prefill_tokens or step.decode_requests)

    @property
    def latencies(self) -> Latencies:
        """Of the members, as the client saw them; +inf for one that had not ended, NaN for one that was refused."""
        found = observed_latencies(self.requests, "client")[self.members]
        still_open = self.requests.end[self.members] == End.OPEN
        for values in (found.ttft_s, found.tpot_s, found.e2e_s):
            values[still_open] = np.inf
        return found

    @property
    def hit_ratio(self) -> FloatArray | None:
        """Share of each member's prompt that came from the cache; None where nobody tells."""
        cached = self.requests.cached_tokens[self.members]
        if not cached.size or (cached == NOT_TOLD).all():
            return None
        return np.where(cached == NOT_TOLD, 0, cached) / self.requests.isl_tokens[self.members]

    def sample(self, values: FloatArray) -> Sample:
        """Values of the members, undefined ones left out."""
        told = ~np.isnan(values)
        return Sample(self.arrived_s[told], values[told], self.span_s)

    def step_sample(self, values: Sequence[float | None], steps: Sequence[Step]) -> Sample:
        """Values of steps, those not told left out."""
        pairs = [(step.start_us, value) for step, value in zip(steps, values, strict=True) if value is not None]
        at_s = np.array([start_us for start_us, _ in pairs], np.float64) - self.requests.t0_us
        return Sample(at_s / US_PER_S - self.from_s, np.array([value for _, value in pairs], np.float64), self.span_s)

    def boundaries(self, side: Side) -> tuple[Boundary, ...]:
        """What was sampled: requests and, where they were told, steps."""
        finished = self.requests.end[self.members] == End.FINISHED
        last_s = self.requests.last_s[self.members]
        inside = finished & ~(last_s > self.to_s)
        tokens = int(self.requests.osl_tokens[self.members][inside].sum())
        still_open = int(np.count_nonzero(~inside & np.isin(self.requests.end[self.members], (End.OPEN, End.FINISHED))))
        steps = self.working_steps
        whole = Boundary(
            side=side,
            level="request",
            source=self.source,
            window_s=self.span_s,
            events=self.member_count,
            requests_finished=int(np.count_nonzero(inside)),
            tokens_finished=tokens,
            open_requests=still_open,
            repeats=1 + len(self.repeats),
        )
        if not steps:
            return (whole,)
        return (whole, msgspec.structs.replace(whole, level="engine", events=len(steps)))


def cut(whole: Window, from_s: float, to_s: float) -> Window:
    """The part of a window. Raises ValueError for bounds that are none, or if nothing arrived between them."""
    if not 0.0 <= from_s < to_s:
        raise ValueError(f"window must be 0 <= from < to seconds, got {from_s:g}:{to_s:g}")
    arrived = whole.requests.arrived_s
    count = int(np.searchsorted(arrived, to_s, "left"))
    members = arrived[:count] >= from_s
    if not members.any():
        raise ValueError(
            f"no request of {whole.source} arrived between {from_s:g} and {to_s:g} s; its requests arrived from"
            f" {arrived[0]:g} to {arrived[-1]:g} s"
        )
    ids = {request_id for request_id, own in zip(whole.requests.ids, members, strict=False) if own}
    first_us = whole.requests.t0_us + from_s * US_PER_S
    end_us = whole.requests.t0_us + to_s * US_PER_S
    return replace(
        whole,
        source=f"{whole.source} {from_s:g}-{to_s:g} s",
        from_s=from_s,
        to_s=to_s,
        requests=first_requests(whole.requests, count),
        members=members,
        steps={
            name: tuple(step for step in rows if first_us <= step.start_us < end_us)
            for name, rows in whole.steps.items()
        },
        finished=tuple(record for record in whole.finished if record.request_id in ids),
    )


def first_requests(requests: KnownRequests, count: int) -> KnownRequests:
    """The first `count` requests by arrival."""
    if count >= len(requests):
        return requests
    old = requests.arrivals
    hash_end = int(old.hash_offsets[count])
    per_request = ("arrived_s", "isl_tokens", "osl_tokens", "priority", "traffic_class")
    arrivals = replace(
        old,
        offsets=np.array([0, count], np.int64),
        hash_offsets=old.hash_offsets[: count + 1],
        hash_values=old.hash_values[:hash_end],
        **{name: getattr(old, name)[:count] for name in per_request},
    )
    cut_columns = {
        field.name: getattr(requests, field.name)[:count]
        for field in fields(KnownRequests)
        if field.name not in ("t0_us", "arrivals")
    }
    return replace(requests, arrivals=arrivals, **cut_columns)


def same_workload(base: Window, candidate: Window) -> bool:
    """Whether both served the same requests in the same order: prompts, outputs, and gaps within 100 ms."""
    if base.member_count != candidate.member_count:
        return False
    sides: list[Arrivals] = [base.requests.arrivals, candidate.requests.arrivals]
    for name in ("isl_tokens", "osl_tokens"):
        one, other = getattr(sides[0], name)[base.members], getattr(sides[1], name)[candidate.members]
        if not np.array_equal(one, other):
            return False
    ones, others = base.arrived_s - base.arrived_s[0], candidate.arrived_s - candidate.arrived_s[0]
    return bool(np.abs(ones - others).max(initial=0.0) <= 0.1)
