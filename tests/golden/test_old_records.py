"""Records as they were written when their version was new: they still read, whole, and say the same.

A file of `records_v<n>` is never changed. A field that is taken out, renamed, or made to mean another type fails here;
so does a new one without a default.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_records import golden_file, records_of

from schemas.codec import decode, encode
from schemas.topics import TOPICS

FILES = sorted(Path(__file__).parent.glob("records_v*/*.jsonl"))
CASES = [(path, number, line) for path in FILES for number, line in enumerate(path.read_bytes().splitlines(), 1)]


def leaves(value: Any, where: str = "$") -> Iterator[tuple[str, Any]]:
    """Every value of a JSON text that holds no other, by its path."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{where}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from leaves(each, f"{where}[{number}]")
    else:
        yield where, value


@pytest.mark.parametrize(("path", "number", "line"), CASES, ids=lambda v: v.stem if isinstance(v, Path) else "")
def test_an_old_record_still_reads_and_loses_nothing(path: Path, number: int, line: bytes) -> None:
    decoded = decode(path.stem, line)
    assert decoded.refused == ()
    again = encode(decoded.record)
    kept = dict(leaves(json.loads(again)))
    lost = {where: value for where, value in leaves(json.loads(line)) if kept.get(where, object()) != value}
    assert lost == {}, f"{path.name}:{number}"
    assert decode(path.stem, again).record == decoded.record


def test_every_topic_has_a_golden_file() -> None:
    typed = {topic.name for topic in TOPICS.values() if topic.type is not None}
    assert {name for name in typed if not golden_file(name).exists()} == set(), "run `python -m made_records`"


def test_a_golden_file_holds_every_kind_of_record_full_and_least() -> None:
    for topic in TOPICS.values():
        if topic.type is None:
            continue
        lines = golden_file(topic.name).read_bytes().splitlines()
        kinds = [type(decode(topic.name, line).record) for line in lines]
        for kind in {type(record) for record in records_of(topic.type)}:
            assert kinds.count(kind) >= 2, f"{topic.name} has too few of {kind.__name__}"


def test_a_field_that_is_taken_out_would_be_noticed() -> None:
    line = golden_file("twincast.changes.v1").read_bytes().splitlines()[0]
    told = {**json.loads(line), "field_of_old": 1}
    kept = dict(leaves(json.loads(encode(decode("twincast.changes.v1", json.dumps(told).encode()).record))))
    assert {where for where, _ in leaves(told) if where not in kept} == {"$.field_of_old"}
