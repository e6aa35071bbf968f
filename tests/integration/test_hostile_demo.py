"""Records that real pipelines met, written into the running demo: each is a dead letter, and no output changes."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_demo_runs import CONFIG, environment, none_left, noted_place, twincast
from worker_process import PARTITIONS, Stage

from pipelines.backtest import backtest
from pipelines.ingest.recording import read_recording
from pipelines.log import LogRecord, UnknownTopicError
from pipelines.partitions import partition_of
from pipelines.samples import RAMP, WARM, sample
from pipelines.settings import parse_slo
from pipelines.warmth import read_warm
from schemas.codec import encode
from schemas.requests import RequestFinished
from schemas.topics import DLQ, FORECASTS, OUTPUTS, REQUESTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

HEADERS = [("trace", b"\x00\xff"), ("trace", b"again")]
DAY_US = 24 * 3600 * 1_000_000
Written = tuple[bytes | None, bytes | None, list[Any]]


def finished(deployment: str, request_id: str, at_us: int, **changes: Any) -> bytes:
    fields = {"arrived_us": at_us - 500_000, "first_token_us": at_us - 400_000, "isl_tokens": 30, "osl_tokens": 4}
    return encode(RequestFinished(deployment=deployment, request_id=request_id, at_us=at_us, **(fields | changes)))


def hostile(deployment: str, at_us: int) -> list[tuple[str, bytes | None, bytes]]:
    """Reason, key and value of records that must end in the dead letters; `at_us` is near the present event time."""
    good = finished(deployment, "hostile", at_us)
    stamp, key = str(at_us).encode(), deployment.encode()

    def altered(old: bytes, new: bytes) -> bytes:
        if old not in good:
            raise AssertionError(f"no {old!r} in {good!r}")
        return good.replace(old, new)

    return [
        ("invalid_utf8", key, altered(b'"hostile"', b'"r-\xff"')),
        ("non_finite", key, altered(b'"isl_tokens":30', b'"isl_tokens":NaN')),
        ("non_finite", key, altered(b'"isl_tokens":30', b'"isl_tokens":1e400')),
        ("int_out_of_range", key, altered(stamp, b"99999999999999999999")),
        ("timestamp_unit", key, altered(stamp, stamp[:13])),
        ("future_clock", key, finished(deployment, "future", at_us + DAY_US).replace(b",", b" , ")),
        ("negative_duration", key, finished(deployment, "backwards", at_us, arrived_us=at_us + 5, first_token_us=None)),
        ("schema_version", key, altered(b'"isl_tokens":30', b'"isl_tokens":30,"schema_version":99')),
        ("not_json", None, b"\x0a\x1d\x0a\x0b\x0a\x09\x0a\x03svc"),
        ("bad_type", b"\xff\xfe", altered(b'"osl_tokens":4', b'"osl_tokens":true')),
        ("out_of_range", b"another", altered(b'"osl_tokens":4', b'"osl_tokens":10000000000000000000')),
    ]


def test_hostile_records_in_the_running_demo_are_dead_letters_and_nothing_else_changes(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    recording = read_recording(sample(RAMP))
    environ = environment(tmp_path, TWINCAST_BOOTSTRAP=kafka_bootstrap)
    with twincast(environ, "demo", "--speed", "20", "--json") as process:
        stage = Stage(noted_place(tmp_path, process), tmp_path, CONFIG)
        wait_for_forecasts(stage, 6)
        newest_us = int(json.loads(stage.records(FORECASTS.name)[-1].value or b"")["as_of_us"])
        bad = hostile(recording.deployment, newest_us)
        partition = partition_of(recording.deployment, PARTITIONS)
        tombstone: Written = (b"r-1", None, [])
        stage.send(REQUESTS.name, partition, [tombstone, *((key, value, HEADERS) for _, key, value in bad)])
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    summary = json.loads(out)
    letters = sorted(stage.records(DLQ.name), key=offset_of)
    assert [(reason_of(letter), letter.key, letter.value) for letter in letters] == bad
    for letter in letters:
        assert list(letter.headers)[: len(HEADERS)] == HEADERS
        assert header(letter, "twincast_position").startswith(f"{REQUESTS.name}[{partition}]@")
    replay = backtest(
        recording,
        stage.settings.core(recording.deployment),
        slos=(parse_slo("ttft_s:0.95:0.5"),),
        warm=read_warm(sample(WARM)),
    )
    for topic in OUTPUTS:
        expected = [without_offsets(message.value) for message in replay.outputs if message.topic == topic.name]
        assert [without_offsets(record.value or b"") for record in stage.records(topic.name)] == expected
    told = summary["balance"]
    assert told["dead_letter"] + told["quarantined"] == summary["dead_letters"] == len(bad)
    assert told["tombstone"] == 1
    assert told["applied"] == replay.balance["applied"]
    assert told["in"] == replay.balance["in"] + len(bad) + 1
    assert none_left(tmp_path) == []


def wait_for_forecasts(stage: Stage, many: int) -> None:
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        with suppress(UnknownTopicError):  # the demo is still on the way to making it
            if len(stage.records(FORECASTS.name)) >= many:
                return
        time.sleep(0.2)
    raise AssertionError(f"fewer than {many} forecasts within a minute")


def header(record: LogRecord, name: str) -> str:
    return dict(record.headers)[name].decode()


def reason_of(letter: LogRecord) -> str:
    return header(letter, "twincast_reason")


def offset_of(letter: LogRecord) -> int:
    return int(header(letter, "twincast_position").rpartition("@")[2])


def without_offsets(output: bytes) -> bytes:
    """An output without the offsets of its lineage: bad records take offsets too."""
    head, _, rest = output.partition(b'"offsets":[')
    return head + rest.partition(b"]")[2]
