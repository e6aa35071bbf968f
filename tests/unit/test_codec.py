"""Laws of the codec: round trips, stable refusal codes, steps refused one by one."""

from typing import get_args

import msgspec
import pytest

from schemas.base import NEWEST_READABLE_VERSION, Record
from schemas.codec import MAX_MESSAGE_BYTES, SchemaError, decode, encode
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import Step, StepBatch, StepRow
from schemas.topics import REQUESTS, STEPS, TOPICS

AT_US = 1_796_052_001_416_172
FINISHED = RequestFinished(
    deployment="d", request_id="r1", at_us=AT_US, arrived_us=AT_US - 9, isl_tokens=3, osl_tokens=4
)


def finished_with(old: bytes, new: bytes) -> bytes:
    data = encode(FINISHED)
    assert old in data
    return data.replace(old, new)


def test_a_record_survives_the_wire() -> None:
    assert decode(REQUESTS.name, encode(FINISHED)).record == FINISHED


def test_a_step_batch_survives_the_wire_and_counts_its_steps() -> None:
    steps = tuple(
        Step(step=i, start_us=AT_US + i, duration_us=8, rows=(StepRow("r", "decode", 1, 5),)) for i in range(3)
    )
    batch = StepBatch(deployment="d", engine="0", epoch=2, steps=steps)
    decoded = decode(STEPS.name, encode(batch))
    assert decoded.record == batch
    assert decoded.units == 3


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"r1"', b'"r\xff"', "invalid_utf8"),
        (b'"isl_tokens":3', b'"isl_tokens":NaN', "non_finite"),
        (b'"isl_tokens":3', b'"isl_tokens":1e400', "non_finite"),
        (b'"isl_tokens":3', b'"isl_tokens":-Infinity', "non_finite"),
        (str(AT_US).encode(), b"99999999999999999999", "int_out_of_range"),
        (str(AT_US).encode(), str(AT_US // 1_000_000).encode(), "timestamp_unit"),
        (str(AT_US).encode(), str(AT_US // 1_000).encode(), "timestamp_unit"),
        (str(AT_US).encode(), str(AT_US * 1_000).encode(), "timestamp_unit"),
        (b'"osl_tokens":4', b'"osl_tokens":true', "bad_type"),
        (b'"osl_tokens":4', b'"osl_tokens":-4', "out_of_range"),
        (b'"osl_tokens":4', b'"osl_tokens":"4"', "bad_type"),
        (b',"osl_tokens":4', b"", "missing_field"),
        (b'"finished"', b'"vanished"', "unknown_event"),
        (b'"osl_tokens":4}', b'"osl_tokens":4', "truncated"),
        (b'{"event"', b'{event"', "not_json"),
        (b'"osl_tokens":4', b'"osl_tokens":4,"schema_version":99', "schema_version"),
    ],
)
def test_a_bad_record_is_refused_with_its_reason(old: bytes, new: bytes, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        decode(REQUESTS.name, finished_with(old, new))
    assert caught.value.reason == reason
    assert REQUESTS.name in str(caught.value)


@pytest.mark.parametrize(
    "value", [b"", b"\x0a\x05hello", b"null", b"[]", b"{}", b"[" * 5000, b"x" * (MAX_MESSAGE_BYTES + 1)]
)
@pytest.mark.parametrize("topic", [name for name, topic in TOPICS.items() if topic.type is not None])
def test_no_bytes_raise_anything_else(topic: str, value: bytes) -> None:
    with pytest.raises(SchemaError):
        decode(topic, value)


def test_the_next_schema_version_and_unknown_fields_still_read() -> None:
    newer = finished_with(
        b'"osl_tokens":4', b'"osl_tokens":4,"schema_version":%d,"mood":"good"' % NEWEST_READABLE_VERSION
    )
    expected = msgspec.structs.replace(FINISHED, schema_version=NEWEST_READABLE_VERSION)
    assert decode(REQUESTS.name, newer).record == expected


def test_every_topic_carries_records_with_a_version() -> None:
    for topic in TOPICS.values():
        for kind in get_args(topic.type) or (topic.type,):
            assert kind is None or issubclass(kind, Record), f"{topic.name}: {kind}"


def test_confluent_framing_is_stripped() -> None:
    assert decode(REQUESTS.name, b"\x00\x00\x00\x00\x07" + encode(FINISHED)).record == FINISHED


def test_one_bad_step_refuses_only_itself() -> None:
    good = Step(step=1, start_us=AT_US, duration_us=8)
    batch = msgspec.to_builtins(StepBatch(deployment="d", engine="0", steps=(good, good, good)))
    batch["steps"] = list(batch["steps"])
    batch["steps"][1] = {"step": 2, "start_us": AT_US, "duration_us": -8}
    decoded = decode(STEPS.name, msgspec.json.encode(batch))
    assert [index for index, _ in decoded.refused] == [1]
    assert decoded.refused[0][1].reason == "out_of_range"
    assert decoded.record.steps == (good, good)
    assert decoded.units == 3


def test_an_arrival_has_no_word_for_the_future() -> None:
    fields = set(RequestArrived.__struct_fields__)
    assert not fields & {"osl_tokens", "max_tokens", "first_token_us"}
