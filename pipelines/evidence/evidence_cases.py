"""Case files (TOML) into chains: two windows, published figures, or a limit tightened on named hardware.

Paths in a case count from the case's own folder. Law: a file ends as a chain or as one `ConfigError` that names file
and field, before anything is simulated.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from pipelines.errors import ConfigError
from pipelines.evidence.evidence_windows import Asked, windows_chain
from pipelines.grid_arguments import MOST_POINTS
from pipelines.hardware_costs import HardwareCosts, read_hardware_costs
from pipelines.settings import parse_slo
from pipelines.toml_tables import Document
from schemas.engines import EngineConfig
from schemas.evidence import ClassChange, Evidence, EvidenceLevel, Fact
from schemas.requests import RequestFinished
from twin.cost.prior import kv_capacity_tokens
from twin.cost.shape import StepShape
from twin.cost.span_rules import RULES_VERSION
from twin.cost.taxonomy import SpanClass
from twin.evidence.figures import FigureCase, chain_of_figures
from twin.evidence.limit_case import LimitCase, chain_of_limits, decode_class_ms
from twin.hardware.presets import ASSUMED
from twin.known.points import Point, run_point
from twin.known.requests import KnownRequests, known_requests
from twin.known.variants import Base, build

Progress = Callable[[float], None]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class _Pair(_Strict, frozen=True, kw_only=True):
    base: Any
    candidate: Any


class _Figure(_Strict, frozen=True, kw_only=True):
    level: EvidenceLevel
    name: str
    unit: Literal["s", "ms", "us", "1/s", "tokens/s", "tokens"]
    base: float
    candidate: float
    statistic: str = "mean"
    parent: str = ""


class _ClassFigure(_Strict, frozen=True, kw_only=True):
    span_class: SpanClass
    base_ms: float
    candidate_ms: float
    base_count: int | None = None
    candidate_count: int | None = None


class _FiguresFile(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="figures"):
    title: str
    deployment: str
    at: datetime
    base: str
    candidate: str
    source: str = ""
    tried: str = ""
    repeats: int = 1
    told: list[str] = []
    settings: dict[str, _Pair] = {}
    figure: list[_Figure] = []
    span_class: list[_ClassFigure] = []


class _WindowsFile(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="windows"):
    title: str = ""
    base: str
    candidate: str
    base_window: str | None = None
    candidate_window: str | None = None
    base_traces: list[str] = []
    candidate_traces: list[str] = []
    base_repeats: list[str] = []
    candidate_repeats: list[str] = []
    limits: list[str] = []


class _Traffic(_Strict, frozen=True, kw_only=True):
    """Poisson arrivals; lengths lognormal with this mean and coefficient of variation."""

    requests: int
    rate_per_s: float
    mean_isl_tokens: float
    isl_cv: float = 0.5
    mean_osl_tokens: float
    osl_cv: float = 0.5
    seed: int = 1


class _LimitFile(_Strict, frozen=True, kw_only=True, tag_field="kind", tag="limit"):
    title: str
    deployment: str
    at: datetime
    hardware: str
    model: str
    loose: str
    tight: str
    engine: dict[str, Any]
    traffic: _Traffic
    grid: dict[str, list[Any]]
    assumptions: list[str] = []


_Case = _FiguresFile | _WindowsFile | _LimitFile


def chain_of_case(path: Path, asked: Asked, progress: Progress = lambda _: None) -> Evidence:
    """The chain of a case file; `asked` holds what the command line adds. Raises ConfigError."""
    content = Document.read(path, required=True).rest
    try:
        case = msgspec.convert(content, _Case)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}; correct the case") from error
    try:
        if isinstance(case, _FiguresFile):
            return chain_of_figures(_figures(case), str(RULES_VERSION))
        if isinstance(case, _LimitFile):
            return chain_of_limits(_limit(case, path.parent, progress))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; correct the case") from error
    return windows_chain(_windows(case, path.parent, asked), progress)


def _windows(case: _WindowsFile, folder: Path, asked: Asked) -> Asked:
    def paths(names: list[str]) -> tuple[Path, ...]:
        return tuple(folder / name for name in names)

    return msgspec.structs.replace(
        asked,
        title=case.title,
        base=folder / case.base,
        candidate=folder / case.candidate,
        base_window=case.base_window or asked.base_window,
        candidate_window=case.candidate_window or asked.candidate_window,
        base_traces=(*paths(case.base_traces), *asked.base_traces),
        candidate_traces=(*paths(case.candidate_traces), *asked.candidate_traces),
        base_repeats=(*paths(case.base_repeats), *asked.base_repeats),
        candidate_repeats=(*paths(case.candidate_repeats), *asked.candidate_repeats),
        limits=(*(parse_slo(text) for text in case.limits), *asked.limits),
    )


def _figures(case: _FiguresFile) -> FigureCase:
    _require_figures(case)
    return FigureCase(
        title=case.title,
        deployment=case.deployment,
        at_us=round(case.at.timestamp() * 1e6),
        base=case.base,
        candidate=case.candidate,
        facts=tuple(_fact(row) for row in case.figure),
        classes=tuple(_class(row) for row in case.span_class),
        settings={name: (pair.base, pair.candidate) for name, pair in case.settings.items()},
        tried=case.tried,
        repeats=case.repeats,
        told=frozenset(case.told),
        notes=(f"source: {case.source}",) if case.source else (),
    )


def _require_figures(case: _FiguresFile) -> None:
    """Raise ValueError for figures that cannot have been measured, or cannot be told apart."""
    for row in case.figure:
        for side, value in (("base", row.base), ("candidate", row.candidate)):
            if not (math.isfinite(value) and value > 0.0):
                raise ValueError(f"figure {row.name!r}: {side} must be finite and > 0, got {value}")
    for each in case.span_class:
        for side, value in (("base_ms", each.base_ms), ("candidate_ms", each.candidate_ms)):
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"span_class {each.span_class!r}: {side} must be finite and >= 0, got {value}")
    names = Counter((row.name, row.statistic) for row in case.figure)
    for (name, statistic), count in names.items():
        if count > 1:
            raise ValueError(f"figure {name!r} ({statistic}) is given {count} times; leave one")
    for name, pair in case.settings.items():
        if pair.base == pair.candidate:
            raise ValueError(f"setting {name!r} is {pair.base!r} on both sides; leave it out or correct it")
    parents = {row.name: row.parent for row in case.figure}
    for row in case.figure:
        above, seen = row.parent, {row.name}
        while above:
            if above not in parents:
                raise ValueError(f"figure {row.name!r}: parent {above!r} is no figure here; add it or leave parent out")
            if above in seen:
                raise ValueError(f"figure {row.name!r} is its own parent by way of {above!r}; correct parent")
            seen.add(above)
            above = parents[above]


def _fact(row: _Figure) -> Fact:
    return Fact(
        level=row.level,
        name=row.name,
        unit=row.unit,
        base=row.base,
        candidate=row.candidate,
        change_ratio=row.candidate / row.base - 1.0 if row.base else None,
        statistic=row.statistic,
        parent=row.parent,
        origin="published",
    )


def _class(row: _ClassFigure) -> ClassChange:
    return ClassChange(
        span_class=row.span_class,
        level="kernel",
        unit="ms",
        base=row.base_ms,
        candidate=row.candidate_ms,
        base_count=row.base_count,
        candidate_count=row.candidate_count,
        origin="published",
    )


def _limit(case: _LimitFile, folder: Path, progress: Progress) -> LimitCase:
    loose, tight = parse_slo(case.loose), parse_slo(case.tight)
    if len(case.grid) != 1:
        raise ConfigError(
            f"a limit case varies one field of the engine, got {', '.join(case.grid) or 'none'}; leave one"
        )
    ((name, values),) = case.grid.items()
    if not 2 <= len(values) <= MOST_POINTS:
        raise ConfigError(f"grid {name} must have 2 to {MOST_POINTS} values, got {len(values)}; correct it")
    costs = read_hardware_costs(case.hardware, folder / case.model, None)
    at_us = round(case.at.timestamp() * 1e6)
    config = _engine(case, costs, at_us)
    requests = _requests(case, at_us)
    base = Base(configs=(config,), cost_of=costs.cost_of, requests=requests)
    points: list[Point] = []
    class_ms: list[Mapping[str, float]] = []
    for number, value in enumerate(values):
        variant = build(base, {name: value})
        points.append(run_point(variant, (loose, tight)))
        class_ms.append(_class_ms(costs, variant.engines[0].config, requests))
        progress((number + 1) / len(values))
    return LimitCase(
        title=case.title,
        deployment=case.deployment,
        at_us=at_us,
        points=tuple(points),
        class_ms=tuple(class_ms),
        loose=loose,
        tight=tight,
        assumptions=(*case.assumptions, *_sources(costs)),
    )


def _engine(case: _LimitFile, costs: HardwareCosts, at_us: int) -> EngineConfig:
    fields = {"kv_blocks": 1, **case.engine}
    plain = {"deployment": case.deployment, "engine": "0", "at_us": at_us, "record": "engine", **fields}
    try:
        config = msgspec.convert(plain, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"[engine] {error}; correct it") from error
    if "kv_blocks" in case.engine:
        return config
    blocks = kv_capacity_tokens(costs.graph_of(config), costs.hardware) // config.block_size_tokens
    return msgspec.structs.replace(config, kv_blocks=blocks)


def _requests(case: _LimitFile, at_us: int) -> KnownRequests:
    traffic = case.traffic
    if not (1 <= traffic.requests <= 100_000 and traffic.rate_per_s > 0.0):
        raise ConfigError("[traffic] needs 1 to 100000 requests and a rate_per_s > 0; correct it")
    if min(traffic.mean_isl_tokens, traffic.mean_osl_tokens) < 1.0 or min(traffic.isl_cv, traffic.osl_cv) < 0.0:
        raise ConfigError("[traffic] needs mean lengths of 1 token or more and variations of 0 or more; correct it")
    rng = np.random.default_rng(traffic.seed)
    at_s = np.cumsum(rng.exponential(1.0 / traffic.rate_per_s, traffic.requests))
    isl, osl = (
        _lengths(rng, mean, cv, traffic.requests)
        for mean, cv in ((traffic.mean_isl_tokens, traffic.isl_cv), (traffic.mean_osl_tokens, traffic.osl_cv))
    )
    return known_requests(
        (
            RequestFinished(
                deployment=case.deployment,
                request_id=f"r{number}",
                at_us=at_us + round(float(at_s[number]) * 1e6),
                arrived_us=at_us + round(float(at_s[number]) * 1e6),
                isl_tokens=int(isl[number]),
                osl_tokens=int(osl[number]),
                timed=False,
            )
            for number in range(traffic.requests)
        ),
        at_us,
    )


def _lengths(rng: np.random.Generator, mean: float, cv: float, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    sigma = np.sqrt(np.log1p(cv * cv))
    drawn = rng.lognormal(np.log(mean) - sigma * sigma / 2.0, sigma, count)
    return np.clip(np.rint(drawn), 1, None).astype(np.int64)


def _class_ms(costs: HardwareCosts, config: EngineConfig, requests: KnownRequests) -> Mapping[str, float]:
    """Of a decode step with a full batch, each sequence half way through its output."""
    context = float(np.mean(requests.isl_tokens + requests.osl_tokens / 2.0))
    shape = StepShape(decode_requests=config.max_num_seqs, decode_context_tokens=round(config.max_num_seqs * context))
    return decode_class_ms(costs.graph_of(config), costs.operators_of(config), shape)


def _sources(costs: HardwareCosts) -> tuple[str, ...]:
    """Every number of the hardware with its source; what no vendor states is marked assumed."""
    hardware = costs.hardware
    found = [f"step costs {costs.about}"]
    for name, source in sorted(hardware.sources.items()):
        mark = "" if source.startswith(ASSUMED) else "sourced: "
        found.append(f"{hardware.name} {name} = {_number(hardware, name)} ({mark}{source})")
    return tuple(found)


def _number(hardware: Any, name: str) -> str:
    part, _, field = name.partition(".")
    owner = getattr(hardware, part, None)
    if owner is None:
        owner = next((link for link in hardware.links if link.name == part), None)
    value = getattr(owner, field, "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
