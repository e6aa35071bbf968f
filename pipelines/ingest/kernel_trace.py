"""Traces of torch's profiler (Chrome JSON): device work per engine step, by span class. Learns nothing.

A step is an annotation of vLLM (`execute_<tokens>_context_<n>(sq..sk..)_generation_<n>(..)`) or SGLang
(`step[DECODE bs=8]`, `step[EXTEND bs=2 toks=512]`); other profiler steps are kept too, without a shape. Annotations
lie on the host's time line and the device runs later, so work belongs to the step whose host span launched it (by
correlation id), and only where the trace has no correlation to the step whose time it lies in.
Times are microseconds relative to `baseTimeNanoseconds`.

Laws: every device event is in one step or counted as outside; class durations of a step sum to its device time.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipelines.errors import ConfigError
from pipelines.ingest.lines import read_all
from twin.cost.shape import StepShape
from twin.cost.span_rules import SpanRules
from twin.cost.taxonomy import SpanClass

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime")
ANNOTATIONS = ("user_annotation", "gpu_user_annotation")
UNKNOWN = "unknown"
FURTHEST_US = 1e16  # microseconds from the base, three hundred years
MOST_US = 7 * 24 * 3600e6
"""Events that last longer, or less than nothing, are damaged."""
CLOCK_TICK_US = 1.0
"""Stamps of a device are rounded: events that overlap by less do not."""

_SUMS = r"\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
_VLLM_STEP = re.compile(rf"execute_(\d+)_context_(\d+){_SUMS}_generation_(\d+){_SUMS}")
_VLLM_SHORT = re.compile(r"execute_(?:new_(\d+)_cached_(\d+)|context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\))")
_SGLANG_STEP = re.compile(r"step\[(DECODE|EXTEND|MIXED|PREFILL)\s+bs=(\d+)(?:\s+toks=(\d+))?[^\]]*\]")
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")


class _Event(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    pid: msgspec.Raw = msgspec.Raw(b"")
    tid: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, msgspec.Raw] = {}


class _Trace(msgspec.Struct, frozen=True, rename="camel"):
    trace_events: list[_Event]
    base_time_nanoseconds: int | None = None


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """Device work of one step. `shape` is None where the annotation tells none; `duration_us` from the first event's
    start to the last one's end; `class_us` sums device time per class, `host_us` launch and sync time on the host."""

    name: str
    start_us: int
    duration_us: int
    shape: StepShape | None
    prefill_context_tokens: int
    class_us: dict[str, float]
    host_us: dict[str, float]
    events: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A trace: its steps in order, device events outside of any, and the time of names no rule knows.

    `class_us` and `class_events` are of the whole trace. `busy_us` is time with at least one event on the device,
    `window_us` from the first event's start to the last one's end. Events of one stream cannot overlap; where they do,
    `overlapping_events` began before an earlier one of their stream had ended, by `overlap_us` in all. Damaged events
    on the device, whose times cannot be, are left out. Without a time base times count from an unknown start.
    """

    steps: tuple[ProfiledStep, ...]
    device_events: int
    outside_events: int
    outside_class_us: dict[str, float]
    unknown_names: dict[str, float]
    rules_version: str
    class_us: dict[str, float]
    class_events: dict[str, int]
    window_us: float
    busy_us: float
    overlapping_events: int
    overlap_us: float
    damaged_events: int
    has_time_base: bool

    @property
    def total_us(self) -> float:
        """Time of all device events."""
        return sum(self.class_us.values())

    @property
    def unknown_ratio(self) -> float:
        """Share of that time whose names no rule knows; 0 without any."""
        return self.class_us.get(UNKNOWN, 0.0) / self.total_us if self.total_us else 0.0


@dataclass(slots=True)
class _Window:
    name: str
    start: float
    end: float
    device: list[_Event] = field(default_factory=list)
    host: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def read_profile(path: Path, rules: SpanRules | None = None) -> Profile:
    """Steps of a trace file, gzipped or not. Raises ConfigError if it is no such trace."""
    try:
        trace = _decoded(read_all(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no Chrome trace ({error}); expected an object with traceEvents") from error
    return profile_of(trace.trace_events, trace.base_time_nanoseconds, rules or SpanRules())


def _decoded(data: bytes) -> _Trace:
    """Both forms of Chrome's format: an object with `traceEvents`, and the events alone."""
    if data.lstrip()[:1] == b"[":
        events = msgspec.json.decode(data, type=list[_Event])
        if not events:
            raise msgspec.ValidationError("a list of no events")
        return _Trace(trace_events=events)
    return msgspec.json.decode(data, type=_Trace)


def profile_of(events: Sequence[_Event], base_ns: int | None, rules: SpanRules) -> Profile:
    """Steps of a trace's events; `base_ns` is added to all times (None: the trace does not tell)."""
    lasting = [event for event in events if event.ph == "X" and event.dur is not None]
    complete = [event for event in lasting if 0.0 <= (event.dur or 0.0) <= MOST_US and abs(event.ts) < FURTHEST_US]
    device = [event for event in complete if event.cat in DEVICE_CATEGORIES]
    host = [event for event in complete if event.cat in HOST_CATEGORIES]
    windows = _windows(complete)
    outside = _assign(device, host, windows, rules)
    unknown: Counter[str] = Counter()
    steps = tuple(_step(window, base_ns or 0, rules, unknown) for window in windows if window.device)
    found = Counter(_class_of(event, rules) for event in device)
    placed = len(device) < 2 or len({event.ts for event in device}) > 1  # without stamps all begin at 0
    overlapping = _overlaps(device) if placed else []
    return Profile(
        steps=steps,
        device_events=len(device),
        outside_events=len(outside),
        outside_class_us=_class_us(outside, rules, unknown),
        unknown_names=dict(unknown.most_common(50)),
        rules_version=rules.version,
        class_us=_class_us(device, rules, Counter()),
        class_events=dict(sorted(found.items())),
        window_us=_span_us(device),
        busy_us=_busy_us(device),
        overlapping_events=len(overlapping),
        overlap_us=sum(overlapping),
        damaged_events=sum(event.cat in DEVICE_CATEGORIES for event in lasting) - len(device),
        has_time_base=base_ns is not None and placed,
    )


def shape_of(name: str) -> tuple[StepShape | None, int]:
    """What an annotation says was scheduled, and the context tokens of its prefills.

    `sq` sums query tokens, `sk` key tokens, `sqsq` and `sqsk` their products per request, so the attention pairs of
    prefills are exact: sum of q * (k - q) + q * (q + 1) / 2.

    >>> shape_of("execute_12_context_1(sq10sk30sqsq100sqsk300)_generation_2(sq2sk90sqsq2sqsk90)")[0]
    ... # doctest: +ELLIPSIS
    StepShape(prefill_requests=1, prefill_tokens=10, prefill_attention_pairs=255, decode_requests=2, ...)
    """
    if match := _VLLM_STEP.fullmatch(name):
        _, prefills, sq, sk, sqsq, sqsk, decodes, _, context, _, _ = map(int, match.groups())
        pairs = sqsk - sqsq + (sqsq + sq) // 2
        shape = StepShape(prefills, sq, pairs, decodes, context)
        return shape, sk - sq
    return None, 0


def is_step(name: str) -> bool:
    """True for an annotation that marks one engine or profiler step."""
    return any(pattern.match(name) is not None for pattern in (_VLLM_STEP, _VLLM_SHORT, _SGLANG_STEP, _PROFILER_STEP))


def _windows(events: Iterable[_Event]) -> list[_Window]:
    """Step annotations on the host's line, in order; without any, those on the device's line."""
    marks = [event for event in events if event.cat in ANNOTATIONS and is_step(event.name)]
    chosen = [mark for mark in marks if mark.cat == "user_annotation"] or marks
    named = [mark for mark in chosen if not _PROFILER_STEP.match(mark.name)] or chosen
    ordered = sorted(named, key=lambda mark: mark.ts)
    return [_Window(mark.name, mark.ts, mark.ts + (mark.dur or 0.0)) for mark in ordered]


def _assign(device: list[_Event], host: list[_Event], windows: list[_Window], rules: SpanRules) -> list[_Event]:
    """Put device events into windows; returns those that belong to none."""
    starts = [window.start for window in windows]

    def window_at(moment: float) -> _Window | None:
        place = bisect_right(starts, moment) - 1
        return windows[place] if place >= 0 and moment <= windows[place].end else None

    launched: dict[bytes, _Window | None] = {}
    for call in host:
        window = window_at(call.ts)
        if b := call.args.get("correlation"):
            launched[bytes(b)] = window
        span_class = rules.classify(call.name)
        if window is not None and span_class in (SpanClass.LAUNCH, SpanClass.SYNC):
            window.host[span_class.value] += call.dur or 0.0
    outside: list[_Event] = []
    for event in device:
        key = event.args.get("correlation")
        known = key is not None and bytes(key) in launched
        window = launched[bytes(key)] if known and key is not None else window_at(event.ts)
        (outside if window is None else window.device).append(event)
    return outside


def _step(window: _Window, base_ns: int, rules: SpanRules, unknown: Counter[str]) -> ProfiledStep:
    start = min(event.ts for event in window.device)
    end = max(event.ts + (event.dur or 0.0) for event in window.device)
    shape, context_tokens = shape_of(window.name)
    return ProfiledStep(
        name=window.name,
        start_us=base_ns // 1000 + round(start),
        duration_us=round(end - start),
        shape=shape,
        prefill_context_tokens=context_tokens,
        class_us=_class_us(window.device, rules, unknown),
        host_us=dict(window.host),
        events=len(window.device),
    )


def _class_us(events: Iterable[_Event], rules: SpanRules, unknown: Counter[str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for event in events:
        found = _class_of(event, rules)
        if found == UNKNOWN:
            unknown[event.name[:120]] += round(event.dur or 0.0)
        sums[found] += event.dur or 0.0
    return dict(sorted(sums.items()))


def _class_of(event: _Event, rules: SpanRules) -> str:
    """The class of a device event: copies by what they are, kernels by their names."""
    found = SpanClass.COPY if event.cat != "kernel" else rules.classify(event.name)
    if found is None or found in (SpanClass.LAUNCH, SpanClass.SYNC):
        return UNKNOWN  # those are rules of the host's calls; no device event is one
    return found.value


def _span_us(device: Sequence[_Event]) -> float:
    return max((_end_us(event) for event in device), default=0.0) - min((event.ts for event in device), default=0.0)


def _busy_us(device: Sequence[_Event]) -> float:
    """Length of the union of all events."""
    busy, until = 0.0, float("-inf")
    for event in sorted(device, key=lambda event: event.ts):
        busy += max(_end_us(event) - max(event.ts, until), 0.0)
        until = max(until, _end_us(event))
    return busy


def _overlaps(device: Sequence[_Event]) -> list[float]:
    """By how much events began before an earlier one of their stream had ended, microseconds."""
    until: dict[tuple[bytes, bytes], float] = {}
    found = []
    for event in sorted(device, key=lambda event: event.ts):
        stream = bytes(event.pid), bytes(event.args.get("stream", event.tid))
        over = until.get(stream, float("-inf")) - event.ts
        if over > CLOCK_TICK_US:
            found.append(min(over, event.dur or 0.0))
        until[stream] = max(until.get(stream, float("-inf")), _end_us(event))
    return found


def _end_us(event: _Event) -> float:
    return event.ts + (event.dur or 0.0)
