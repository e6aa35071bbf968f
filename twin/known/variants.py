"""What-ifs on known requests and their engines: other limits, more engines, longer prompts, more shared prefixes.

Builds variants; runs none. Law: a variant that asks for nothing is the recording itself.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from twin.cost.frozen import StepCost
from twin.engine.cluster_types import KvLink
from twin.engine.types import MAX_TOKENS
from twin.known.requests import KnownRequests, require_fit
from twin.known.run import KnownEngine
from twin.metrics import IntArray
from twin.traffic.draw import Arrivals

CostOf = Callable[[EngineConfig], StepCost]
"""Costs of an engine of this configuration."""
MOST_ENGINES = 1024
IDENTITY = (
    "schema_version",
    "deployment",
    "engine",
    "at_us",
    "fingerprint",
    "model_config",
    "kv_tiers",
    "removed",
    "emits_steps",
)
"""Fields of a configuration that name an engine or are not single values: not for what-ifs."""
CONFIG_FIELDS = tuple(name for name in EngineConfig.__struct_fields__ if name not in IDENTITY)
TRAFFIC_FIELDS = ("rate_factor", "isl_factor", "osl_factor", "prefix_hit_ratio")
FLEET_FIELDS = ("engines", "pd")
FIELDS = (*FLEET_FIELDS, *TRAFFIC_FIELDS, *CONFIG_FIELDS)
"""Everything a variant can ask for."""
Settings = Mapping[str, Any]
_SPLIT = re.compile(r"[1-9]\d{0,3}:[1-9]\d{0,3}")


@dataclass(frozen=True, slots=True)
class Base:
    """Where variants start from: configurations, the costs that belong to one, and the requests.

    `kv_blocks_of` computes the blocks of a configuration, where they follow from the rest of it. `link_of` tells how
    KV travels between such engines.
    """

    configs: tuple[EngineConfig, ...]
    cost_of: CostOf
    requests: KnownRequests
    kv_blocks_of: Callable[[EngineConfig], int] | None = None
    link_of: Callable[[EngineConfig], KvLink] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Engines and requests under some settings; `settings` says what was asked. `link` joins prefill and decode."""

    settings: Settings
    engines: tuple[KnownEngine, ...]
    requests: KnownRequests
    link: KvLink | None = None

    @property
    def name(self) -> str:
        """What is different, in words."""
        return ", ".join(f"{key}={plain_value(value)}" for key, value in self.settings.items()) or "as recorded"


def build(base: Base, settings: Settings) -> Variant:
    """The base under `settings`, whose values are checked: see `FIELDS`.

    Raises ValueError, naming the field, for one that is unknown or out of range, or if a request would not fit.
    """
    for name, value in settings.items():
        _require_known(name, value)
    if "pd" in settings and ("engines" in settings or "role" in settings):
        raise ValueError("pd says how many engines there are and what they do; leave engines and role out")
    fields = {name: value for name, value in settings.items() if name in CONFIG_FIELDS}
    configs = [with_fields(config, fields) for config in base.configs]
    if base.kv_blocks_of is not None and "kv_blocks" not in settings:
        configs = [msgspec.structs.replace(config, kv_blocks=base.kv_blocks_of(config)) for config in configs]
    if "engines" in settings:
        configs = _numbered(configs, settings["engines"])
    if "pd" in settings:
        configs = _apart(configs[0], str(settings["pd"]))
    if "prefix_hit_ratio" in settings:
        configs = [msgspec.structs.replace(config, enable_prefix_caching=True) for config in configs]
    requests = with_traffic(base.requests, settings, configs[0].block_size_tokens)
    require_fit(requests, configs)
    engines = tuple(KnownEngine(config, base.cost_of(config)) for config in configs)
    return Variant(settings, engines, requests, _link(base, configs))


def _link(base: Base, configs: Sequence[EngineConfig]) -> KvLink | None:
    if all(config.role == "both" for config in configs):
        return None
    if base.link_of is None:
        raise ValueError("prefill and decode engines need a KV link; say how long transfers take")
    return base.link_of(configs[0])


def with_fields(config: EngineConfig, fields: Settings) -> EngineConfig:
    """The configuration with fields replaced and checked. Raises ValueError naming the field.

    >>> from schemas.base import EARLIEST_US
    >>> config = EngineConfig(deployment="d", engine="0", at_us=EARLIEST_US, block_size_tokens=16, kv_blocks=100,
    ...                       max_num_seqs=8, max_num_batched_tokens=512)
    >>> with_fields(config, {"kv_blocks": "0"})
    Traceback (most recent call last):
    ValueError: kv_blocks: Expected `int` >= 1, got '0'
    """
    for name, value in fields.items():
        if name not in CONFIG_FIELDS:
            raise ValueError(f"{name} is no engine setting; expected one of {', '.join(CONFIG_FIELDS)}")
        try:
            if isinstance(value, str) and value.startswith("["):
                value = msgspec.json.decode(value)
            plain = msgspec.to_builtins(config) | {name: value}
            config = msgspec.convert(plain, EngineConfig, strict=False)
        except msgspec.DecodeError as error:  # a ValidationError is one
            reason = str(error).split(" - at ")[0].split(", got `")[0]
            raise ValueError(f"{name}: {reason}, got {value!r}") from error
    return config


def with_traffic(requests: KnownRequests, settings: Settings, block_size_tokens: int) -> KnownRequests:
    """The requests faster, longer or more alike; as they are where nothing is asked."""
    old = requests.arrivals
    arrived_s, isl, osl = old.arrived_s, old.isl_tokens, old.osl_tokens
    if "rate_factor" in settings:
        arrived_s = arrived_s / settings["rate_factor"]
    if "isl_factor" in settings:
        isl = _scaled(isl, settings["isl_factor"])
    if "osl_factor" in settings:
        osl = _scaled(osl, settings["osl_factor"])
    arrivals = replace(old, arrived_s=arrived_s, isl_tokens=isl, osl_tokens=osl)
    if "prefix_hit_ratio" in settings:
        arrivals = _sharing(arrivals, settings["prefix_hit_ratio"], block_size_tokens)
    return replace(requests, arrivals=arrivals)


def plain_value(value: object) -> str:
    """A value as a person would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _require_known(name: str, value: Any) -> None:
    if name not in FIELDS:
        raise ValueError(f"{name} is unknown; expected one of {', '.join(FIELDS)}")
    if name == "engines" and not (isinstance(value, int) and 1 <= value <= MOST_ENGINES):
        raise ValueError(f"engines must be a whole number in 1 .. {MOST_ENGINES}, got {value}")
    if name == "pd" and not _SPLIT.fullmatch(str(value)):
        raise ValueError(f"pd must be prefill:decode engines such as 1:3, both >= 1, got {value}")
    if name == "prefix_hit_ratio" and not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
        raise ValueError(f"prefix_hit_ratio must be in 0 .. 1, got {value}")
    if name.endswith("_factor") and not (isinstance(value, int | float) and math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be a finite number > 0, got {value}")


def _numbered(configs: Sequence[EngineConfig], count: int) -> list[EngineConfig]:
    """So many engines: those there are, then copies of the first."""
    kept = list(configs[:count])
    names = {config.engine for config in kept}
    number = 0
    while len(kept) < count:
        while str(number) in names:
            number += 1
        names.add(str(number))
        kept.append(msgspec.structs.replace(configs[0], engine=str(number)))
    return kept


def _apart(config: EngineConfig, split: str) -> list[EngineConfig]:
    """Engines like this one, some for prefill and some for decode."""
    prefill, decode = (int(count) for count in split.split(":"))
    roles = ["prefill"] * prefill + ["decode"] * decode
    if len(roles) > MOST_ENGINES:
        raise ValueError(f"pd must be at most {MOST_ENGINES} engines together, got {split}")
    names = [
        f"{role}-{number}" for role, count in (("prefill", prefill), ("decode", decode)) for number in range(count)
    ]
    return [msgspec.structs.replace(config, engine=name, role=role) for name, role in zip(names, roles, strict=True)]


def _scaled(tokens: IntArray, factor: float) -> IntArray:
    scaled: IntArray = np.clip(np.rint(tokens * factor), 1, MAX_TOKENS).astype(np.int64)
    return scaled


def _sharing(arrivals: Arrivals, ratio: float, block_tokens: int) -> Arrivals:
    """Prompts whose first blocks, `ratio` of their tokens, are one text that all share; the rest is each one's own."""
    blocks = arrivals.isl_tokens // block_tokens
    shared = np.minimum(np.rint(arrivals.isl_tokens * ratio / block_tokens), blocks).astype(np.int64)
    ends = np.cumsum(blocks)
    request = np.repeat(np.arange(blocks.size), blocks)
    place = np.arange(int(ends[-1]) if ends.size else 0) - np.repeat(ends - blocks, blocks)
    own = (request + 1) * np.int64(2**31) + place
    return replace(
        arrivals,
        hash_offsets=np.concatenate(([0], ends)).astype(np.int64),
        hash_values=np.where(place < shared[request], place, own),
        hash_block_tokens=block_tokens,
    )
