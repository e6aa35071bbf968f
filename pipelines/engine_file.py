"""An engine file (TOML or JSON) into engine configurations, and changes to fields by name. Knows no defaults of vLLM's.

```toml
block_size_tokens = 16
kv_blocks = 27_000            # may be left out where hardware and model are known
max_num_seqs = 256
max_num_batched_tokens = 8192
tensor_parallel = 2
```

Several engines are `[[engine]]` tables, each with an optional `engine = "name"`. Field names are those of engine
records (`schemas/engines.py`). Law: a file ends as configurations or as one `ConfigError` naming file and field.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.near_names import instead_of
from schemas.base import EARLIEST_US
from schemas.engines import EngineConfig
from twin.known.variants import CONFIG_FIELDS, with_fields

KvBlocksOf = Callable[[EngineConfig], int]
_GIVEN = ("engine", "fingerprint", "model_config", "kv_tiers")
"""Fields that a file may hold beside the plain ones; who and when is not for files to say."""
_REQUIRED = ("block_size_tokens", "kv_blocks", "max_num_seqs", "max_num_batched_tokens")


def read_engines(
    path: Path, kv_blocks_of: KvBlocksOf | None = None, deployment: str = "file"
) -> tuple[tuple[EngineConfig, ...], bool]:
    """The engines of a file, and whether `kv_blocks_of` computed blocks that it leaves out. Raises ConfigError."""
    content = _content(path)
    tables = content if isinstance(content, list) else content.pop("engine", None)
    if not isinstance(tables, list):
        tables = [content | ({} if tables is None else {"engine": tables})]
    elif isinstance(content, dict) and content:
        raise ConfigError(f"{path}: {next(iter(content))} stands beside [[engine]] tables; move it into them")
    if not tables:
        raise ConfigError(f"{path} holds no engine; write its fields, {', '.join(_REQUIRED)} at least")
    found = [_engine(table, number, path, kv_blocks_of, deployment) for number, table in enumerate(tables)]
    names = [config.engine for config in found]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: engine names must differ, got {', '.join(names)}; rename one")
    return tuple(found), any(isinstance(table, dict) and "kv_blocks" not in table for table in tables)


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """`field=value` texts of the command line. Raises ConfigError for one without a field or named twice.

    >>> parse_settings(["kv_blocks=400"])
    {'kv_blocks': '400'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"--set must be field=value such as kv_blocks=400, got {text!r}; correct it")
        if name not in CONFIG_FIELDS:
            raise ConfigError(f"--set {text}: {name!r} is no engine setting; {instead_of(name, CONFIG_FIELDS)}")
        if name in found:
            raise ConfigError(f"--set names {name} twice; keep one")
        found[name] = value
    return found


def changed_engines(configs: Iterable[EngineConfig], fields: Mapping[str, Any]) -> tuple[EngineConfig, ...]:
    """Every engine with these fields. Raises ConfigError naming the field."""
    try:
        return tuple(with_fields(config, fields) for config in configs)
    except ValueError as error:
        raise ConfigError(f"--set {error}; correct it") from error


def _content(path: Path) -> Any:
    try:
        data = path.read_bytes()
        content = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"engine file {path} cannot be read ({error.strerror}); check the path") from error
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"engine file {path} is neither TOML nor JSON: {error}; correct it") from error
    if not isinstance(content, dict | list):
        raise ConfigError(f"engine file {path} holds a {type(content).__name__}; write the fields of an engine")
    return content


def _engine(table: Any, number: int, path: Path, kv_blocks_of: KvBlocksOf | None, deployment: str) -> EngineConfig:
    where = f"engine file {path}" + (f", engine {number}" if number else "")
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: an engine must be a table, got {table!r}; correct it")
    known = (*CONFIG_FIELDS, *_GIVEN)
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]} is an unknown field; {instead_of(unknown[0], known)}")
    computed = "kv_blocks" not in table and kv_blocks_of is not None
    fields = {"deployment": deployment, "at_us": EARLIEST_US, "engine": str(number)} | table
    fields |= {"record": "engine"} | ({"kv_blocks": 1} if computed else {})
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        hint = " (or give --hardware and --model to compute it)" if missing == ["kv_blocks"] else ""
        raise ConfigError(f"{where}: {missing[0]} is missing{hint}; add it")
    try:
        config = msgspec.convert(fields, EngineConfig)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`") or "a field"
        raise ConfigError(f"{where}: {name}: {reason}, got {fields.get(name)!r}; correct it") from error
    if computed and kv_blocks_of is not None:
        config = msgspec.structs.replace(config, kv_blocks=kv_blocks_of(config))
    return config
