"""Laws of the embedded log's files: crashes at any byte, damage, several processes, retention and compaction."""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import ConfigError
from pipelines.local.embedded import file_log
from pipelines.local.file_partition import INDEX_EVERY_FRAMES
from pipelines.local.files import FileStore
from pipelines.local.frames import LogDamagedError, Rest, frame, scan
from pipelines.local.memory import SLACK_RECORDS, MemoryPartition
from pipelines.local.stores import NewRecord
from pipelines.log import GroupBusyError, TopicPartition, TopicSpec

WHERE = TopicPartition("topic", 0)
maybe_bytes = st.none() | st.binary(max_size=20)
new_records = st.builds(
    NewRecord,
    timestamp_ms=st.integers(0, 2**50),
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=2).map(tuple),
)


def opened(directory: Path, **spec) -> FileStore:
    store = FileStore(directory)
    store.create(TopicSpec(name="topic", partitions=1, **spec))
    return store


def record(value: bytes, key: bytes | None = None, timestamp_ms: int = 0) -> NewRecord:
    return NewRecord(timestamp_ms, key, value, ())


def everything(store: FileStore) -> list:
    partition = store.partition(WHERE)
    begin, end = partition.bounds()
    return partition.read(begin, 1 + end - begin)


def values(store: FileStore) -> list[bytes]:
    return [r.value for r in everything(store)]


@settings(max_examples=60, deadline=None)
@given(st.lists(new_records, min_size=1, max_size=6), st.data())
def test_a_crash_at_any_byte_leaves_a_prefix_and_writing_goes_on(records, data):
    with tempfile.TemporaryDirectory() as scratch:
        store = opened(Path(scratch))
        store.partition(WHERE).append([record(b"whole")])
        path = Path(scratch) / "topic" / "0.log"
        before = path.stat().st_size
        store.partition(WHERE).append(records)
        cut = data.draw(st.integers(before, path.stat().st_size))
        store.close()
        os.truncate(path, cut)
        if data.draw(st.booleans()):  # a machine that lost power leaves zeros
            with open(path, "ab") as file:
                file.write(bytes(data.draw(st.integers(0, 40))))
        again = opened(Path(scratch))
        kept = [NewRecord(r.timestamp_ms, r.key, r.value, r.headers) for r in everything(again)]
        assert kept == [record(b"whole"), *records][: len(kept)]
        assert kept
        assert again.partition(WHERE).append([record(b"after")]) == len(kept)
        assert values(again)[-1] == b"after"
        assert len(everything(again)) == len(kept) + 1
        again.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_in_the_middle_is_told_and_never_returned_as_a_record(data):
    pieces = [frame(offset, 0, b"key", b"value %d" % offset, ()) for offset in range(4)]
    whole = bytearray(b"".join(pieces))
    at = data.draw(st.integers(0, len(whole) - len(pieces[-1]) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = []
    with pytest.raises(LogDamagedError, match=r"x\.log is damaged at byte"):
        found.extend(scan(bytes(whole), Rest(), path="x.log"))
    assert [f.record()[1] for f in found] == [b"value %d" % offset for offset in range(len(found))]


def test_damage_names_the_file_and_the_next_step(tmp_path):
    store = opened(tmp_path)
    store.partition(WHERE).append([record(b"a" * 50), record(b"b" * 50)])
    store.close()
    path = tmp_path / "topic" / "0.log"
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"0\.log is damaged at byte \d+; restore the file, or delete"):
        everything(opened(tmp_path))


def test_two_open_logs_see_and_continue_each_other(tmp_path):
    one, two = opened(tmp_path), opened(tmp_path)
    for number in range(4 * INDEX_EVERY_FRAMES):
        store = (one, two)[number % 2]
        assert store.partition(WHERE).append([record(b"%d" % number)]) == number
    expected = [b"%d" % number for number in range(4 * INDEX_EVERY_FRAMES)]
    assert values(one) == values(two) == expected
    one.partition(WHERE).delete_before(200)
    assert two.partition(WHERE).bounds() == (200, 256)
    assert two.partition(WHERE).append([record(b"next")]) == 256
    assert values(one)[0] == b"200"
    assert values(one)[-1] == b"next"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=8), st.integers(1, 5))
def test_records_larger_than_a_chunk_are_read_whole(sizes, step):
    with tempfile.TemporaryDirectory() as scratch:
        store = opened(Path(scratch))
        store.partition(WHERE).append([record(b"v" * size * 3) for size in sizes])
        for open_store in (store, opened(Path(scratch))):
            at, found = 0, []
            while piece := open_store.partition(WHERE).read(at, step):
                found += piece
                at = piece[-1].offset + 1
            assert [len(r.value) for r in found] == [size * 3 for size in sizes]


def test_another_process_is_kept_out_of_a_group_until_it_ends(tmp_path):
    script = (
        "import sys, pathlib\n"
        "from pipelines.local.files import FileStore\n"
        "with FileStore(pathlib.Path(sys.argv[1])).membership('g'):\n"
        "    print('in', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        store = opened(tmp_path)
        with pytest.raises(GroupBusyError, match="another process is in group g"):
            store.membership("g").__enter__()
        with store.membership("h"):
            pass
        other.kill()
        other.wait()
    with store.membership("g"):
        pass


def test_a_reader_hears_of_what_another_process_wrote(tmp_path):
    async def body() -> None:
        async with file_log(tmp_path) as here, file_log(tmp_path) as there:
            await here.create_topics([TopicSpec(name="topic", partitions=1)])
            async with there.reader({WHERE: 0}) as reader, here.producer() as producer:
                waiting = asyncio.create_task(reader.get(timeout_s=10.0))
                await asyncio.sleep(0.05)
                await producer.send("topic", value=b"news")
                assert [r.value for r in await asyncio.wait_for(waiting, 1.0)] == [b"news"]

    asyncio.run(body())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=60))
def test_compaction_keeps_the_last_of_every_key_in_place(writes):
    with tempfile.TemporaryDirectory() as scratch:
        store = opened(Path(scratch), policy="compact")
        store.partition(WHERE).append([record(b"%d" % v, key=b"%d" % k) for k, v in writes])
        store.close()
        tidied = FileStore(Path(scratch), tidy_from_bytes=0)
        last = {k: (offset, v) for offset, (k, v) in enumerate(writes)}
        kept = everything(tidied)
        assert {r.offset for r in kept} >= {offset for offset, _ in last.values()}
        assert {int(r.key): int(r.value) for r in kept} == {k: v for k, (_, v) in last.items()}
        assert len(kept) <= max(2 * len(last), len(writes) if len(writes) <= 2 * len(last) else 0)
        assert tidied.partition(WHERE).append([record(b"next", key=b"n")]) == len(writes)


def test_retention_drops_what_is_too_old_when_the_log_is_opened(tmp_path):
    store = opened(tmp_path, retention_ms=1000)
    store.partition(WHERE).append([record(b"%d" % number, timestamp_ms=number * 100) for number in range(20)])
    store.close()
    later = FileStore(tmp_path, now_ms=lambda: 2500, tidy_from_bytes=0)
    assert values(later) == [b"15", b"16", b"17", b"18", b"19"]
    assert later.partition(WHERE).bounds() == (15, 20)
    for_ever = FileStore(tmp_path, now_ms=lambda: 0, tidy_from_bytes=0)
    assert len(everything(for_ever)) == 5


def test_a_full_disk_refuses_and_changes_nothing(tmp_path, monkeypatch):
    store = opened(tmp_path)
    store.partition(WHERE).append([record(b"kept")])

    def half(fd: int, data: bytes) -> int:
        """Room for the first of two equal records only."""
        if half.called:
            raise OSError(28, "No space left on device")
        half.called = True
        return write(fd, data[: len(data) // 2])

    half.called = False
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(ConfigError, match=r"cannot write to .*0\.log \(No space left on device\)"):
            store.partition(WHERE).append([record(b"lost"), record(b"lost")])
    assert values(store) == [b"kept"]
    assert store.partition(WHERE).append([record(b"next")]) == 1
    assert values(opened(tmp_path)) == [b"kept", b"next"]


def test_an_unusable_directory_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot keep the embedded log in"):
        file_log(tmp_path / "file" / "log")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=50))
def test_a_compacted_partition_in_memory_is_bounded_and_keeps_the_last(writes):
    partition = MemoryPartition(WHERE, compact=True)
    last = {9: (partition.append([record(b"0", key=b"9")]), 0)}
    for _ in range(1 + 3 * SLACK_RECORDS // len(writes)):
        for key, value in writes:
            last[key] = (partition.append([record(b"%d" % value, key=b"%d" % key)]), value)
    kept = partition.read(0, 10**6)
    assert len(kept) <= 2 * len(last) + SLACK_RECORDS
    assert [r.offset for r in kept] == sorted(r.offset for r in kept)
    newest = {int(r.key): (r.offset, int(r.value)) for r in kept}
    assert newest == last
