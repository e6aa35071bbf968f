"""`--grid field=v1,v2 --grid ...` into what-ifs: every combination, each value read by the field's kind. Runs nothing.

Law: a grid ends as checked values or as one `ConfigError` naming field and value; the number of points is bounded.
"""

from collections.abc import Iterable
from itertools import product
from math import prod
from typing import Any

from pipelines.errors import ConfigError
from pipelines.near_names import instead_of
from twin.known.variants import CONFIG_FIELDS, FIELDS

MOST_POINTS = 10_000
TPOT_LIMIT = "tpot_limit_s"
"""No setting of an engine: a target that points are judged by."""
_FLOATS = ("rate_factor", "isl_factor", "osl_factor", "prefix_hit_ratio", TPOT_LIMIT)


def parse_grid(texts: Iterable[str]) -> tuple[list[dict[str, Any]], list[float]]:
    """All points, and the TPOT limits in seconds. Values of engine fields stay texts, which their record checks.

    >>> parse_grid(["engines=1,2", "kv_blocks=400"])[0]
    [{'engines': 1, 'kv_blocks': '400'}, {'engines': 2, 'kv_blocks': '400'}]
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (equals and values):
            raise ConfigError(f"--grid must be field=value,value such as max_num_seqs=8,16, got {text!r}; correct it")
        if name not in (*FIELDS, TPOT_LIMIT):
            raise ConfigError(f"--grid {name} is an unknown field; {instead_of(name, (TPOT_LIMIT, *FIELDS))}")
        if name in axes:
            raise ConfigError(f"--grid names {name} twice; put its values into one, separated by commas")
        axes[name] = list(dict.fromkeys(_value(name, word.strip()) for word in values.split(",")))
    limits_s = axes.pop(TPOT_LIMIT, [])
    count = prod(map(len, axes.values()))
    if count > MOST_POINTS:
        raise ConfigError(f"the grid has {count:,} points; make it {MOST_POINTS:,} or fewer")
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())], limits_s


def _value(name: str, word: str) -> Any:
    if not word:
        raise ConfigError(f"--grid {name} has an empty value; remove the comma")
    if name in CONFIG_FIELDS or name == "pd":
        return word
    try:
        return float(word) if name in _FLOATS else int(word)
    except ValueError:
        kind = "number" if name in _FLOATS else "whole number"
        raise ConfigError(f"--grid {name}: {word!r} is no {kind}; correct it") from None
