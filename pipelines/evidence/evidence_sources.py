"""Recordings, traces and rule files into what a chain is made of. Compares and judges nothing.

Laws: what one part lacks is a stated limit where the rest can still be made, and a `ConfigError` where it cannot; a
window asks for requests of its own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from pipelines.errors import ConfigError
from pipelines.ingest.kernel_trace import Profile, read_profile
from pipelines.ingest.lines import read_all
from pipelines.simulation_costs import Costs, learned_costs
from pipelines.toml_tables import Document
from pipelines.traffic_source import TrafficSource, read_source
from twin.cost.span_rules import RULES_VERSION, SpanRule, SpanRules
from twin.cost.taxonomy import SpanClass
from twin.evidence.class_guide import UNKNOWN
from twin.evidence.profile import ClassTime, KernelProfile
from twin.evidence.twin_runs import FittedCosts
from twin.evidence.window import Window, cut
from twin.known.effects import class_shares

HEAD_BYTES = 1_000_000
US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class ReadWindow:
    """A window and the source it was cut from."""

    window: Window
    source: TrafficSource


def is_trace(path: Path) -> bool:
    """Whether a file looks like a Chrome trace: by its name for events, or as a list of events with a phase each.

    Raises ConfigError if it cannot be read.
    """
    if not path.is_file():
        return False
    head = read_all(path)[:HEAD_BYTES]
    return b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head)


def read_window(path: Path, bounds: str | None = None, deployment: str | None = None) -> ReadWindow:
    """A recording, or the part between `FROM:TO` seconds from its start. Raises ConfigError."""
    source = read_source([path], deployment=deployment)
    requests = source.requests
    last_us = [rows[-1].at_us for rows in source.steps.values() if rows]
    ends_s = requests.last_s[np.isfinite(requests.last_s)]
    end_s = max(*requests.arrived_s[-1:], *ends_s, *((us - requests.t0_us) / 1e6 for us in last_us), 0.0)
    whole = Window(
        source=source.name,
        deployment=source.deployment,
        from_s=0.0,
        to_s=float(end_s) + 1e-6,
        requests=source.requests,
        members=np.ones(len(source.requests), np.bool_),
        steps=source.steps,
        finished=source.finished,
        configs=source.engines,
        overheads=source.overheads,
    )
    if bounds is None:
        return ReadWindow(whole, source)
    try:
        return ReadWindow(cut(whole, *parse_bounds(bounds)), source)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; give another window") from error


def parse_bounds(text: str) -> tuple[float, float]:
    """`FROM:TO` in seconds. Raises ConfigError.

    >>> parse_bounds("0:180")
    (0.0, 180.0)
    """
    try:
        low, high = (float(word) for word in text.split(":"))
    except ValueError:
        raise ConfigError(f"a window must be FROM:TO in seconds such as 0:180, got {text!r}; correct it") from None
    return low, high


def costs_of(read: ReadWindow, most_seqs: int) -> tuple[Costs | None, str]:
    """Step costs that the window teaches, or why there are none."""
    window, source = read.window, read.source
    if not source.engines:
        return None, f"{source.name} does not tell how its engines are set, so nothing was simulated"
    own = replace(source, name=window.source, steps=dict(window.steps), finished=window.finished)
    if not any(window.steps.values()):
        own = replace(own, steps={})
    try:
        return learned_costs(own, window.configs, most_seqs), ""
    except ConfigError as error:
        return None, f"{window.source} teaches no step costs ({error}), so nothing was simulated"


def fitted(costs: Costs) -> FittedCosts:
    """The same for a chain."""
    steps = [step for rows in costs.steps.values() for step in rows]
    return FittedCosts(costs.cost_of, costs.noise, costs.about, class_shares(steps))


MOST_TWICE = 0.25
"""Share of kernel time counted twice from which a trace says nothing of its kernels."""


def read_profiles(paths: Sequence[Path], rules: SpanRules) -> tuple[KernelProfile | None, tuple[str, ...]]:
    """All traces of one side together, and what they lack; None where none holds a kernel. Raises ConfigError."""
    profiles = [(path, read_profile(path, rules)) for path in paths]
    notes = [note for path, profile in profiles for note in trace_notes(path, profile)]
    used = [
        (path, profile) for path, profile in profiles if profile.device_events and _twice_ratio(profile) <= MOST_TWICE
    ]
    if not used:
        return None, tuple(notes)
    times: Counter[str] = Counter()
    events: Counter[str] = Counter()
    for _, profile in used:
        times.update(profile.class_us)
        events.update(profile.class_events)
    return (
        KernelProfile(
            source=", ".join(path.name for path, _ in used),
            classes={name: ClassTime(times[name] / US_PER_MS, events[name]) for name in sorted(times)},
            window_ms=sum(profile.window_us for _, profile in used) / US_PER_MS,
            busy_ms=sum(profile.busy_us for _, profile in used) / US_PER_MS,
            steps=sum(len(profile.steps) for _, profile in used),
            rules_version=rules.version,
            traces=len(used),
        ),
        tuple(notes),
    )


def profile_of_steps(window: Window) -> KernelProfile | None:
    """Class times that the steps themselves carry, where a live profile put them there; None where none do."""
    told = [step for step in window.working_steps if step.class_us]
    if not told:
        return None
    times: Counter[str] = Counter()
    for step in told:
        times.update(step.class_us)
    known = {name: name if name in set(SpanClass) else UNKNOWN for name in times}
    classes: dict[str, ClassTime] = {}
    for name, total_us in sorted(times.items()):
        count = sum(name in step.class_us for step in told)
        before = classes.get(known[name], ClassTime(0.0, 0))
        classes[known[name]] = ClassTime(before.total_ms + total_us / US_PER_MS, before.count + count)
    return KernelProfile(
        source=f"{window.source}, class times of its steps",
        classes=classes,
        window_ms=window.span_s * 1e3,
        busy_ms=sum(step.duration_us for step in told) / US_PER_MS,
        steps=len(told),
        rules_version="as told",
        traces=1,
    )


def _twice_ratio(profile: Profile) -> float:
    """Share of kernel time that an earlier kernel of the same stream covers already."""
    return profile.overlap_us / profile.total_us if profile.total_us else 0.0


def trace_notes(path: Path, profile: Profile) -> tuple[str, ...]:
    """What a trace lacks, in words that say what follows from it."""
    found = []
    if profile.damaged_events:
        found.append(f"{path.name}: {profile.damaged_events} kernels have times that cannot be and were left out")
    if not profile.device_events:
        found.append(f"{path.name} holds no kernels (recorded without CUDA or HIP activity?): it adds no kernel level")
        return tuple(found)
    if not profile.has_time_base:
        found.append(
            f"{path.name} has no time base: its kernels cannot be placed beside requests and steps, their durations can"
            " be summed"
        )
    if profile.overlapping_events:
        twice = _twice_ratio(profile)
        void = ", which is too much: it adds no kernel level" if twice > MOST_TWICE else ""
        found.append(
            f"{path.name}: {profile.overlapping_events} kernels began before an earlier one of their stream had ended,"
            f" so {twice * 100:.1f} % of kernel time is counted twice{void}; was it merged from several ranks?"
        )
    if profile.unknown_ratio:
        names = ", ".join(list(profile.unknown_names)[:3])
        found.append(f"{path.name}: {profile.unknown_ratio * 100:.1f} % of kernel time is of unknown names ({names})")
    return tuple(found)


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"span_class": "class"}):
    pattern: str
    span_class: SpanClass


class _RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    rule: list[_Rule]


def read_rules(path: Path | None) -> SpanRules:
    """The table of the project, or with rules of a file in front. Raises ConfigError.

    ```toml
    version = "ours-3"
    [[rule]]
    pattern = "my_own_kernel"
    class = "compute"
    ```
    """
    if path is None:
        return SpanRules()
    content = Document.read(path, required=True).rest
    try:
        file = msgspec.convert(content, _RuleFile)
        own = [SpanRule(rule.pattern, rule.span_class) for rule in file.rule]
        return SpanRules().with_rules(own, f"{file.version} before {RULES_VERSION}")
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; correct the rule") from error
