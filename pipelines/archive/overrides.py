"""`--set key=value`: a replay under other settings, targets, thresholds or engines. Runs nothing.

What changes how the core works (its settings, targets, policy) changes the whole replay. What changes the service
itself (`engines`, `engine.<field>`) cannot change what was recorded: every forecast then begins in the recorded state
and asks what would follow with other engines from there on.

Laws: nothing set changes nothing; an unknown key is refused, with the nearest known one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.near_names import instead_of
from pipelines.settings import parse_slo
from schemas.base import EARLIEST_US
from schemas.engines import EngineConfig
from schemas.slos import SloTarget
from twin.job import SimulationJob
from twin.known.variants import CONFIG_FIELDS, MOST_ENGINES, with_fields
from twin.risk import RiskSettings
from twin.settings import CoreSettings
from twin.whatif import resized, with_config

SLO_KEY = "slo"
ENGINES_KEY = "engines"
ENGINE_PREFIX = "engine."
RISK_PREFIX = "risk."
_PLAIN = (bool, int, float, str)
_ANY_ENGINE = EngineConfig(
    deployment="any",
    engine="any",
    at_us=EARLIEST_US,
    block_size_tokens=16,
    kv_blocks=1_000,
    max_num_seqs=8,
    max_num_batched_tokens=2_048,
)


def _nested_names() -> tuple[str, ...]:
    """Settings that are groups of settings, such as a policy."""
    plain = CoreSettings()
    return tuple(item.name for item in fields(plain) if is_dataclass(getattr(plain, item.name)))


def known_keys() -> tuple[str, ...]:
    """Every key that `--set` takes."""
    plain = CoreSettings()
    own = [item.name for item in fields(plain) if isinstance(getattr(plain, item.name), _PLAIN)]
    nested = [
        f"{name}.{item.name}"
        for name in _nested_names()
        for item in fields(getattr(plain, name))
        if isinstance(getattr(getattr(plain, name), item.name), _PLAIN)
    ]
    risk = [f"{RISK_PREFIX}{item.name}" for item in fields(RiskSettings)]
    return (SLO_KEY, ENGINES_KEY, *own, *nested, *risk, *(f"{ENGINE_PREFIX}{name}" for name in CONFIG_FIELDS))


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What is set. `texts` are the assignments as given; the others what they mean."""

    texts: tuple[str, ...] = ()
    own: Mapping[str, Any] = field(default_factory=dict)
    nested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slos: tuple[SloTarget, ...] = ()
    engines: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    risk: RiskSettings | None = None

    @property
    def changes_engines(self) -> bool:
        """Whether forecasts are of other engines than those recorded."""
        return self.engines is not None or bool(self.config)

    def core(self, settings: CoreSettings) -> CoreSettings:
        """The settings with what is set. Raises ConfigError where they do not go together."""
        changes = dict(self.own)
        if self.slos:
            changes["slos"] = self.slos
        try:
            for name, values in self.nested.items():
                changes[name] = replace(getattr(settings, name), **values)
            return replace(settings, **changes)
        except ValueError as error:
            raise ConfigError(f"--set {' '.join(self.texts)}: {error}; correct it") from error

    def job(self, job: SimulationJob) -> SimulationJob:
        """The job with the engines that are set; the job itself where none are."""
        if not self.changes_engines:
            return job
        if self.engines is not None:
            job = replace(job, engines=resized(job.engines, self.engines - len(job.engines), 0.0))
        return with_config(job, **self.config) if self.config else job


def parse_overrides(texts: Iterable[str]) -> Overrides:
    """What assignments mean. Raises ConfigError for an unknown key, a value that does not fit, or a key set twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, found, value = text.partition("=")
        key = key.strip()
        if not found or not value.strip():
            raise ConfigError(f"--set needs key=value, got {text!r}; write one such as slo=ttft_s:0.95:0.5")
        if key not in known_keys():
            raise ConfigError(f"--set {key} is unknown; {instead_of(key, known_keys())}")
        if key in pairs:
            raise ConfigError(f"--set {key} is given twice; give it once")
        pairs[key] = value.strip()
    found_overrides = Overrides(
        texts=tuple(f"{key}={value}" for key, value in pairs.items()),
        own={key: _convert(key, text, getattr(CoreSettings(), key)) for key, text in pairs.items() if _is_own(key)},
        nested={name: _group(name, pairs) for name in _nested_names() if _group(name, pairs)},
        slos=tuple(parse_slo(each) for each in pairs[SLO_KEY].split(",")) if SLO_KEY in pairs else (),
        engines=_engines(pairs.get(ENGINES_KEY)),
        config=_config(pairs),
        risk=_risk(pairs),
    )
    found_overrides.core(CoreSettings())
    return found_overrides


def _is_own(key: str) -> bool:
    return key not in (SLO_KEY, ENGINES_KEY) and "." not in key


def _group(name: str, pairs: Mapping[str, str]) -> dict[str, Any]:
    base = getattr(CoreSettings(), name)
    found = {key.removeprefix(f"{name}."): text for key, text in pairs.items() if key.startswith(f"{name}.")}
    return {key: _convert(f"{name}.{key}", text, getattr(base, key)) for key, text in found.items()}


def _convert(key: str, text: str, like: Any) -> Any:
    try:
        return msgspec.convert(text, type(like), strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--set {key}={text}: {error}; write it like {like}") from error


def _engines(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MOST_ENGINES:
        raise ConfigError(f"--set engines must be a whole number in 1 .. {MOST_ENGINES}, got {text!r}; correct it")
    return int(text)


def _config(pairs: Mapping[str, str]) -> dict[str, Any]:
    asked = {key.removeprefix(ENGINE_PREFIX): text for key, text in pairs.items() if key.startswith(ENGINE_PREFIX)}
    try:
        found = with_fields(_ANY_ENGINE, asked)
    except ValueError as error:
        raise ConfigError(f"--set {ENGINE_PREFIX}{error}; correct it") from error
    return {name: getattr(found, name) for name in asked}


def _risk(pairs: Mapping[str, str]) -> RiskSettings | None:
    asked = {key.removeprefix(RISK_PREFIX): text for key, text in pairs.items() if key.startswith(RISK_PREFIX)}
    if not asked:
        return None
    plain = RiskSettings()
    values = {name: _convert(f"{RISK_PREFIX}{name}", text, getattr(plain, name)) for name, text in asked.items()}
    try:
        return replace(plain, **values)
    except ValueError as error:
        raise ConfigError(f"--set {error}; correct it") from error
