"""Two sides of the command line into a chain: recordings with or without kernel traces, or kernel traces alone.

Law: everything is read and checked before the first simulation.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec

from pipelines.errors import ConfigError
from pipelines.evidence.evidence_sources import (
    ReadWindow,
    costs_of,
    fitted,
    is_trace,
    profile_of_steps,
    read_profiles,
    read_rules,
    read_window,
)
from schemas.evidence import Evidence
from schemas.slos import SloTarget
from twin.cost.span_rules import SpanRules
from twin.engine.cluster_types import KvLink
from twin.evidence.chain import Comparison, chain
from twin.evidence.figures import FigureCase, chain_of_figures
from twin.evidence.measure import BLOCK_S, NOISE_FLOOR_RATIO, Judging
from twin.evidence.profile import KernelProfile, kernel_classes, kernel_facts

TRACES_ONLY = "only kernel traces were given: they hold no requests and no queue to simulate with"
TRACE_EPOCH_US = 1_700_000_000_000_000
"""Event time of a chain of traces that tell none."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line or a case asks for. Windows are `FROM:TO` texts in seconds."""

    base: Path
    candidate: Path
    title: str = ""
    deployment: str | None = None
    base_window: str | None = None
    candidate_window: str | None = None
    base_traces: tuple[Path, ...] = ()
    candidate_traces: tuple[Path, ...] = ()
    base_repeats: tuple[Path, ...] = ()
    candidate_repeats: tuple[Path, ...] = ()
    rules: Path | None = None
    limits: tuple[SloTarget, ...] = ()
    block_s: float = BLOCK_S
    noise_floor_ratio: float = NOISE_FLOOR_RATIO
    link: KvLink | None = None
    seed: int = 0


def windows_chain(asked: Asked, progress: Callable[[float], None] = lambda _: None) -> Evidence:
    """The chain of two sides. Raises ConfigError."""
    judging = _judging(asked)
    rules = read_rules(asked.rules)
    for path in (asked.base, asked.candidate, *asked.base_repeats, *asked.candidate_repeats):
        if not path.exists():
            raise ConfigError(f"{path} is missing; expected a recording or a trace there, check the path")
    _require_runs(asked)
    traces = [is_trace(path) for path in (asked.base, asked.candidate)]
    if all(traces):
        return _traces_chain(asked, rules)
    if any(traces):
        raise ConfigError(
            f"of {asked.base} and {asked.candidate} one is a kernel trace; compare two of a kind, or add traces with"
            " --base-trace and --candidate-trace"
        )
    sides = [
        _with_repeats(asked, path, bounds, repeats)
        for path, bounds, repeats in (
            (asked.base, asked.base_window, asked.base_repeats),
            (asked.candidate, asked.candidate_window, asked.candidate_repeats),
        )
    ]
    profiles, notes = _profiles(asked, rules)
    if profiles == (None, None):
        profiles = profile_of_steps(sides[0].window), profile_of_steps(sides[1].window)
    progress(0.3)
    return _chain(asked, sides, profiles, (*notes, *_unlike(sides)), rules.version, judging)


def _judging(asked: Asked) -> Judging:
    try:
        return Judging(asked.block_s, asked.noise_floor_ratio, asked.seed)
    except ValueError as error:
        raise ConfigError(f"{error}; correct --block or --noise-floor") from error


def _chain(
    asked: Asked,
    sides: list[ReadWindow],
    profiles: tuple[KernelProfile | None, KernelProfile | None],
    notes: tuple[str, ...],
    rules_version: str,
    judging: Judging,
) -> Evidence:
    base, candidate = sides
    most = max((config.max_num_seqs for side in sides for config in side.window.configs), default=0)
    costs, why_not = costs_of(base, most)
    try:
        return chain(
            Comparison(
                base=base.window,
                candidate=candidate.window,
                costs=None if costs is None else fitted(costs),
                step_costs={} if costs is None else {name: each.cost for name, each in costs.learned.items()},
                base_profile=profiles[0],
                candidate_profile=profiles[1],
                limits=asked.limits,
                judging=judging,
                link=asked.link,
                title=asked.title,
                rules_version=rules_version,
                why_not=why_not,
                notes=notes,
            )
        )
    except ValueError as error:
        raise ConfigError(f"{base.window.source} against {candidate.window.source}: {error}; correct it") from error


def _require_runs(asked: Asked) -> None:
    """Raise ConfigError for a repeat that is the same recording again: it would be counted as a run of its own."""
    known: dict[bytes, Path] = {}
    for path in (asked.base, asked.candidate):
        if path.is_dir():
            known.setdefault(_digest(path), path)
    for path in (*asked.base_repeats, *asked.candidate_repeats):
        digest = _digest(path) if path.is_dir() else b""
        if digest in known:
            raise ConfigError(f"{path} holds the records of {known[digest]}, so it is no repeat; record another run")
        if digest:
            known[digest] = path


def _digest(folder: Path) -> bytes:
    """Of a recording's records; of the place of a folder that holds something else."""
    files = sorted(folder.glob("*.jsonl.gz"))
    digest = sha256(b"" if files else str(folder.resolve()).encode())
    for file in files:
        digest.update(file.name.encode() + sha256(file.read_bytes()).digest())
    return digest.digest()


def _with_repeats(asked: Asked, path: Path, bounds: str | None, repeats: tuple[Path, ...]) -> ReadWindow:
    read = read_window(path, bounds, asked.deployment)
    again = tuple(read_window(each, bounds, asked.deployment).window for each in repeats)
    return replace(read, window=replace(read.window, repeats=again))


def _profiles(
    asked: Asked, rules: SpanRules
) -> tuple[tuple[KernelProfile | None, KernelProfile | None], tuple[str, ...]]:
    """Profiles of both sides; a side without any leaves the kernel level out."""
    base, base_notes = read_profiles(asked.base_traces, rules)
    candidate, candidate_notes = read_profiles(asked.candidate_traces, rules)
    notes = [*base_notes, *candidate_notes]
    if (base is None) != (candidate is None):
        side = "candidate" if candidate is None else "base"
        notes.append(f"the {side} has no kernels to compare with: the kernel level is left out")
    return (base, candidate), tuple(notes)


def _unlike(sides: list[ReadWindow]) -> tuple[str, ...]:
    """What makes two sides hard to compare, in words."""
    found = []
    configs = [side.window.configs for side in sides]
    if len(configs[0]) != len(configs[1]):
        found.append(f"the sides have {len(configs[0])} and {len(configs[1])} engines: settings are compared in order")
    prints = [tuple(msgspec.structs.replace(config.fingerprint, flags=()) for config in own) for own in configs]
    if all(prints) and prints[0] != prints[1]:
        found.append("the sides ran on different devices, images or models (fingerprints differ)")
    for side in sides:
        if not side.window.working_steps:
            found.append(f"{side.window.source} tells no engine steps: the engine level is left out")
    return tuple(found)


def _traces_chain(asked: Asked, rules: SpanRules) -> Evidence:
    """Kernel level alone."""
    sides = [
        read_profiles((asked.base, *asked.base_traces), rules),
        read_profiles((asked.candidate, *asked.candidate_traces), rules),
    ]
    base, candidate = sides[0][0], sides[1][0]
    if base is None or candidate is None:
        raise ConfigError(" and ".join(note for _, notes in sides for note in notes) + "; give traces with kernels")
    return chain_of_figures(
        FigureCase(
            title=asked.title or f"{base.source} against {candidate.source}",
            deployment=asked.deployment or "profile",
            at_us=TRACE_EPOCH_US,
            base=base.source,
            candidate=candidate.source,
            facts=kernel_facts(base, candidate),
            classes=kernel_classes(base, candidate),
            boundaries=(base.boundary("base"), candidate.boundary("candidate")),
            notes=tuple(note for _, notes in sides for note in notes),
            why_not=TRACES_ONLY,
        ),
        rules.version,
    )
