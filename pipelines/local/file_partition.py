"""Records of one partition in one append-only file, shared by the processes of one machine. Keeps no records in memory.

A record survives the end of its process as soon as `append` returns; a power cut may take the last ones, as with a
Kafka broker in its default settings. Writers take turns by a lock; readers need none.

Law: after a crash at any byte of a write, the file holds a prefix of the records of that write.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.local.frames import Frame, Rest, frame, head, read_head, scan
from pipelines.local.stores import NewRecord
from pipelines.log import LogRecord, OffsetOutOfRangeError, TopicPartition

CHUNK_BYTES = 1 << 18
INDEX_EVERY_FRAMES = 64
CURSORS = 32


class FilePartition:
    """One file. `lock` gives the right to write, among processes; it is not taken twice at once."""

    def __init__(self, where: TopicPartition, path: Path, lock: Callable[[], AbstractContextManager[None]]) -> None:
        self._where = where
        self._path = path
        self._lock = lock
        self._fd = -1
        self._reset()
        if not path.exists():
            with lock():
                if not path.exists():
                    self._replace(head(0, 0))

    def append(self, records: Sequence[NewRecord]) -> int:
        """See `Partition`. Raises ConfigError when the disk refuses, with nothing written."""
        with self._lock():
            self._refresh()
            first = self._end
            frames = [frame(first + i, *record) for i, record in enumerate(records)]
            self._write(b"".join(frames))
            for offset, piece in enumerate(frames, first):
                self._note(offset, self._scanned)
                self._scanned += len(piece)
        return first

    def read(self, offset: int, max_records: int) -> list[LogRecord]:
        """See `Partition`."""
        self._refresh()
        if not self._begin <= offset <= self._end:
            raise OffsetOutOfRangeError(self._where, offset, self._begin, self._end)
        topic, partition = self._where
        records: list[LogRecord] = []
        if offset == self._end:
            return records
        for at, found in self._frames(self._place_of(offset)):
            if found.offset >= offset:
                records.append(LogRecord(topic, partition, found.offset, found.timestamp_ms, *found.record()))
                if len(records) == max_records:
                    self._remember(found.offset + 1, at + found.end)
                    break
        return records

    def bounds(self) -> tuple[int, int]:
        """See `Partition`."""
        self._refresh()
        return self._begin, self._end

    def offset_at(self, time_ms: int) -> int | None:
        """See `Partition`. Reads the file from its start."""
        self._refresh()
        frames = (found for _, found in self._frames(self._place_of(self._begin)))
        return next((f.offset for f in frames if f.offset >= self._begin and f.timestamp_ms >= time_ms), None)

    def delete_before(self, offset: int) -> None:
        """See `Partition`. Rewrites the file."""
        with self._lock():
            self._refresh()
            if offset > self._end:
                raise OffsetOutOfRangeError(self._where, offset, self._begin, self._end)
            if offset > self._begin:
                self._rewrite(offset, lambda found: found.offset >= offset)

    def tidy(self, *, compact: bool, older_than_ms: int | None) -> None:
        """Drop what the topic's policy does not keep, where that halves the file: all but the last record of each key
        (`compact`), or the records before the first one that is not older than a time."""
        with self._lock():
            self._refresh()
            frames = [
                (f.offset, f.timestamp_ms, len(f.body), f.record()[0]) for _, f in self._frames(self._place_of(0))
            ]
            kept = {offset for offset, *_ in frames}
            begin = self._begin
            if compact:
                kept = set({key: offset for offset, _, _, key in frames}.values())
            elif older_than_ms is not None:
                begin = next((offset for offset, at_ms, *_ in frames if at_ms >= older_than_ms), self._end)
                kept = {offset for offset in kept if offset >= begin}
            kept_bytes = sum(size for offset, _, size, _ in frames if offset in kept)
            if 2 * kept_bytes < sum(size for _, _, size, _ in frames):
                self._rewrite(begin, lambda found: found.offset in kept)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
        self._reset()

    def _reset(self) -> None:
        self._fd = -1
        self._inode = 0
        self._torn = False
        """Whether bytes may follow that are no whole frame."""
        self._scanned = 0
        """Bytes of the file that are known to be whole frames."""
        self._begin = self._end = 0
        self._index_offsets: list[int] = []
        self._index_places: list[int] = []
        self._noted = 0
        self._cursors: dict[int, int] = {}

    def _refresh(self) -> None:
        """Learn what other processes did: appended, or put another file in this one's place."""
        told = os.stat(self._path)
        if told.st_ino != self._inode or told.st_size < self._scanned:
            self.close()
            self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self._inode = os.fstat(self._fd).st_ino
        self._torn = False
        if told.st_size == self._scanned:
            return
        self._torn = True
        for at, found in self._frames(self._scanned, known_only=False):
            if at == 0 and self._scanned == 0:
                self._begin, self._end = read_head(found)
            else:
                self._note(found.offset, self._scanned)
            self._scanned = at + found.end

    def _note(self, offset: int, place: int) -> None:
        self._end = offset + 1
        if self._noted % INDEX_EVERY_FRAMES == 0:
            self._index_offsets.append(offset)
            self._index_places.append(place)
        self._noted += 1

    def _place_of(self, offset: int) -> int:
        """A byte of the file where a frame starts that is not after `offset`'s."""
        if offset in self._cursors:
            return self._cursors[offset]
        at = bisect_right(self._index_offsets, offset) - 1
        if at >= 0:
            return self._index_places[at]
        return self._index_places[0] if self._index_places else self._scanned

    def _remember(self, offset: int, place: int) -> None:
        if len(self._cursors) >= CURSORS:
            del self._cursors[next(iter(self._cursors))]
        self._cursors[offset] = place

    def _frames(self, place: int, *, known_only: bool = True) -> Iterator[tuple[int, Frame]]:
        """Frames from a byte on, each with the byte that its `end` counts from."""
        wanted = CHUNK_BYTES
        while True:
            limit = min(wanted, self._scanned - place) if known_only else wanted
            data = os.pread(self._fd, limit, place)
            rest = Rest()
            # The cut of a chunk looks like a torn write; only the file's own end is one.
            for found in scan(data, rest, path=str(self._path), place=place):
                yield place, found
            place += rest.end
            if len(data) < wanted:
                return
            wanted = CHUNK_BYTES if rest.end else 2 * wanted

    def _write(self, data: bytes) -> None:
        """Append behind the last whole frame. Raises ConfigError with the file as it was."""
        try:
            if self._torn:
                os.ftruncate(self._fd, self._scanned)
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            os.ftruncate(self._fd, self._scanned)
            raise ConfigError(f"cannot write to {self._path} ({error.strerror}); make room or correct it") from error

    def _rewrite(self, begin: int, keep: Callable[[Frame], bool]) -> None:
        kept = [
            frame(found.offset, found.timestamp_ms, *found.record())
            for _, found in self._frames(self._place_of(0))
            if keep(found)
        ]
        self._replace(head(begin, self._end) + b"".join(kept))

    def _replace(self, data: bytes) -> None:
        scratch = self._path.with_suffix(".new")
        with open(scratch, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)
