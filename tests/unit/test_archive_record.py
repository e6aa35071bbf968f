"""Recording a log into an archive and reading it back: nothing lost, doubled, changed or out of order."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_archives import START_MS, plain_log, recorded

import pipelines.archive.capture as capture
import pipelines.archive.reading as reading
from pipelines.archive.capture import Wanted, record
from pipelines.archive.manifest import NAME, read_manifest, sha256_of, write_manifest
from pipelines.errors import ConfigError
from pipelines.log import LogRecord, TopicPartition
from schemas.topics import ENGINES

A, B = "topic.a", "topic.b"


def row(number: int, topic: str = A, partition: int = 0, at_ms: int | None = None) -> LogRecord:
    value = bytes([number % 256]) * 200
    return LogRecord(topic, partition, number, START_MS + number if at_ms is None else at_ms, b"k", value, ())


def many(count: int = 120) -> list[LogRecord]:
    return [row(i, (A, B)[i % 2], i // 2 % 2) for i in range(count)]


def read(folder: Path) -> list[LogRecord]:
    return [each for _, each in reading.open_archive(folder).records()]


def by_place(records: list[LogRecord]) -> dict[tuple[str, int], list[LogRecord]]:
    found: dict[tuple[str, int], list[LogRecord]] = {}
    for each in records:
        found.setdefault((each.topic, each.partition), []).append(each)
    return found


headers = st.lists(st.tuples(st.sampled_from(["a", "a", "trace", ""]), st.binary(max_size=4)), max_size=3).map(tuple)
some_bytes = st.binary(max_size=8)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(0, 1), some_bytes, st.none() | some_bytes, headers),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.integers(0, 5), min_size=40, max_size=40),
)
def test_what_goes_in_comes_out_in_event_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], times: list[int]
) -> None:
    sent = [
        LogRecord(topic, partition, 0, START_MS + times[i], key, value, kept)
        for i, (topic, partition, key, value, kept) in enumerate(rows)
    ]
    folder = tmp_path_factory.mktemp("archive") / "a"
    recorded(asyncio.run(plain_log(sent)), folder, *sorted({each.topic for each in sent}), part_bytes=20)
    placed = list(reading.open_archive(folder).records())
    expected = [each._replace(offset=offset) for rows in by_place(sent).values() for offset, each in enumerate(rows)]
    assert sorted(by_place([each for _, each in placed]).items()) == sorted(by_place(expected).items())
    keys = [(at_ms, each.topic, each.partition, each.offset) for at_ms, each in placed]
    assert keys == sorted(keys)
    for rows_of_one in by_place([each for _, each in placed]).values():
        assert [each.offset for each in rows_of_one] == list(range(len(rows_of_one)))


def test_ties_go_by_topic_partition_and_offset_even_across_batches(tmp_path: Path) -> None:
    sent = [row(i, topic, partition, START_MS) for topic in (B, A) for partition in (1, 0) for i in range(30)]
    recorded(asyncio.run(plain_log(sent)), tmp_path / "a", A, B, part_bytes=400)
    found = [(each.topic, each.partition, each.offset) for each in read(tmp_path / "a")]
    assert found == [(topic, partition, i) for topic in (A, B) for partition in (0, 1) for i in range(30)]


def test_reading_ahead_changes_no_record_and_ends_with_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(asyncio.run(plain_log(many(400))), tmp_path / "a", A, B, part_bytes=2_000)
    ahead = read(tmp_path / "a")
    monkeypatch.setattr(reading, "MOST_AHEAD", 1)
    assert read(tmp_path / "a") == ahead
    monkeypatch.undo()
    before = threading.active_count()
    batches = reading.open_archive(tmp_path / "a").batches()
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("part_bytes", [1_500, 10**6])
def test_partitions_are_interleaved_by_time_and_a_clock_that_runs_back_keeps_offsets_in_order(
    tmp_path: Path, part_bytes: int
) -> None:
    places = [(topic, partition) for topic in (A, B) for partition in (0, 1)]
    sent = [
        row(i, *place, at_ms=START_MS + 7 * i + number - (20 if i % 10 == 3 else 0))
        for number, place in enumerate(places)
        for i in range(60)
    ]
    recorded(asyncio.run(plain_log(sent)), tmp_path / "a", A, B, part_bytes=part_bytes)
    expected: list[tuple[int, str, int, int]] = []
    newest_ms: dict[tuple[str, int], int] = {}
    for each in sent:
        place = (each.topic, each.partition)
        newest_ms[place] = max(newest_ms.get(place, 0), each.timestamp_ms)
        expected.append((newest_ms[place], each.topic, each.partition, each.offset))
    found = [
        (at_ms, each.topic, each.partition, each.offset)
        for at_ms, each in reading.open_archive(tmp_path / "a").records()
    ]
    assert found == sorted(expected)


class _Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_and_started_again_it_is_as_if_nothing_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    log = asyncio.run(plain_log(many()))
    whole = recorded(log, tmp_path / "whole", A, B)
    kills = 0
    for after in range(200):
        folder = tmp_path / f"{when}{after}"
        left = after

        def dying(where: Path, manifest: Any) -> None:
            nonlocal left
            if when == "after" or left:
                write_manifest(where, manifest)
            left -= 1
            if left < 0:
                raise _Killed

        monkeypatch.setattr(capture, "write_manifest", dying)
        try:
            recorded(log, folder, A, B)
        except _Killed:
            kills += 1
        else:
            break
        monkeypatch.setattr(capture, "write_manifest", write_manifest)
        if not (folder / NAME).exists() or not read_manifest(folder).complete:
            recorded(log, folder, A, B)
        assert read_manifest(folder) == whole
        assert read(folder) == read(tmp_path / "whole")
    assert kills > 8


def test_it_stops_at_the_ends_it_saw_first_also_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        log = await plain_log(many(20))
        monkeypatch.setattr(capture._Capture, "take", _die)
        with pytest.raises(_Killed):
            await record(log, tmp_path / "a", Wanted(topics=(A, B)))
        monkeypatch.undo()
        async with log.producer() as producer:
            await producer.send(A, key=b"k", value=b"later", partition=0, timestamp_ms=START_MS)
        await record(log, tmp_path / "a", Wanted(topics=(A, B)))

    asyncio.run(act())
    assert sorted(read(tmp_path / "a")) == sorted(
        each._replace(offset=i) for rows in by_place(many(20)).values() for i, each in enumerate(rows)
    )


async def _die(*_: object) -> None:
    raise _Killed


def test_other_arguments_do_not_go_on_with_an_archive(tmp_path: Path) -> None:
    log = asyncio.run(plain_log(many(20)))
    recorded(log, tmp_path / "a", A)
    with pytest.raises(ConfigError, match="complete archive of 10 records"):
        recorded(log, tmp_path / "a", A)
    manifest = read_manifest(tmp_path / "a")
    write_manifest(tmp_path / "a", msgspec.structs.replace(manifest, complete=False))
    with pytest.raises(ConfigError, match="other arguments"):
        recorded(log, tmp_path / "a", A, B)
    with pytest.raises(ConfigError, match="not complete"):
        reading.open_archive(tmp_path / "a")


def test_only_the_time_asked_for_is_taken_but_compacted_topics_whole(tmp_path: Path) -> None:
    sent = [row(i, topic) for topic in (A, ENGINES.name) for i in range(20)]
    wanted = Wanted(topics=(A, ENGINES.name), from_ms=START_MS + 5, to_ms=START_MS + 12)
    asyncio.run(record(asyncio.run(plain_log(sent)), tmp_path / "a", wanted))
    found = by_place(read(tmp_path / "a"))
    assert [each.offset for each in found[A, 0]] == list(range(5, 12))
    assert [each.offset for each in found[ENGINES.name, 0]] == list(range(12))
    with pytest.raises(ConfigError, match="--from must lie before --to"):
        Wanted(topics=(A,), from_ms=2, to_ms=2)


def test_offsets_that_the_log_does_not_have_are_told_as_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = asyncio.run(plain_log([row(i) for i in range(20)], partitions=1))
    monkeypatch.setattr(capture, "SILENCE_S", 0.01)
    monkeypatch.setattr(capture, "SECOND_LOOK_S", 0.01)
    real = log.reader

    def holed(positions: Mapping[TopicPartition, int]) -> Any:
        reader = real(positions)
        get = reader.get

        async def without(**arguments: Any) -> list[LogRecord]:
            return [each for each in await get(**arguments) if each.offset not in (0, 7, 8, 19)]

        reader.get = without  # type: ignore[method-assign]
        reader.position = lambda _: 19  # type: ignore[method-assign]  # Kafka's tells of records given out alone
        return reader

    monkeypatch.setattr(log, "reader", holed)
    manifest = recorded(log, tmp_path / "a", A)
    (entry,) = manifest.partitions
    assert entry.gaps == ((0, 1), (7, 9), (19, 20))
    assert (entry.first_offset, entry.last_offset, entry.records) == (1, 18, 16)
    assert (entry.first_ms, entry.last_ms) == (START_MS + 1, START_MS + 18)


def test_a_log_that_is_slow_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = asyncio.run(plain_log([row(i) for i in range(20)], partitions=1))
    monkeypatch.setattr(capture, "SILENCE_S", 0.01)
    real, opened = log.reader, 0

    def slow(positions: Mapping[TopicPartition, int]) -> Any:
        nonlocal opened
        opened += 1
        reader = real(positions)
        get, silent = reader.get, 10 if opened == 1 else 0

        async def late(**arguments: Any) -> list[LogRecord]:
            nonlocal silent
            silent -= 1
            return [] if silent >= 0 else await get(**arguments)

        reader.get = late  # type: ignore[method-assign]
        return reader

    monkeypatch.setattr(log, "reader", slow)
    (entry,) = recorded(log, tmp_path / "a", A).partitions
    assert (entry.records, entry.gaps, opened) == (20, (), 2)


def _resigned(folder: Path) -> None:
    """Make the manifest agree with a file that was put into the archive."""
    manifest = read_manifest(folder)
    (entry,) = manifest.partitions
    parts = tuple(
        msgspec.structs.replace(
            part,
            sha256=sha256_of(folder / part.file),
            size_bytes=(folder / part.file).stat().st_size,
        )
        for part in entry.parts
    )
    write_manifest(folder, msgspec.structs.replace(manifest, partitions=(msgspec.structs.replace(entry, parts=parts),)))


def _archive(folder: Path) -> Path:
    recorded(asyncio.run(plain_log([row(i) for i in range(20)], partitions=1)), folder, A, part_bytes=10**6)
    return next(folder.glob("*/*/*.parquet"))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    part = _archive(tmp_path / "a")
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="bytes, its manifest says"):
        reading.open_archive(tmp_path / "a")
    _resigned(tmp_path / "a")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        read(tmp_path / "a")


def test_a_changed_byte_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    part = _archive(tmp_path / "a")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(ConfigError, match="sha256"):
        reading.open_archive(tmp_path / "a")
    part.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        reading.open_archive(tmp_path / "a")


def test_foreign_parquet_is_refused_by_its_columns(tmp_path: Path) -> None:
    part = _archive(tmp_path / "a")
    pq.write_table(pa.table({"topic": ["x"], "offset": [1]}), part)
    _resigned(tmp_path / "a")
    with pytest.raises(ConfigError, match="no part of an archive: column partition is missing"):
        read(tmp_path / "a")


def test_records_that_are_not_those_counted_are_refused(tmp_path: Path) -> None:
    _archive(tmp_path / "a")
    manifest = read_manifest(tmp_path / "a")
    (entry,) = manifest.partitions
    parts = tuple(msgspec.structs.replace(part, records=part.records + 1) for part in entry.parts)
    counted = msgspec.structs.replace(entry, parts=parts, records=sum(part.records for part in parts))
    write_manifest(tmp_path / "a", msgspec.structs.replace(manifest, partitions=(counted,)))
    with pytest.raises(ConfigError, match="holds 20 records, its manifest says 21"):
        read(tmp_path / "a")


@pytest.mark.parametrize("wrong", [{"records": 9}, {"last_offset": 77_777}, {"first_offset": 3}, {"parts": ()}])
def test_a_partition_that_is_not_the_sum_of_its_files_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    _archive(tmp_path / "a")
    manifest = read_manifest(tmp_path / "a")
    (entry,) = manifest.partitions
    changed = msgspec.structs.replace(entry, **wrong)  # type: ignore[arg-type]
    write_manifest(tmp_path / "a", msgspec.structs.replace(manifest, partitions=(changed,)))
    with pytest.raises(ConfigError, match="is damaged"):
        reading.open_archive(tmp_path / "a")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"layout": "other", "version": 1}', '{"layout": "twincast-archive"'])
def test_something_else_than_a_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ConfigError, match="manifest"):
        reading.open_archive(tmp_path)


def test_a_topic_that_is_not_there_is_named_with_one_that_is(tmp_path: Path) -> None:
    log = asyncio.run(plain_log(many(4)))
    with pytest.raises(ConfigError, match=r"no topic 'topic[.]c'; did you mean topic[.]a"):
        recorded(log, tmp_path / "a", A, "topic.c")
    with pytest.raises(ConfigError, match=r"no topic 'twincast[.]request[.]v1'; did you mean twincast[.]requests[.]v1"):
        recorded(log, tmp_path / "a", "twincast.request.v1")
