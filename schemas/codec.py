"""Bytes <-> structs. Says what is wrong and where; does not judge what a record means (see `twin`).

Law: `decode(topic, encode(record))` gives the record back, and no bytes whatever make `decode` raise anything but
`SchemaError`. A message of many steps is refused by the step: good ones are returned, bad ones named by index.
"""

import re
from typing import Any

import msgspec

from schemas.base import EARLIEST_US, NEWEST_READABLE_VERSION, SCHEMA_VERSION, Version
from schemas.steps import Step, StepBatch
from schemas.topics import STATE, STEPS, TOPICS

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_STATE_BYTES = 16 * 1024 * 1024
"""A snapshot holds the records that wait for a simulation as well."""

_CONFLUENT_HEADER_BYTES = 5


class SchemaError(Exception):
    """The record is wrong, not the program. `reason` is a short stable code, `where` a JSON path or empty."""

    def __init__(self, reason: str, detail: str, topic: str = "", where: str = "") -> None:
        super().__init__(reason, detail, topic, where)
        self.reason = reason
        self.detail = detail
        self.topic = topic
        self.where = where

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.topic or 'record'}: {self.reason}{place}: {self.detail}"


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A message: its record, and per refused index (steps only) why. `units` counts records in the message.

    A struct, as one is made for every message and a dataclass takes ten times as long.
    """

    record: Any
    refused: tuple[tuple[int, SchemaError], ...] = ()
    units: int = 1


class _RawBatch(msgspec.Struct):
    deployment: str
    engine: str
    steps: list[msgspec.Raw]
    epoch: int = 0
    schema_version: Version = SCHEMA_VERSION


_DECODE = {name: msgspec.json.Decoder(topic.type).decode for name, topic in TOPICS.items() if topic.type is not None}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_RAW_BATCH = msgspec.json.Decoder(_RawBatch)
_STEP = msgspec.json.Decoder(Step)
_ENCODER = msgspec.json.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """JSON with fields in declaration order and defaults left out, mappings in their own order."""
    return _ENCODER.encode(record)


def decode(topic_name: str, value: bytes) -> Decoded:
    """Read one message of a topic.

    Raises SchemaError with a stable `reason`: `empty`, `too_large`, `invalid_utf8`, `not_json`, `truncated`,
    `non_finite`, `int_out_of_range`, `timestamp_unit`, `out_of_range`, `bad_type`, `missing_field`, `unknown_event`
    or `schema_version`.
    """
    if len(value) > MAX_MESSAGE_BYTES:
        _check_size(topic_name, value)
    try:
        record = _DECODE[topic_name](value)
    except _UNREADABLE as error:
        return _second_look(topic_name, value, error)
    return Decoded(record, (), len(record.steps) if type(record) is StepBatch else 1)


def _check_size(topic_name: str, value: bytes) -> None:
    limit = MAX_STATE_BYTES if topic_name == STATE.name else MAX_MESSAGE_BYTES
    if len(value) > limit:
        raise SchemaError("too_large", f"{len(value)} bytes, at most {limit}", topic_name)


def _second_look(topic_name: str, value: bytes, error: Exception) -> Decoded:
    """What did not read at once: framed, empty, partly wrong, or wrong."""
    body = _body(topic_name, value)
    if body is not value:
        return decode(topic_name, body)
    if topic_name == STEPS.name:
        return _decode_steps(body, schema_error(topic_name, body, error))
    raise schema_error(topic_name, body, error) from None


def _body(topic_name: str, value: bytes) -> bytes:
    if not value:
        raise SchemaError("empty", "no bytes", topic_name)
    if value[0] == 0 and value[_CONFLUENT_HEADER_BYTES : _CONFLUENT_HEADER_BYTES + 1] == b"{":
        return value[_CONFLUENT_HEADER_BYTES:]  # Confluent wire format: a zero byte and a 4-byte schema id
    return value


def _decode_steps(body: bytes, whole: SchemaError) -> Decoded:
    try:
        raw = _RAW_BATCH.decode(body)
        empty = StepBatch(deployment=raw.deployment, engine=raw.engine, epoch=raw.epoch, steps=())
        msgspec.convert(msgspec.to_builtins(empty), StepBatch)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise whole from None
    good, refused = [], []
    for index, step in enumerate(raw.steps):
        try:
            good.append(_STEP.decode(step))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            refused.append((index, schema_error(STEPS.name, bytes(step), error)))
    if not refused:  # what is wrong is in the envelope
        raise whole
    record = StepBatch(deployment=raw.deployment, engine=raw.engine, epoch=raw.epoch, steps=tuple(good))
    return Decoded(record=record, refused=tuple(refused), units=len(raw.steps))


_NON_FINITE = re.compile(rb"[:\[,]\s*(-?Infinity|-?NaN|nan)\b")
_NON_FINITE_FIELD = re.compile(rb'"([^"\\]{1,200})"\s*:\s*\[?\s*[-+]?(?:NaN|Infinity|nan)\b')
_HUGE_EXPONENT = re.compile(rb"[:\[,]\s*-?\d+(\.\d+)?[eE]\+?\d{3,}")
_INT_MAX = 2**63 - 1


def schema_error(topic_name: str, body: bytes, error: Exception) -> SchemaError:
    """What a decoding error of msgspec means: a stable reason, msgspec's words, and the path of the bad value."""
    text = str(error)
    where = text.split(" - at `", 1)[1].rstrip("`") if " - at `" in text else non_finite_field(body)
    reason = _reason(body, text, where)
    detail = text.split(" - at `")[0]
    if reason == "schema_version":
        detail += f"; this program reads 1 to {NEWEST_READABLE_VERSION}: update it or the producer"
    return SchemaError(reason, detail, topic_name, where)


def non_finite_field(body: bytes) -> str:
    """The first field of a JSON text whose value is NaN or infinite, which is no JSON; empty if there is none.

    >>> non_finite_field(b'{"i": 1, "t_arr": NaN}')
    't_arr'
    """
    found = _NON_FINITE_FIELD.search(body)
    return found.group(1).decode(errors="replace") if found else ""


def _reason(body: bytes, text: str, where: str) -> str:
    if where == "$.schema_version":
        return "schema_version"
    if "UTF-8" in text or ("malformed" in text and not _is_utf8(body)):
        return "invalid_utf8"
    if _NON_FINITE.search(body) or ("out of range" in text and _HUGE_EXPONENT.search(body)):
        return "non_finite"
    if "truncated" in text:
        return "truncated"
    if "malformed" in text or "recursion" in text.lower():
        return "not_json"
    if "missing required" in text:
        return "missing_field"
    if "Invalid value" in text:
        return "unknown_event"
    if "out of range" in text:
        return "int_out_of_range"
    if "Expected `int` <=" in text or "Expected `int` >=" in text:
        return _range_reason(body, where)
    return "out_of_range" if "<=" in text or ">=" in text or "length" in text else "bad_type"


def _range_reason(body: bytes, where: str) -> str:
    """A stamp in another unit is told from any other number that is too small or too large."""
    if not where.rsplit(".", 1)[-1].endswith("_us"):
        return "out_of_range"
    value = _value_at(body, where)
    if value > _INT_MAX:
        return "int_out_of_range"
    return "timestamp_unit" if value >= EARLIEST_US // 1_000_000 else "out_of_range"


def _value_at(body: bytes, where: str) -> int:
    found = re.search(rb'"' + where.rsplit(".", 1)[-1].encode() + rb'"\s*:\s*(-?\d+)', body)
    return int(found.group(1)) if found else 0


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
