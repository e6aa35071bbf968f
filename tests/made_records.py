"""A record of every kind with every field set, and one with only what must be set: from the structs themselves.

Golden files were made by it, once for each version of the wire; it makes none that is there:

    PYTHONPATH=tests python -m made_records        writes what is missing of tests/golden/records_v1
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from schemas.base import SCHEMA_VERSION
from schemas.codec import encode
from schemas.topics import TOPICS

FOLDER = Path(__file__).resolve().parent / "golden"
AT_US = 1_796_052_000_000_000


def records_of(kind: Any) -> list[Any]:
    """Records of a struct, or of every struct of a union: full ones first, every alternative once, then the least."""
    info = inspect.type_info(kind)
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    full = [record for member in members for record in _values(member, full=True)]
    return full + [record for member in members for record in _values(member, full=False)]


def golden_file(topic_name: str) -> Path:
    """Where the records of a topic stand."""
    return FOLDER / f"records_v{SCHEMA_VERSION}" / f"{topic_name}.jsonl"


def _values(info: Any, *, full: bool) -> list[Any]:
    """Values of a type, at least one."""
    if isinstance(info, inspect.Metadata):
        return _values(info.type, full=full)
    if isinstance(info, inspect.StructType):
        return _structs(info, full=full)
    if isinstance(info, inspect.UnionType):
        chosen = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return [value for each in chosen for value in _values(each, full=full)]
    if isinstance(info, inspect.VarTupleType | inspect.ListType):
        return [tuple(_values(info.item_type, full=full)) if full else ()]
    if isinstance(info, inspect.TupleType):
        return [tuple(_values(item, full=full)[0] for item in info.item_types)]
    if isinstance(info, inspect.DictType):
        return [{"key": _values(info.value_type, full=full)[0]} if full else {}]
    return [_scalar(info)]


def _scalar(info: Any) -> Any:
    if isinstance(info, inspect.IntType):
        least = info.ge if info.ge is not None else 0
        return AT_US if least > 1_000_000_000_000 else min(least + 3, 10**18 if info.le is None else info.le)
    if isinstance(info, inspect.FloatType):
        return 0.75
    if isinstance(info, inspect.BoolType):
        return True
    if isinstance(info, inspect.LiteralType):
        return info.values[-1]
    if isinstance(info, inspect.AnyType):
        return {"any": [1, "two"]}
    if isinstance(info, inspect.StrType):
        return "name"
    raise TypeError(f"no value is known for {info}; add one")


def _structs(info: Any, *, full: bool) -> list[Any]:
    options = {
        field.name: _other_than(field.default, field.type, _values(field.type, full=full))
        for field in info.fields
        if (full and field.name != "schema_version") or field.required
    }
    count = max((len(values) for values in options.values()), default=1)
    made = [
        info.cls(**{name: values[number % len(values)] for name, values in options.items()}) for number in range(count)
    ]
    return [msgspec.convert(msgspec.to_builtins(record), info.cls) for record in made]


def _other_than(default: Any, info: Any, values: list[Any]) -> list[Any]:
    """The values, or another one where it is the default, which is left out on the wire."""
    if values != [default]:
        return values
    return [not default] if isinstance(default, bool) else [info.values[0]]


if __name__ == "__main__":
    for topic in TOPICS.values():
        path = golden_file(topic.name)
        if topic.type is not None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(encode(record) + b"\n" for record in records_of(topic.type)))
            print(path)
