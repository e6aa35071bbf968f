"""Records that real pipelines met, in our own wire format: how each ends, what is kept of it, and who is not stopped.

Numbers are those of the list these come from; the OTLP halves of rows 2 to 6 and 9 to 12 stand in `test_ingest_otlp`.
"""

import json
import time
from collections import Counter

import msgspec
import pytest

from pipelines.outputs import Outgoing
from pipelines.runtime import Incoming, Runtime, read_snapshot
from schemas.codec import encode
from schemas.requests import RequestAborted, RequestArrived, RequestFinished
from schemas.topics import DLQ, REQUESTS
from twin.core_parts import digest
from twin.settings import CoreSettings

AT_US = 1_796_052_001_416_172
DAY_US = 24 * 3600 * 1_000_000
SETTINGS = CoreSettings(steps_expected=False, period_s=3600.0)
HEADERS = (("trace", b"\x00\xff"),)


def finished(name: str, at_us: int = AT_US, **changes: object) -> RequestFinished:
    fields = {"arrived_us": at_us - 500_000, "isl_tokens": 30, "osl_tokens": 4, "first_token_us": at_us - 400_000}
    return RequestFinished(deployment="d", request_id=name, at_us=at_us, **(fields | changes))  # type: ignore[arg-type]


class Feed:
    """A runtime of one partition, fed message by message; keeps what it wrote to the dead letters."""

    def __init__(self) -> None:
        self.runtime = Runtime(lambda _: SETTINGS, partitions=1)
        self.offset = 0
        self.letters: list[Outgoing] = []

    def send(self, value: bytes | None, key: bytes | None = b"d") -> float:
        """Feed one message; CPU seconds it took."""
        started = time.process_time()
        todo = self.runtime.handle(Incoming(REQUESTS.name, 0, self.offset, key, value, HEADERS))
        taken_s = time.process_time() - started
        self.offset += 1
        self.letters += [write for write in todo.writes if write.topic == DLQ.name]
        return taken_s

    def restart(self, without: str = "") -> None:
        """Go on with a fresh runtime from a snapshot, as an older program would have left it if a part is left out."""
        (state,) = self.runtime.snapshots(0) or []
        snapshot = read_snapshot(state.value)
        plain = dict(snapshot.state)
        plain["intake"] = {name: part for name, part in plain["intake"].items() if name != without}
        self.runtime = Runtime(lambda _: SETTINGS, partitions=1)
        self.runtime.restore(encode(msgspec.structs.replace(snapshot, state=plain, sha256=digest(plain))))

    @property
    def outcomes(self) -> Counter[str]:
        """Units by outcome, without zeros."""
        return Counter({name: many for name, many in self.runtime.balance().items() if many and name != "in"})

    @property
    def watermark_us(self) -> int:
        """The core's watermark."""
        return self.runtime.cores["d"]._intake.clock.watermark_us


@pytest.fixture
def feed() -> Feed:
    made = Feed()
    made.send(encode(finished("first", AT_US - 9_000_000)))
    made.send(encode(finished("second", AT_US - 1_000_000)))  # the first one is applied now: code is loaded
    return made


def header(letter: Outgoing, name: str) -> bytes:
    return dict(letter.headers)[name]


def altered(old: bytes, new: bytes) -> bytes:
    value = encode(finished("bad"))
    assert old in value
    return value.replace(old, new)


STAMP = str(AT_US).encode()
BAD = {
    "2 invalid UTF-8": (altered(b'"bad"', b'"r-\xff"'), "invalid_utf8"),
    "3 NaN": (altered(b'"isl_tokens":30', b'"isl_tokens":NaN'), "non_finite"),
    "3 1e400": (altered(b'"isl_tokens":30', b'"isl_tokens":1e400'), "non_finite"),
    "3 Infinity": (altered(b'"isl_tokens":30', b'"isl_tokens":Infinity'), "non_finite"),
    "4 twenty digits": (altered(STAMP, b"99999999999999999999"), "int_out_of_range"),
    "5 seconds": (altered(STAMP, STAMP[:10]), "timestamp_unit"),
    "5 milliseconds": (altered(STAMP, STAMP[:13]), "timestamp_unit"),
    "5 nanoseconds": (altered(STAMP, STAMP + b"000"), "timestamp_unit"),
    "13 version 99": (altered(b'"isl_tokens":30', b'"isl_tokens":30,"schema_version":99'), "schema_version"),
    "13 protobuf": (b"\x0a\x1d\x0a\x0b\x0a\x09\x0a\x03svc", "not_json"),
    "15 boolean": (altered(b'"osl_tokens":4', b'"osl_tokens":true'), "bad_type"),
    "15 1e19": (altered(b'"osl_tokens":4', b'"osl_tokens":10000000000000000000'), "out_of_range"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_kept_byte_by_byte_and_stops_nobody(feed: Feed, name: str) -> None:
    value, reason = BAD[name]
    watermark_us = feed.watermark_us
    feed.send(value, key=b"\xff\xfe")
    (letter,) = feed.letters
    assert (letter.value, letter.key) == (value, b"\xff\xfe")
    assert set(HEADERS) <= set(letter.headers)
    assert header(letter, "twincast_reason") == reason.encode()
    assert header(letter, "twincast_position") == f"{REQUESTS.name}[0]@2".encode()
    assert feed.watermark_us == watermark_us
    assert feed.send(encode(finished("good"))) < 2.0
    assert feed.outcomes["dead_letter"] == 1
    assert feed.watermark_us > watermark_us


def test_1_a_tombstone_is_no_error(feed: Feed) -> None:
    feed.send(None, key=b"d")
    feed.send(None, key=b"r-1")
    assert not feed.letters
    assert feed.outcomes["tombstone"] == 2


def test_7_one_clock_in_the_future_is_flagged_and_moves_nothing(feed: Feed) -> None:
    feed.send(encode(finished("future", AT_US + DAY_US)))
    for place in range(10):
        feed.send(encode(finished(f"honest{place}", AT_US + place * 100_000)))
    assert feed.outcomes["quarantined"] == 1
    assert feed.outcomes["late"] == 0
    assert feed.watermark_us < AT_US + 2_000_000
    assert [header(letter, "twincast_reason") for letter in feed.letters] == [b"future_clock"]


def test_7_what_was_held_back_for_its_clock_is_kept_byte_by_byte(feed: Feed) -> None:
    spaced = [encode(finished(f"future{place}", AT_US + DAY_US)).replace(b",", b" , ") for place in range(2)]
    for value in spaced:
        feed.send(value, key=b"\xff")
    feed.send(encode(finished("honest")))
    assert [(letter.value, letter.key) for letter in feed.letters] == [(value, b"\xff") for value in spaced]
    for place, letter in enumerate(feed.letters):
        assert set(HEADERS) <= set(letter.headers)
        assert header(letter, "twincast_position") == f"{REQUESTS.name}[0]@{2 + place}".encode()


def test_7_what_was_held_back_is_kept_byte_by_byte_by_the_worker_that_comes_after(feed: Feed) -> None:
    spaced = encode(finished("future", AT_US + DAY_US)).replace(b",", b" , ")
    feed.send(spaced, key=b"\xff")
    feed.restart()
    feed.send(encode(finished("honest")))
    (letter,) = feed.letters
    assert (letter.value, letter.key, letter.headers[: len(HEADERS)]) == (spaced, b"\xff", HEADERS)


def test_a_snapshot_that_holds_no_messages_is_read_and_its_letters_are_encoded_again(feed: Feed) -> None:
    future = finished("future", AT_US + DAY_US)
    feed.send(encode(future).replace(b",", b" , "))
    feed.restart(without="originals")
    feed.send(encode(finished("honest")))
    (letter,) = feed.letters
    assert (letter.value, header(letter, "twincast_reason")) == (encode(future), b"future_clock")


def test_8_the_same_record_twice_counts_once(feed: Feed) -> None:
    feed.send(encode(finished("twice")))
    feed.send(encode(finished("twice")))
    assert (feed.outcomes["duplicate"], feed.letters) == (1, [])


@pytest.mark.parametrize("restarts", [False, True])
def test_8_of_two_contents_under_one_id_neither_is_learned_and_both_are_kept_byte_by_byte(
    feed: Feed, restarts: bool
) -> None:
    told = [encode(finished("twice", osl_tokens=tokens)).replace(b",", b" , ") for tokens in (4, 999, 4, 5)]
    feed.send(told[0], key=b"\xff")
    watermark_us = feed.watermark_us
    if restarts:
        feed.restart()
    feed.send(told[1], key=b"\xfe")
    assert [(letter.value, letter.key) for letter in feed.letters] == [(told[0], b"\xff"), (told[1], b"\xfe")]
    for letter in feed.letters:
        assert header(letter, "twincast_reason") == b"id_conflict"
        assert set(HEADERS) <= set(letter.headers)
    feed.send(told[2])  # whatever is told under this id from now on is believed no more
    feed.send(told[3])
    assert [letter.value for letter in feed.letters[2:]] == told[2:]
    assert feed.watermark_us == watermark_us
    applied = feed.outcomes["applied"]
    assert feed.send(encode(finished("good", AT_US + 3_000_000))) < 2.0
    assert (feed.outcomes["quarantined"], feed.outcomes["applied"]) == (4, applied)


def test_8_what_was_applied_before_the_conflict_showed_stands_and_the_second_is_refused(feed: Feed) -> None:
    feed.send(encode(finished("twice")))
    feed.send(encode(finished("later", AT_US + 3_000_000)))
    applied = feed.outcomes["applied"]
    other = encode(finished("twice", osl_tokens=999))
    feed.send(other)
    assert ([letter.value for letter in feed.letters], feed.outcomes["quarantined"]) == ([other], 1)
    feed.send(encode(finished("twice")))
    assert (feed.outcomes["duplicate"], feed.outcomes["applied"]) == (1, applied)


def test_9_an_end_before_its_start_is_quarantined(feed: Feed) -> None:
    feed.send(encode(finished("backwards", arrived_us=AT_US + 5, first_token_us=None)))
    assert [header(letter, "twincast_reason") for letter in feed.letters] == [b"negative_duration"]


def test_10_and_11_an_abort_counts_and_gives_no_latency(feed: Feed) -> None:
    arrived = RequestArrived(deployment="d", request_id="a", at_us=AT_US, isl_tokens=9)
    aborted = RequestAborted(deployment="d", request_id="a", at_us=AT_US + 60_000_000, arrived_us=AT_US, reason="gone")
    feed.send(encode(arrived))
    feed.send(encode(aborted))
    assert not feed.letters
    assert "ttft" not in json.dumps(json.loads(encode(aborted)))
    assert feed.outcomes["quarantined"] == 0


def test_13_the_next_version_none_and_confluent_framing_are_read(feed: Feed) -> None:
    feed.send(encode(finished("v2", AT_US + 1)).replace(b'"isl_tokens"', b'"schema_version":2,"isl_tokens"'))
    feed.send(b"\x00\x00\x00\x00\x07" + encode(finished("framed", AT_US + 2)))
    assert not feed.letters


def test_15_identity_comes_from_the_payload_whatever_the_key(feed: Feed) -> None:
    for place, key in enumerate((None, b"\xff\xfe", b"another-deployment")):
        feed.send(encode(finished(f"k{place}", AT_US + place)), key=key)
    assert not feed.letters
    assert set(feed.runtime.cores) == {"d"}


def test_15_a_latency_no_request_has_is_quarantined(feed: Feed) -> None:
    feed.send(encode(finished("ages", arrived_us=AT_US - 2 * DAY_US, first_token_us=None)))
    assert [header(letter, "twincast_reason") for letter in feed.letters] == [b"out_of_range"]


def test_every_unit_is_accounted_for_after_all_of_them(feed: Feed) -> None:
    for value, _ in BAD.values():
        feed.send(value)
    feed.send(None)
    feed.send(encode(finished("good")))
    balance = feed.runtime.balance()
    assert balance["in"] == len(BAD) + 4
    assert sum(many for name, many in balance.items() if name != "in") == balance["in"]
