"""A stretch of a log into an archive: every record of the topics up to the ends seen at the start. Judges no record.

Stops at the end offsets it saw when it began, on every partition, also after it was killed and started again. Topics
that are compacted are taken from their beginning whatever `from_ms` says: they hold what was true at that time. Outputs
are taken from `OUTPUTS_BEFORE_MS` before it: a score has the timestamp of its forecast, and is written later.

Laws: killed at any moment and started again with the same arguments, the archive holds every record once, as if nothing
had happened; offsets that the log does not have are told as gaps.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.archive.manifest import (
    NAME,
    Manifest,
    Part,
    PartitionEntry,
    read_manifest,
    require_matching,
    write_manifest,
)
from pipelines.archive.part_writer import PART_BYTES, PartWriter
from pipelines.errors import ConfigError
from pipelines.log import Log, LogRecord, OffsetOutOfRangeError, Reader, TopicPartition
from pipelines.near_names import instead_of
from schemas.topics import OUTPUTS, TOPICS

log = logging.getLogger("twincast.archive")

OUTPUTS_BEFORE_MS = 600_000
_OUTPUT_NAMES = frozenset(topic.name for topic in OUTPUTS)
MAX_GAPS = 10_000
GET_RECORDS = 2_000
SILENCE_S = 1.0
SILENT_GETS = 6
"""So many empty answers in a row, and offsets before the end seem to hold nothing."""
SECOND_LOOK_S = 15.0
"""How long a fresh reader may look before they are taken for a gap: a slow log must not lose records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to record: topics, and the time between two timestamps in milliseconds (None: from begin, to end)."""

    topics: tuple[str, ...]
    from_ms: int | None = None
    to_ms: int | None = None

    def __post_init__(self) -> None:
        if self.from_ms is not None and self.to_ms is not None and self.from_ms >= self.to_ms:
            raise ConfigError(f"--from must lie before --to, got {self.from_ms} and {self.to_ms} ms; swap them")


async def record(
    source: Log,
    folder: Path,
    wanted: Wanted,
    *,
    progress: Callable[[float], None] = lambda _: None,
    part_bytes: int = PART_BYTES,
) -> Manifest:
    """Record, or go on with what was begun in `folder`; the complete manifest. Raises ConfigError."""
    manifest = await _plan(source, folder, wanted)
    total = max(sum(max(entry.stop_offset - entry.start_offset, 0) for entry in manifest.partitions), 1)
    capture = _Capture(source, folder, manifest, part_bytes, lambda done: progress(min(done / total, 1.0)))
    for topic in manifest.topics:
        await capture.take(topic)
    done = msgspec.structs.replace(capture.manifest, complete=True)
    write_manifest(folder, done)
    progress(1.0)
    return done


async def _plan(source: Log, folder: Path, wanted: Wanted) -> Manifest:
    """The manifest to fulfil: what stands in the folder, or a new one with the offsets as they are now."""
    if (folder / NAME).exists():
        return _resumed(source, folder, wanted)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty and no archive; name a new folder")
    counts = await source.partition_counts(wanted.topics)
    for topic in wanted.topics:
        if topic not in counts:
            raise ConfigError(f"{source.name} has no topic {topic!r}; {instead_of(topic, sorted(counts or TOPICS))}")
    manifest = Manifest(
        source=source.name,
        from_ms=wanted.from_ms,
        to_ms=wanted.to_ms,
        topics={topic: counts[topic] for topic in wanted.topics},
        partitions=await _entries(source, wanted, counts),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror or error}); name another folder") from error
    write_manifest(folder, manifest)
    return manifest


async def _entries(source: Log, wanted: Wanted, counts: dict[str, int]) -> tuple[PartitionEntry, ...]:
    places = [TopicPartition(topic, number) for topic in wanted.topics for number in range(counts[topic])]
    begins, ends = await source.begin_offsets(places), await source.end_offsets(places)
    starts, stops = dict(begins), dict(ends)
    if wanted.from_ms is not None:
        timed = [place for place in places if not _is_compacted(place.topic)]
        found = await source.offsets_for_times({place: _from_ms(place.topic, wanted.from_ms) for place in timed})
        starts |= {place: ends[place] if offset is None else offset for place, offset in found.items()}
    if wanted.to_ms is not None:
        found = await source.offsets_for_times(dict.fromkeys(places, wanted.to_ms))
        stops |= {place: min(ends[place], offset) for place, offset in found.items() if offset is not None}
    return tuple(
        PartitionEntry(
            topic=place.topic,
            partition=place.partition,
            start_offset=min(starts[place], stops[place]),
            stop_offset=stops[place],
        )
        for place in places
    )


def _from_ms(topic: str, from_ms: int) -> int:
    return max(from_ms - OUTPUTS_BEFORE_MS, 0) if topic in _OUTPUT_NAMES else from_ms


def _is_compacted(topic: str) -> bool:
    return topic in TOPICS and TOPICS[topic].policy == "compact"


def _resumed(source: Log, folder: Path, wanted: Wanted) -> Manifest:
    """The manifest of an archive that was begun with the same arguments; what it does not list is removed."""
    manifest = read_manifest(folder)
    if manifest.complete:
        raise ConfigError(f"{folder} is a complete archive of {manifest.records} records; name a new folder")
    begun = (manifest.source, tuple(manifest.topics), manifest.from_ms, manifest.to_ms)
    asked = (source.name, wanted.topics, wanted.from_ms, wanted.to_ms)
    if begun != asked:
        raise ConfigError(
            f"{folder} was begun with other arguments: {begun} then, {asked} now; give the same ones, or a new folder"
        )
    require_matching(folder, manifest, manifest.parts)
    listed = {folder / part.file for part in manifest.parts}
    for path in sorted(folder.glob("*/*/*")):
        if path not in listed and path.suffix in (".parquet", ".part"):
            path.unlink()
    return manifest


class _Capture:
    """The work on one archive. `manifest` says what is safe on disk."""

    def __init__(
        self, source: Log, folder: Path, manifest: Manifest, part_bytes: int, progress: Callable[[int], None]
    ) -> None:
        self.manifest = manifest
        self._source = source
        self._folder = folder
        self._part_bytes = part_bytes
        self._progress = progress
        self._seen = _Seen(manifest)

    async def take(self, topic: str) -> None:
        """Record all partitions of a topic to their ends."""
        entries = {TopicPartition(e.topic, e.partition): e for e in self.manifest.of([topic])}
        begins = await self._source.begin_offsets(entries)
        positions = {
            place: max(entry.next_offset, begins[place])
            for place, entry in entries.items()
            if max(entry.next_offset, begins[place]) < entry.stop_offset
        }
        writers = {place: PartWriter(self._folder, *place, part_bytes=self._part_bytes) for place in positions}
        try:
            if positions:
                async with self._source.reader(positions) as reader:
                    await self._read(reader, {place: entries[place].stop_offset for place in positions}, writers)
            for place, writer in writers.items():
                self._keep(place, writer.finish())
            for place in entries:
                self._close(place)
        finally:
            for writer in writers.values():
                writer.abandon()

    async def _read(
        self, reader: Reader, stops: dict[TopicPartition, int], writers: dict[TopicPartition, PartWriter]
    ) -> None:
        silent = 0
        while any(reader.position(place) < stop for place, stop in stops.items()):
            try:
                records = await reader.get(max_records=GET_RECORDS, timeout_s=SILENCE_S)
            except OffsetOutOfRangeError as error:
                log.warning("%s; what lay before is a gap", error)
                reader.seek(error.where, error.begin)
                continue
            silent = 0 if records else silent + 1
            if silent >= SILENT_GETS:
                silent = 0
                left = {place: reader.position(place) for place in stops if reader.position(place) < stops[place]}
                if not await self._readable(left):
                    return  # offsets before the end that hold nothing
            for each in records:
                place = TopicPartition(each.topic, each.partition)
                if each.offset < stops[place]:
                    self._seen.add(place, each)
                    self._keep(place, writers[place].add(each))
            self._progress(self._seen.offsets)

    async def _readable(self, positions: dict[TopicPartition, int]) -> bool:
        """Whether a reader of its own gets anything from there. A log that is gone says so by an error."""
        await self._source.end_offsets(positions)
        async with self._source.reader(positions) as reader:
            return bool(await reader.get(max_records=1, timeout_s=SECOND_LOOK_S))

    def _keep(self, place: TopicPartition, part: Part | None) -> None:
        """List a part that is in its place."""
        if part is not None:
            self._update(place, lambda entry: self._seen.with_part(place, entry, part))

    def _close(self, place: TopicPartition) -> None:
        """Tell of a gap before the end of a partition."""

        def closed(entry: PartitionEntry) -> PartitionEntry:
            if entry.next_offset >= entry.stop_offset or (entry.gaps and entry.gaps[-1][1] == entry.stop_offset):
                return entry
            tail = (entry.next_offset, entry.stop_offset)
            return msgspec.structs.replace(entry, gaps=(*entry.gaps, tail)[:MAX_GAPS])

        self._update(place, closed)

    def _update(self, place: TopicPartition, change: Callable[[PartitionEntry], PartitionEntry]) -> None:
        entries = tuple(change(e) if (e.topic, e.partition) == place else e for e in self.manifest.partitions)
        if entries != self.manifest.partitions:
            self.manifest = msgspec.structs.replace(self.manifest, partitions=entries)
            write_manifest(self._folder, self.manifest)


class _Seen:
    """What has gone by of each partition since its last part: gaps, times, how far."""

    def __init__(self, manifest: Manifest) -> None:
        self._next = {TopicPartition(e.topic, e.partition): e.next_offset for e in manifest.partitions}
        self._gaps: dict[TopicPartition, list[tuple[int, int]]] = {}
        self._times_ms: dict[TopicPartition, tuple[int, int]] = {}
        self.offsets = sum(e.next_offset - e.start_offset for e in manifest.partitions)

    def add(self, place: TopicPartition, record: LogRecord) -> None:
        """Count a record."""
        expected = self._next[place]
        if record.offset > expected:
            self._gaps.setdefault(place, []).append((expected, record.offset))
        self.offsets += record.offset + 1 - expected
        self._next[place] = record.offset + 1
        least, most = self._times_ms.get(place, (record.timestamp_ms, record.timestamp_ms))
        self._times_ms[place] = (min(least, record.timestamp_ms), max(most, record.timestamp_ms))

    def with_part(self, place: TopicPartition, entry: PartitionEntry, part: Part) -> PartitionEntry:
        """The entry with a part more. A record that has completed a part is its last, so nothing is told too early."""
        gaps = [gap for gap in self._gaps.pop(place, []) if gap[1] <= part.last_offset]
        first_ms, last_ms = _widened(entry, self._times_ms.pop(place))
        return msgspec.structs.replace(
            entry,
            first_offset=part.first_offset if entry.first_offset is None else entry.first_offset,
            last_offset=part.last_offset,
            records=entry.records + part.records,
            first_ms=first_ms,
            last_ms=last_ms,
            gaps=(*entry.gaps, *gaps)[:MAX_GAPS],
            parts=(*entry.parts, part),
        )


def _widened(entry: PartitionEntry, times_ms: tuple[int, int]) -> tuple[int, int]:
    known = [time for time in (entry.first_ms, entry.last_ms) if time is not None]
    return min((*known, times_ms[0])), max((*known, times_ms[1]))


def topics_to_record(found: Iterable[str], asked: Sequence[str]) -> tuple[str, ...]:
    """The topics asked for, each once; without any, all of the project's table that the log has, in its order."""
    if asked:
        twice = [topic for topic, count in Counter(asked).items() if count > 1]
        if twice:
            raise ConfigError(f"topic {twice[0]} is asked for twice; name it once")
        return tuple(asked)
    there = set(found)
    return tuple(name for name in TOPICS if name in there)
