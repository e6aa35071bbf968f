"""A worker on a real Apache Kafka: what it writes is what a replay writes, whatever is killed on the way."""

import itertools
import statistics
import time
from pathlib import Path

import pytest
from worker_process import PARTITIONS, Stage, messages, recording_of, unique

from pipelines.partitions import partition_of
from schemas.topics import DLQ, FORECASTS, OUTPUTS, REQUESTS, SCORES

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SECONDS = 60.0


def outputs(stage: Stage, topic: str) -> list[bytes]:
    return [record.value or b"" for record in stage.records(topic)]


def test_live_equals_replay_byte_for_byte(kafka_bootstrap: str, tmp_path: Path) -> None:
    recording = recording_of(130.0)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        worker = stage.worker()
        worker.wait_ready()
        worker.wait_done(stage.play(messages(recording), speed=40.0))
        assert worker.stop() == 0
        replay = stage.undisturbed(recording)
        for topic in OUTPUTS:
            expected = [message.value for message in replay.outputs if message.topic == topic.name]
            assert outputs(stage, topic.name) == expected
        assert len(outputs(stage, FORECASTS.name)) >= 40
        assert outputs(stage, SCORES.name)
        assert stage.cores()["d"].state_hash() == replay.core.state_hash()


def test_a_backlog_gives_the_same_as_a_live_run(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Everything is in the log before the worker starts, so topics are read at very different paces."""
    recording = recording_of(SECONDS)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        sent = stage.play(messages(recording))
        worker = stage.worker()
        worker.wait_done(sent)
        assert worker.stop() == 0
        replay = stage.undisturbed(recording)
        expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
        assert outputs(stage, FORECASTS.name) == expected
        assert stage.cores()["d"].accounts.as_dict() == replay.core.accounts.as_dict()


def test_killed_and_started_again_it_loses_and_doubles_nothing(kafka_bootstrap: str, tmp_path: Path) -> None:
    recording = recording_of(SECONDS)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        first = stage.worker()
        first.wait_ready()
        playing = stage.playing(messages(recording), speed=4.0)
        first.wait_for(lambda report: report["written"].get(FORECASTS.name, 0) >= 6, "forecasts")
        first.kill()
        killed_ms = time.time_ns() // 1_000_000
        second = stage.worker()
        playing.join()
        second.wait_done(len(messages(recording)))
        assert second.stop() == 0
        replay = stage.undisturbed(recording)
        core = stage.cores()["d"]
        assert core.state_hash() == replay.core.state_hash()
        assert core.accounts.as_dict() == replay.core.accounts.as_dict()
        expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
        found = stage.records(FORECASTS.name)
        assert unique(found) == expected
        made_ms = [int(dict(record.headers)["twincast_made_us"]) / 1000 for record in found]
        resumed_s = (min(ms for ms in made_ms if ms > killed_ms) - killed_ms) / 1000
        assert resumed_s < 90.0  # it resumes at all; how fast is measured by tests.bench.bench_kill


def test_workers_one_two_one_lose_and_double_nothing(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Four deployments, one in each partition; a second worker comes, and is stopped again."""
    names = [
        next(n for n in (f"s{i}" for i in itertools.count()) if partition_of(n, PARTITIONS) == p) for p in range(4)
    ]
    recordings = [recording_of(SECONDS, name) for name in names]
    parts = [messages(recording) for recording in recordings]
    together = sorted(itertools.chain(*parts), key=lambda message: message.at_us)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        first = stage.worker(slot=0)
        first.wait_ready()
        playing = stage.playing(together, speed=2.0)
        second = stage.worker(slot=1)
        second.wait_ready(2)
        first.wait_ready(2)
        time.sleep(3.0)
        assert second.stop() == 0
        first.wait_ready(4)
        playing.join()
        first.wait_done(len(together))
        assert first.stop() == 0
        cores = stage.cores()
        for recording in recordings:
            replay = stage.undisturbed(recording)
            assert cores[recording.deployment].state_hash() == replay.core.state_hash()
            assert cores[recording.deployment].accounts.as_dict() == replay.core.accounts.as_dict()


BAD = [
    (b"d", b'{"request_id":"r-\xff"}', [("source", b"gateway")]),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052000000000,"isl_tokens":NaN}', []),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":99999999999999999999,"isl_tokens":1}', []),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052000,"isl_tokens":1}', []),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052000000000,"isl_tokens":true}', []),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052000000000}', []),
    (b"\xff\xfe", b"not json", [("a", b"1"), ("a", b"2")]),
    (b"d", b'{"event":"invented","deployment":"d","request_id":"r","at_us":1796052000000000}', []),
    (b"d", b'{"event":"arrived","deployment":"d","request_id":"r","at_us":1796052000000000,"isl_', []),
    (None, b"\x0a\x05proto", []),
]


def test_ten_bad_records_end_in_the_dlq_and_stop_nobody(kafka_bootstrap: str, tmp_path: Path) -> None:
    recording = recording_of(SECONDS)
    sent = messages(recording)
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        worker = stage.worker()
        worker.wait_ready()
        half = len(sent) // 2
        stage.play(sent[:half])
        worker.wait_done(half)
        partition = partition_of("d", PARTITIONS)
        again = next(m for m in sent[:half] if m.topic == REQUESTS.name)
        good = (again.key, again.value, [])
        stage.send(REQUESTS.name, partition, [record for bad in BAD for record in (bad, good)])
        stage.play(sent[half:])
        worker.wait_done(len(sent) + 2 * len(BAD))
        assert worker.stop() == 0
        letters = sorted(stage.records(DLQ.name), key=lambda letter: offset_of(dict(letter.headers)))
        assert [(letter.key, letter.value) for letter in letters] == [(key, value) for key, value, _ in BAD]
        for letter, (_, _, headers) in zip(letters, BAD, strict=True):
            assert list(letter.headers)[: len(headers)] == headers
            assert dict(letter.headers)["twincast_position"].startswith(f"{REQUESTS.name}[{partition}]@".encode())
        replay = stage.undisturbed(recording)
        expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
        plain = [strip_offsets(value) for value in outputs(stage, FORECASTS.name)]
        assert plain == [strip_offsets(value) for value in expected]
        assert worker.report["balance"]["dead_letter"] == len(BAD)
        assert worker.report["balance"]["duplicate"] == len(BAD)
        assert worker.report["balance"]["in"] == replay.balance["in"] + 2 * len(BAD)
        made_ms = [int(dict(letter.headers)["twincast_made_us"]) / 1000 for letter in letters]
        # Between two letters stands a good record, so the gap is what it waited for plus what it took. The median, as
        # a machine that runs other tests as well holds back any of them.
        assert statistics.median(later - earlier for earlier, later in itertools.pairwise(made_ms)) < 100.0


def offset_of(headers: dict[str, bytes]) -> int:
    return int(headers["twincast_position"].decode().rpartition("@")[2])


def strip_offsets(forecast: bytes) -> bytes:
    """The forecast without the offsets of its lineage: bad records take offsets too."""
    head, _, rest = forecast.partition(b'"offsets":[')
    return head + rest.partition(b"]")[2]
