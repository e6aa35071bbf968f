"""Step costs as a file: what a recording taught, to be used on another day. Learns nothing.

JSON (or TOML) with one table per step role, times in microseconds; `all` stands for the three roles together.
`decode_requests_us[n]` is the cost of a step with n decoding sequences and nothing else; beyond its end the last
increment goes on.

```toml
[all]
decode_requests_us = [5000.0, 5100.0]
prefill_token_us = 150.0
```

Laws: what is written reads back the same, to the picosecond; a file ends as costs or as one `ConfigError` naming the
field.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.near_names import instead_of
from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.cost.shape import Role

LAYOUT = "twincast-costs"
PS_PER_US = 1_000_000
_TABLE = "decode_requests_us"
_SLOPES = tuple(field.name.removesuffix("_ps") + "_us" for field in fields(RoleCost)[1:])
MOST_US = 17e6
"""A longer coefficient cannot be simulated."""


def read_costs(path: Path) -> FrozenStepCost:
    """The costs of a file. Raises ConfigError."""
    content = _content(path)
    content.pop("layout", None)
    content.pop("source", None)
    names = [str(role) for role in Role]
    unknown = sorted(set(content) - {*names, "all"})
    if unknown:
        raise ConfigError(f"cost file {path}: {unknown[0]} is an unknown table; expected all, or {', '.join(names)}")
    missing = [name for name in names if name not in content and "all" not in content]
    if missing:
        raise ConfigError(f"cost file {path}: no table {missing[0]!r} and none for all; add it")
    return FrozenStepCost(**{name: _role(content.get(name, content.get("all")), name, path) for name in names})


def costs_json(cost: FrozenStepCost, source: str) -> bytes:
    """The costs as the bytes of a file; `source` says what they were learned from."""
    tables = {str(role): _table(cost.role(role)) for role in Role}
    return msgspec.json.format(msgspec.json.encode({"layout": LAYOUT, "source": source} | tables), indent=1) + b"\n"


def _table(role: RoleCost) -> dict[str, Any]:
    slopes = {name: getattr(role, name.removesuffix("_us") + "_ps") / PS_PER_US for name in _SLOPES}
    return {_TABLE: [value / PS_PER_US for value in role.decode_requests_ps]} | slopes


def _content(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        content = tomllib.loads(data.decode()) if path.suffix == ".toml" else msgspec.json.decode(data)
    except OSError as error:
        raise ConfigError(f"cost file {path} cannot be read ({error.strerror}); check the path") from error
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cost file {path} is neither JSON nor TOML: {error}; correct it") from error
    if not isinstance(content, dict):
        raise ConfigError(f"cost file {path} holds a {type(content).__name__}; expected tables of costs")
    return content


def _role(table: Any, name: str, path: Path) -> RoleCost:
    where = f"cost file {path}: {name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r}; correct it")
    unknown = sorted(set(table) - {_TABLE, *_SLOPES})
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]} is an unknown field; {instead_of(unknown[0], (_TABLE, *_SLOPES))}")
    steps = table.get(_TABLE)
    if not isinstance(steps, list) or not steps:
        raise ConfigError(f"{where}.{_TABLE} must be a list of microseconds, got {steps!r}; correct it")
    try:
        return RoleCost(
            decode_requests_ps=tuple(_ps(value, f"{where}.{_TABLE}[{n}]") for n, value in enumerate(steps)),
            **{key.removesuffix("_us") + "_ps": _ps(table.get(key, 0.0), f"{where}.{key}") for key in _SLOPES},
        )
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; correct it") from error


def _ps(value: Any, where: str) -> int:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and math.isfinite(value) and 0.0 <= value <= MOST_US):
        raise ConfigError(f"{where} must be a finite number of microseconds in 0 .. {MOST_US:g}, got {value!r}")
    return round(float(value) * PS_PER_US)
