"""Records of a log as columns of Parquet, and back. Opens no file.

One row per record: topic, partition, offset, timestamp (milliseconds) and its type (0: the sender's, 1: when appended),
key and value as bytes, headers as a list of name and value. Law: what goes in comes out, nulls and repeated or empty
headers included.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from pipelines.log import Header, LogRecord
from twin.metrics import IntArray

HEADER = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", HEADER)), nullable=False),
    ]
)
REPEATED_COLUMNS = ["topic", "partition", "timestamp_type", "key"]
"""Columns with few different values, which are kept once."""


def table_of(records: Sequence[LogRecord]) -> Any:
    """A table of `SCHEMA`."""
    topics, partitions, offsets, times_ms, keys, values, headers, types = zip(*records, strict=True)
    listed = [[{"name": name, "value": value} for name, value in each] for each in headers]
    columns = (topics, partitions, offsets, times_ms, types, keys, values, listed)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def difference(found: Any) -> str:
    """How a file's schema differs from `SCHEMA`, in words; empty if it does not."""
    for field in SCHEMA:
        at = found.get_field_index(field.name)
        if at < 0:
            return f"column {field.name} is missing"
        if not found.field(at).type.equals(field.type):
            return f"column {field.name} is {found.field(at).type}, expected {field.type}"
    return ""


def records_of(batch: Any, topic: str, partition: int) -> tuple[list[LogRecord], IntArray]:
    """The rows of a record batch of one partition, and their timestamps in milliseconds."""
    column = batch.schema.names.index
    offsets, times_ms, types, keys, values = (
        batch.column(column(name)).to_numpy(zero_copy_only=False)
        for name in ("offset", "timestamp_ms", "timestamp_type", "key", "value")
    )
    rows = zip(
        repeat(topic, len(offsets)),
        repeat(partition),
        offsets.tolist(),
        times_ms.tolist(),
        keys.tolist(),
        values.tolist(),
        _headers(batch.column(column("headers"))),
        types.tolist(),
        strict=False,
    )
    return list(map(_NEW_RECORD, rows)), times_ms


_NEW_RECORD = partial(tuple.__new__, LogRecord)
"""A named tuple's own constructor takes three times as long."""


def _headers(column: Any) -> list[tuple[Header, ...]]:
    flat = column.flatten()
    if len(flat) == 0:
        return [()] * len(column)
    pairs = list(zip(flat.field("name").to_pylist(), flat.field("value").to_pylist(), strict=True))
    ends = column.offsets.to_numpy(zero_copy_only=False)
    ends = (ends - ends[0]).tolist()
    return [tuple(pairs[begin:end]) for begin, end in itertools.pairwise(ends)]
