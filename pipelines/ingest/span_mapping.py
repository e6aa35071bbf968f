"""Which deployment and engine a span belongs to: a small file of rules, first match wins. Reads TOML, nothing else.

    [[engine]]                                  # a rule: all attributes given must match
    match = { "service.name" = "vllm-8100" }    # resource, scope (`scope.name`) or span attributes
    deployment = "tiny"
    engine = "0"

    [frontend]                                  # optional: spans of a gateway, joined to the engine's by trace
    span = "POST /v1/completions"
    timeout_s = 30.0

Without a matching rule the deployment is the model the span names, else its `service.name`; the engine is its
`service.instance.id`, else its `service.name`.
Law: the same span gives the same pair, whatever came before.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import ConfigError
from pipelines.ingest.lines import read_all
from pipelines.ingest.otlp import Attributes

MODEL_KEYS = ("gen_ai.response.model", "gen_ai.request.model")
DEFAULT_DEPLOYMENT = "default"
DEFAULT_ENGINE = "0"
DEFAULT_TIMEOUT_S = 30.0
_RULE_KEYS = {"match", "deployment", "engine"}


@dataclass(frozen=True, slots=True)
class Rule:
    """Attributes that must match as text, and what then holds; an empty name falls back to the default."""

    match: tuple[tuple[str, str], ...]
    deployment: str = ""
    engine: str = ""


@dataclass(frozen=True, slots=True)
class SpanMapping:
    """Rules in order. `frontend_span` names the gateway's spans (empty: there are none to wait for)."""

    rules: tuple[Rule, ...] = ()
    frontend_span: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def keys(self) -> frozenset[str]:
        """Attributes that the rules look at."""
        return frozenset(key for rule in self.rules for key, _ in rule.match) | frozenset(MODEL_KEYS)

    def place(self, attributes: Attributes, resource: Attributes, scope: str) -> tuple[str, str]:
        """Deployment and engine of a span.

        >>> SpanMapping().place({"gen_ai.request.model": "m"}, {"service.name": "vllm-1"}, "")
        ('m', 'vllm-1')
        """
        seen = {"scope.name": scope, **resource, **attributes}
        deployment = engine = ""
        for rule in self.rules:
            if all(str(seen.get(key)) == value for key, value in rule.match):
                deployment, engine = rule.deployment, rule.engine
                break
        named = next((str(seen[key]) for key in (*MODEL_KEYS, "service.name") if seen.get(key)), DEFAULT_DEPLOYMENT)
        served = next(
            (str(seen[key]) for key in ("service.instance.id", "service.name") if seen.get(key)), DEFAULT_ENGINE
        )
        return deployment or named, engine or served


def read_mapping(path: Path) -> SpanMapping:
    """The rules in a TOML file. Raises ConfigError naming the file and the rule."""
    try:
        table = tomllib.loads(read_all(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); see docs/INPUTS.md for its form") from error
    rules = tuple(_rule(path, place, entry) for place, entry in enumerate(table.get("engine", [])))
    frontend = table.get("frontend", {})
    timeout_s = frontend.get("timeout_s", DEFAULT_TIMEOUT_S) if isinstance(frontend, dict) else None
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not 0.0 < timeout_s <= 600.0:
        raise ConfigError(f"{path} [frontend]: timeout_s must be a number in (0, 600], got {timeout_s!r}")
    return SpanMapping(rules, str(frontend.get("span", "")), float(timeout_s))


def _rule(path: Path, place: int, entry: Any) -> Rule:
    if not isinstance(entry, dict) or set(entry) - _RULE_KEYS or not isinstance(entry.get("match"), dict):
        keys = ", ".join(sorted(_RULE_KEYS))
        raise ConfigError(f"{path} rule {place}: expected a table with {keys}, got {entry!r}; fix the rule")
    match = tuple(sorted((str(key), str(value)) for key, value in entry["match"].items()))
    return Rule(match, str(entry.get("deployment", "")), str(entry.get("engine", "")))
