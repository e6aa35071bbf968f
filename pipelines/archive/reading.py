"""An archive read back, in event order, in bounded memory. Changes nothing and decodes no value.

Event order is by timestamp, ties by topic, partition and offset; records of one partition keep the order of their
offsets, so a timestamp that runs backwards counts as the largest before it. One thread reads ahead, a row group per
partition, while records are used. Laws: every record of the archive comes once; the order depends on the records alone;
memory does not depend on the length of the archive.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.archive.archive_rows import SCHEMA, difference, records_of
from pipelines.archive.manifest import Manifest, Part, PartitionEntry, read_manifest, require_matching
from pipelines.errors import ConfigError
from pipelines.log import LogRecord

Placed = tuple[int, LogRecord]
"""Event time in milliseconds as it counts for the order, and the record."""
MOST_AHEAD = 64
"""More partitions than this are not read ahead: each holds a row group more."""


class Archive:
    """A complete archive on disk. Build it with `open_archive`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @property
    def name(self) -> str:
        """For people."""
        return self.folder.resolve().name

    def batches(self, topics: Iterable[str] | None = None) -> Iterator[list[Placed]]:
        """All records of some topics (None: of all), in event order, in lists of bounded length.

        Raises ConfigError naming the file for one that cannot be read or is no part of an archive.
        """
        entries = self.manifest.partitions if topics is None else self.manifest.of(topics)
        ordered = sorted(entries, key=lambda entry: (entry.topic, entry.partition))
        return _merged(self.folder, [entry for entry in ordered if entry.parts])

    def records(self, topics: Iterable[str] | None = None) -> Iterator[Placed]:
        """As `batches`, one by one."""
        for batch in self.batches(topics):
            yield from batch


def open_archive(folder: Path, progress: Callable[[float], None] = lambda _: None) -> Archive:
    """The archive in a folder, every file of it compared with the manifest first. Raises ConfigError."""
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise ConfigError(
            f"{folder} is not complete: recording was interrupted; give the same `twincast record` again to finish it"
        )
    require_matching(folder, manifest, manifest.parts, progress)
    return Archive(folder, manifest)


class _Source:
    """Records of one partition, a batch at a time. `ahead` None: each batch is read when it is asked for."""

    def __init__(self, folder: Path, entry: PartitionEntry, ahead: ThreadPoolExecutor | None) -> None:
        self._entry = entry
        self._batches = self._read(folder)
        self._ahead = ahead
        self._coming: Future[Any] | None = None
        self._newest_ms = 0
        self.records: list[LogRecord] = []
        self.keys_ms = np.zeros(0, np.int64)
        self.ended = False
        self.more()

    def _read(self, folder: Path) -> Iterator[Any]:
        for part in self._entry.parts:
            path = folder / part.file
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    _require_part(path, part, file)
                    for group in range(file.num_row_groups):  # batches across groups would not be bounded in bytes
                        yield from file.read_row_group(group, SCHEMA.names, use_threads=False).to_batches()
            except (pa.ArrowException, OSError) as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(f"{path} cannot be read as Parquet ({reason}); copy or record it again") from error

    def more(self) -> None:
        """Read on where nothing is left; `ended` at the end of the partition."""
        while not self.records and not self.ended:
            batch = self._next_batch()
            if batch is None:
                self.ended = True
                return
            self.records, times_ms = records_of(batch, self._entry.topic, self._entry.partition)
            self.keys_ms = np.maximum.accumulate(np.maximum(times_ms, self._newest_ms))
            if self.records:
                self._newest_ms = int(self.keys_ms[-1])

    def _next_batch(self) -> Any:
        """The next batch, and the one after it on its way; None at the end."""
        if self._ahead is None:
            return next(self._batches, None)
        batch = next(self._batches, None) if self._coming is None else self._coming.result()
        if batch is not None:
            self._coming = self._ahead.submit(next, self._batches, None)
        return batch

    def take(self, count: int) -> tuple[list[LogRecord], Any]:
        """The next so many records and their keys."""
        taken, keys_ms = self.records[:count], self.keys_ms[:count]
        self.records, self.keys_ms = self.records[count:], self.keys_ms[count:]
        if not self.records:
            self.more()
        return taken, keys_ms


def _require_part(path: Path, part: Part, file: Any) -> None:
    found = difference(file.schema_arrow)
    if found:
        raise ConfigError(f"{path} is no part of an archive: {found}; record the archive again")
    if file.metadata.num_rows != part.records:
        raise ConfigError(
            f"{path} holds {file.metadata.num_rows} records, its manifest says {part.records}; record the archive again"
        )


def _merged(folder: Path, entries: list[PartitionEntry]) -> Iterator[list[Placed]]:
    """Entries are in order of topic and partition, which settles ties."""
    with ThreadPoolExecutor(1, "archive") as reader:
        ahead = reader if len(entries) <= MOST_AHEAD else None
        sources = [_Source(folder, entry, ahead) for entry in entries]
        try:
            yield from _in_order(sources)
        finally:
            reader.shutdown(cancel_futures=True)


def _in_order(sources: list[_Source]) -> Iterator[list[Placed]]:
    while True:
        sources = [source for source in sources if not source.ended]
        if not sources:
            return
        # Whatever is not read yet has at least the key of the last record that is.
        bound_ms = min(int(source.keys_ms[-1]) for source in sources)
        counts = [int(np.searchsorted(source.keys_ms, bound_ms, side="left")) for source in sources]
        if any(counts):
            yield _interleaved([source.take(count) for source, count in zip(sources, counts, strict=True) if count])
            continue
        for source in sources:
            while not source.ended and source.keys_ms[0] == bound_ms:
                count = int(np.searchsorted(source.keys_ms, bound_ms, side="right"))
                taken, _ = source.take(count)
                yield [(bound_ms, record) for record in taken]


def _interleaved(taken: list[tuple[list[LogRecord], Any]]) -> list[Placed]:
    if len(taken) == 1:
        records, keys_ms = taken[0]
        return list(zip(keys_ms.tolist(), records, strict=True))
    keys_ms = np.concatenate([keys for _, keys in taken])
    records = [record for records, _ in taken for record in records]
    order = np.argsort(keys_ms, kind="stable").tolist()
    placed = list(zip(keys_ms.tolist(), records, strict=True))
    return [placed[at] for at in order]
