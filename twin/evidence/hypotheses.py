"""Hypotheses from differences by rule: what may explain a change, what would refute it, what a twin has to turn.

Rules look at differences, never at sizes of effects: ranking is the simulation's. Laws: no difference, no hypothesis;
every hypothesis says what measurement refutes it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twin.cost.shape import Role
from twin.cost.taxonomy import SpanClass
from twin.evidence.class_guide import GUIDE, UNKNOWN
from twin.known.variants import plain_value

CLOSE_HIT_RATIO = 0.05
"""Hit ratios closer than this are the same."""
CLOSE_TRAFFIC_RATIO = 0.05
LEAST_SHARE_RATIO = 0.2
"""Classes with a smaller share of a change are no hypothesis of their own."""
PREFIX_SETTING = "enable_prefix_caching"

_FIELD_CLASSES: Mapping[str, tuple[SpanClass, ...]] = {
    "max_num_seqs": (SpanClass.COMPUTE, SpanClass.SYNC),
    "max_num_batched_tokens": (SpanClass.LAUNCH, SpanClass.SYNC),
    "enable_chunked_prefill": (SpanClass.SYNC,),
    "long_prefill_threshold_tokens": (SpanClass.SYNC,),
    "block_size_tokens": (SpanClass.ATTENTION,),
    "kv_blocks": (SpanClass.ATTENTION, SpanClass.SYNC),
    "tensor_parallel": (SpanClass.COMPUTE, SpanClass.COMMUNICATION),
    "pipeline_parallel": (SpanClass.COMPUTE, SpanClass.COMMUNICATION),
    "expert_parallel": (SpanClass.COMMUNICATION,),
    "cudagraph_capture_sizes": (SpanClass.LAUNCH,),
    "async_scheduling": (SpanClass.LAUNCH,),
    "max_queued_requests": (SpanClass.SYNC,),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What the twin changes on the base: engine settings, the other side's requests, or costs.

    `role_factors` multiply the costs of roles, `class_factors` those of span classes, `link_factor` the time that KV
    takes from a prefill to a decode engine.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    traffic: bool = False
    role_factors: Mapping[Role, float] = field(default_factory=dict)
    class_factors: Mapping[str, float] = field(default_factory=dict)
    link_factor: float = 1.0

    def joined(self, other: "Turn") -> "Turn":
        """Both at once."""
        return Turn(
            {**self.settings, **other.settings},
            self.traffic or other.traffic,
            {**self.role_factors, **other.role_factors},
            {**self.class_factors, **other.class_factors},
            self.link_factor * other.link_factor,
        )


@dataclass(frozen=True, slots=True)
class Guess:
    """One hypothesis before it was simulated."""

    code: str
    statement: str
    span_classes: tuple[str, ...]
    parameter: str
    refuted_by: str
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What differs between base and candidate; ratios are candidate over base, None where not told.

    `settings` are fields of the engines with both values. `class_ratios` and `class_shares` are measured ones: of the
    class's time, and of the whole change. `load_ratio` is of the time that KV takes to a decode engine. `tried` says
    under what load a figure was taken, in words.
    """

    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    hit_ratios: tuple[float, float] | None = None
    traffic: Mapping[str, float] = field(default_factory=dict)
    role_levels: Mapping[Role, float] = field(default_factory=dict)
    class_ratios: Mapping[str, float] = field(default_factory=dict)
    class_shares: Mapping[str, float] = field(default_factory=dict)
    load_ratio: float | None = None
    floor_ratio: float = 0.15
    tried: str = ""


Rule = Callable[[Differences], list[Guess]]


def hypotheses(found: Differences) -> list[Guess]:
    """What every rule says, in the order of rules; not ranked."""
    return [guess for rule in RULES for guess in rule(found)]


def prefix_reuse(found: Differences) -> list[Guess]:
    """More or fewer prompt tokens came from the prefix cache."""
    switched = found.settings.get(PREFIX_SETTING)
    if found.hit_ratios is not None:
        before, after = found.hit_ratios
        if abs(after - before) < CLOSE_HIT_RATIO:
            return []
        told = f" (hit ratio {before * 100:.0f} -> {after * 100:.0f} %)"
    elif switched is not None:
        before, after, told = float(bool(switched[0])), float(bool(switched[1])), ""
    else:
        return []
    what = "removes recomputation" if after > before else "no longer removes recomputation"
    weight = "lighter" if after > before else "heavier"
    return [
        Guess(
            code="prefix_reuse",
            statement=f"the prefix cache {what} of prefix tokens in prefill{told}: every step gets {weight}",
            span_classes=(SpanClass.COMPUTE, SpanClass.ATTENTION),
            parameter="prefix_hit_ratio" if switched is None else PREFIX_SETTING,
            refuted_by="the same requests with the cache on and prompts that share nothing (hit ratio 0 %): if TTFT and"
            " prefill tokens per request change as much, it was not the hits",
            turn=Turn(settings={PREFIX_SETTING: switched[1]}) if switched is not None else Turn(traffic=True),
        )
    ]


def engine_settings(found: Differences) -> list[Guess]:
    """Any other setting of the engines differs."""
    return [
        Guess(
            code=f"setting:{name}",
            statement=f"{name} {plain_value(before)} -> {plain_value(after)} changes what a step holds and who waits",
            span_classes=_FIELD_CLASSES.get(name, (SpanClass.SYNC,)),
            parameter=name,
            refuted_by=f"the same requests with {name} set back to {plain_value(before)} and nothing else changed:"
            " if the figures stay, it was not this setting",
            turn=Turn(settings={name: after}),
        )
        for name, (before, after) in found.settings.items()
        if name != PREFIX_SETTING
    ]


def load(found: Differences) -> list[Guess]:
    """Other traffic came."""
    moved = {name: ratio for name, ratio in found.traffic.items() if abs(ratio - 1.0) >= CLOSE_TRAFFIC_RATIO}
    if not moved:
        return []
    told = ", ".join(f"{name} {(ratio - 1.0) * 100:+.0f} %" for name, ratio in moved.items())
    return [
        Guess(
            code="load",
            statement=f"other traffic came ({told}): batches and queues differ, the engine need not",
            span_classes=(SpanClass.SYNC,),
            parameter="rate_factor",
            refuted_by="the base's requests replayed against the candidate: if the figures stay changed, it was not"
            " the traffic",
            turn=Turn(traffic=True),
        )
    ]


def machine(found: Differences) -> list[Guess]:
    """Steps of every role moved together: the machine, and no kind of work."""
    levels = [math.log(level) for level in found.role_levels.values()]
    floor = math.log1p(found.floor_ratio)
    if len(levels) < 2 or min(map(abs, levels)) < floor or max(levels) - min(levels) > max(floor, abs(levels[0]) / 2):
        return []
    mean = math.exp(sum(levels) / len(levels))
    return [
        Guess(
            code="machine",
            statement=f"every step takes {mean:.2f} times as long for the same work: the machine is"
            f" {'slower' if mean > 1 else 'faster'} (neighbours, clocks, a new build), no kind of work stands out",
            span_classes=(SpanClass.COMPUTE, SpanClass.ATTENTION, SpanClass.LAUNCH),
            parameter="step cost",
            refuted_by="CPU time per step and device clocks of both windows: if neither moved, and a fixed kernel takes"
            " as long as before, it is the work and not the machine",
            turn=Turn(role_factors=dict(found.role_levels)),
        )
    ]


def role_costs(found: Differences) -> list[Guess]:
    """Steps of one role moved alone."""
    if machine(found):
        return []
    floor = math.log1p(found.floor_ratio)
    return [
        Guess(
            code=f"cost:{role}",
            statement=f"{role} steps take {level:.2f} times as long for the same work",
            span_classes=(SpanClass.COMPUTE, SpanClass.ATTENTION),
            parameter=f"{role} step cost",
            refuted_by="kernel traces of both sides at equal batch shapes: if the mean time per kernel is the same, the"
            " cost did not change",
            turn=Turn(role_factors={role: level}),
        )
        for role, level in found.role_levels.items()
        if abs(math.log(level)) >= floor
    ]


def measured_classes(found: Differences) -> list[Guess]:
    """A profile shows a class that moved, and no setting of the prefix cache says why."""
    if prefix_reuse(found):
        return []
    return [
        Guess(
            code=f"class:{name}",
            statement=f"{GUIDE[SpanClass(name)].title} takes {ratio:.2f} times the time",
            span_classes=(name,),
            parameter=", ".join(GUIDE[SpanClass(name)].varies) or "step cost",
            refuted_by=f"time and count of {GUIDE[SpanClass(name)].title} kernels at equal batch shapes: if the mean"
            " per kernel is the same, there were only more or fewer of them",
            turn=Turn(class_factors={name: ratio}),
        )
        for name, ratio in found.class_ratios.items()
        if name != UNKNOWN
        and ratio > 0.0
        and abs(math.log(ratio)) >= math.log1p(found.floor_ratio)
        and found.class_shares.get(name, 0.0) >= LEAST_SHARE_RATIO
    ]


def kv_transfer(found: Differences) -> list[Guess]:
    """KV takes another time from prefill to decode engines."""
    ratio = found.load_ratio
    if ratio is None or abs(math.log(ratio)) < math.log1p(found.floor_ratio):
        return []
    return [
        Guess(
            code="kv_link",
            statement=f"KV takes {ratio:.2f} times as long from prefill to decode engines",
            span_classes=(SpanClass.COPY,),
            parameter="kv_link",
            refuted_by="bytes and time of KV loads by prompt length on both sides: if the time per token is the same,"
            " it was not the link",
            turn=Turn(link_factor=ratio),
        )
    ]


RULES: tuple[Rule, ...] = (prefix_reuse, engine_settings, load, machine, role_costs, kv_transfer, measured_classes)
