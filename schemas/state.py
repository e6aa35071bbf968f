"""Snapshots (`twincast.state.v1`, compacted): a deployment's state and the input offsets in it. JSON, never pickle."""

from typing import Any

from schemas.base import Count, EventTime, Name, Record
from schemas.lineage import Offset


class Snapshot(Record, frozen=True, kw_only=True, tag_field="record", tag="snapshot"):
    """`state` is plain JSON data made by the core of format `format_version`; `sha256` is the digest of its bytes.

    Records below each offset's `next_offset` are in the state; a restart reads on from there.
    """

    deployment: Name
    at_us: EventTime
    format_version: Count
    sha256: str
    offsets: tuple[Offset, ...]
    state: dict[str, Any]
