"""Outputs as log messages: CloudEvents in Kafka's binary mode, and dead letters. Decides no content.

Law: a value holds no processing time, so the same inputs give the same bytes; ids are deterministic, so a redelivery
is recognisable. `ce_time` is event time.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from schemas.codec import MAX_MESSAGE_BYTES, encode
from schemas.topics import DLQ
from twin.effects import Emit
from twin.intake import Refusal

Headers = tuple[tuple[str, bytes], ...]
MADE_HEADER = "twincast_made_us"
"""Processing time of an output, added where it is written: its value holds none."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to write. `deployment` decides the partition of core topics, empty where the topic has no key."""

    topic: str
    deployment: str
    key: bytes | None
    value: bytes
    headers: Headers
    at_us: int


def outgoing(effect: Emit, deployment: str) -> Outgoing:
    """A record as a CloudEvent."""
    value = encode(effect.record)
    at_us = _at_us(effect.record)
    tag = str(type(effect.record).__struct_config__.tag)
    digest = blake2b(value, digest_size=12).hexdigest()
    headers = (
        ("ce_specversion", b"1.0"),
        ("ce_id", f"{deployment}/{tag}/{at_us}/{digest}".encode()),
        ("ce_type", f"{effect.topic.name}.{tag}".encode()),
        ("ce_source", f"/twincast/{quote(deployment, safe='')}".encode()),
        ("ce_time", datetime.fromtimestamp(at_us / 1e6, UTC).isoformat().encode()),
        ("content-type", b"application/json"),
    )
    return Outgoing(effect.topic.name, deployment, effect.key.encode(), value, headers, at_us)


def dead_letter(
    *,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    reason: str,
    detail: str,
    indexes: tuple[int, ...] = (),
) -> Outgoing:
    """A refused message, byte-identical, with its reason and position in headers beside its own.

    A value over the size limit of one message is cut; `twincast_cut_bytes` says how much is missing.
    """
    body = value or b""
    cut = max(len(body) - MAX_MESSAGE_BYTES, 0)
    ours: list[tuple[str, bytes]] = [
        ("twincast_reason", reason.encode()),
        ("twincast_detail", detail[:500].encode()),
        ("twincast_position", f"{topic}[{partition}]@{offset}".encode()),
    ]
    if indexes:
        ours.append(("twincast_indexes", ",".join(map(str, indexes)).encode()))
    if cut:
        ours.append(("twincast_cut_bytes", str(cut).encode()))
    return Outgoing(DLQ.name, "", key, body[: len(body) - cut], (*headers, *ours), 0)


def dead_letter_of(refusal: Refusal, deployment: str) -> Outgoing:
    """A unit whose message is not known, restored from a snapshot that held no messages: encoded again, its position
    in headers."""
    position = refusal.position
    return dead_letter(
        topic=position.topic,
        partition=position.partition,
        offset=position.offset,
        key=deployment.encode(),
        value=encode(refusal.record) if refusal.record is not None else b"",
        headers=(),
        reason=refusal.reason,
        detail=f"{refusal.outcome}: unit {position.index} of the message",
        indexes=(position.index,),
    )


def _at_us(record: Any) -> int:
    for name in ("as_of_us", "at_us"):
        value = getattr(record, name, None)
        if value is not None:
            return int(value)
    raise TypeError(f"{type(record).__name__} has neither as_of_us nor at_us; an output needs an event time")
