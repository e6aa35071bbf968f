"""A hardware file (TOML) into `Hardware`: whole, or as changes to a preset. Knows no numbers of its own.

```toml
base = "h100-sxm"                 # optional: the preset to start from
name = "our-h100"
[device]
memory_bytes = 64e9
memory_bandwidth_bytes_per_s = 1.6e12
[[links]]                         # replaces the preset's links; nearest first
name = "nvlink"
bandwidth_bytes_per_s = 450e9
latency_s = 5e-6
domain_devices = 4
```

Law: a file ends as valid `Hardware` or as one `ConfigError` that names the file and the field.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipelines.errors import ConfigError
from twin.hardware.presets import PRESETS, preset
from twin.hardware.topology import Device, Hardware, Host, Link

Part = TypeVar("Part", Device, Link, Host)


def load_hardware(name_or_path: str) -> Hardware:
    """A preset by its name, else the file of that path. Raises ConfigError."""
    if name_or_path.lower().replace("_", "-") in PRESETS:
        return preset(name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise ConfigError(
            f"hardware {name_or_path!r} is no preset ({', '.join(PRESETS)}) and no .toml file; give one of these"
        )
    return read_hardware(path)


def read_hardware(path: Path) -> Hardware:
    """The hardware of a TOML file. Raises ConfigError if it cannot be read, has an unknown key or a bad number."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"hardware file {path} cannot be read ({error.strerror}); check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"hardware file {path} is not TOML: {error}; correct it") from error
    try:
        return _hardware(content, str(path))
    except ValueError as error:
        raise ConfigError(f"hardware file {path}: {error}; correct the file") from error


def _hardware(content: Mapping[str, Any], source: str) -> Hardware:
    _only(content, {"base", "name", "device", "links", "host_link", "host"}, "")
    base = preset(str(content["base"])) if "base" in content else None
    name = str(content.get("name", base.name if base else ""))
    if not name:
        raise ValueError("name is missing; give the hardware a name")
    links = content.get("links")
    if links is not None and not isinstance(links, list):
        raise ValueError("links must be an array of tables, [[links]]")
    host_link = _merged(
        content, "host_link", base.host_link if base else None, {"name": "host_link", "domain_devices": 2}
    )
    return Hardware(
        name=name,
        device=_built(
            Device, {**_merged(content, "device", base.device if base else None, {}), "name": name}, "device"
        ),
        links=(base.links if base else ()) if links is None else tuple(_built(Link, link, "links") for link in links),
        host_link=_built(Link, host_link, "host_link") if len(host_link) > 2 else None,
        host=_built(Host, _merged(content, "host", base.host if base else None, {}), "host"),
        sources={**(base.sources if base else {}), **_sources(content, source)},
    )


def _merged(content: Mapping[str, Any], part: str, base: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a part: the preset's, overlaid with the file's."""
    table = content.get(part, {})
    if not isinstance(table, dict):
        raise ValueError(f"{part} must be a table, [{part}]")
    start = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)} if base is not None else given
    return {**start, **table}


def _built(kind: type[Part], values: Any, part: str) -> Part:
    if not isinstance(values, dict):
        raise ValueError(f"{part} must be a table")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    _only(values, set(fields), f"{part}.")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ValueError(f"{part}.{name} is missing")
    return kind(**values)


def _only(table: Mapping[str, Any], known: set[str], prefix: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ValueError(f"{prefix}{unknown[0]} is an unknown key; expected one of {', '.join(sorted(known))}")


def _sources(content: Mapping[str, Any], source: str) -> dict[str, str]:
    return {f"{part}.{key}": source for part in ("device", "host", "host_link") for key in content.get(part, {})}
