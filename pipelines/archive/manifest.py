"""What an archive holds, file by file: offsets, gaps, sizes, digests. Reads and writes no record.

An archive is a folder with `manifest.json` and, per topic and partition, numbered Parquet files ("parts"). The manifest
is written when recording begins, after every part, and at the end; `complete` says that the end was reached. Offsets
are as in `pipelines.log`: `next_offset` is the first that is not here.

Laws: parts of one partition are in offset order and do not overlap; what is not in the manifest is not in the archive;
a file that differs from its digest is refused before a record of it is given out.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.errors import ConfigError
from pipelines.whole_file import write_whole

LAYOUT = "twincast-archive"
LAYOUT_VERSION = 1
NAME = "manifest.json"
_CHUNK_BYTES = 1 << 20


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One file. `first_offset` and `last_offset` are those of its first and last record."""

    file: str
    records: int
    size_bytes: int
    sha256: str
    first_offset: int
    last_offset: int


class PartitionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One partition: asked for were `start_offset` up to `stop_offset` (not included).

    `gaps` are ranges of offsets in between, [from, to), that the log did not have: compacted, deleted, or never there.
    Times are the smallest and the largest timestamp, None where there is no record.
    """

    topic: str
    partition: int
    start_offset: int
    stop_offset: int
    first_offset: int | None = None
    last_offset: int | None = None
    records: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def next_offset(self) -> int:
        """Where recording goes on."""
        return self.start_offset if self.last_offset is None else self.last_offset + 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole archive. `source` says in words which log it is of; `from_ms` and `to_ms` what was asked for."""

    layout: str = LAYOUT
    version: int = LAYOUT_VERSION
    source: str
    from_ms: int | None
    to_ms: int | None
    topics: dict[str, int]
    partitions: tuple[PartitionEntry, ...]
    complete: bool = False

    @property
    def records(self) -> int:
        """How many."""
        return sum(entry.records for entry in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Of all parts."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All files."""
        return tuple(part for entry in self.partitions for part in entry.parts)

    @property
    def sha256(self) -> str:
        """Digest of the digests of all parts, in order: the name of the archive's content."""
        lines = "".join(f"{part.file} {part.sha256}\n" for part in self.parts)
        return hashlib.sha256(lines.encode()).hexdigest()

    def of(self, topics: Iterable[str]) -> tuple[PartitionEntry, ...]:
        """Partitions of some topics."""
        wanted = set(topics)
        return tuple(entry for entry in self.partitions if entry.topic in wanted)


@dataclass(frozen=True, slots=True)
class _Head:
    layout: str
    version: int


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an archive, complete or not. Raises ConfigError where there is none."""
    path = folder / NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        hint = "name its folder" if folder.is_file() else "make an archive with `twincast record --out DIR`"
        raise ConfigError(f"{folder} is no archive: it has no {NAME}; {hint}") from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror or error}); name the folder of an archive"
        ) from error
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is no manifest of an archive ({error}); record it again") from error
    if head.layout != LAYOUT or not 1 <= head.version <= LAYOUT_VERSION:
        raise ConfigError(
            f"{path} has layout {head.layout!r} version {head.version}; this program reads {LAYOUT!r} up to version "
            f"{LAYOUT_VERSION}: update it"
        )
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}); record the archive again") from error
    for entry in manifest.partitions:
        _require_sum(path, entry)
    return manifest


def _require_sum(path: Path, entry: PartitionEntry) -> None:
    """A partition is what its files are together."""
    parts = entry.parts
    said = (entry.records, entry.first_offset, entry.last_offset)
    found = (
        sum(part.records for part in parts),
        parts[0].first_offset if parts else None,
        parts[-1].last_offset if parts else None,
    )
    if said != found:
        raise ConfigError(
            f"{path} is damaged: {entry.topic}[{entry.partition}] says {said[0]} records from offset {said[1]} to "
            f"{said[2]}, its files hold {found[0]} from {found[1]} to {found[2]}; record the archive again"
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest in place, whole or not at all."""
    write_whole(folder / NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def sha256_of(path: Path, seen: Callable[[int], None] = lambda _: None) -> str:
    """Digest of a file; `seen` is told the bytes as they go by. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            seen(len(chunk))
    return digest.hexdigest()


def require_matching(
    folder: Path, manifest: Manifest, parts: Iterable[Part], progress: Callable[[float], None] = lambda _: None
) -> None:
    """Raise ConfigError for the first of `parts` that is missing, of another size or of another content."""
    total_bytes = max(manifest.size_bytes, 1)
    done_bytes = 0

    def seen(size_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += size_bytes
        progress(min(done_bytes / total_bytes, 1.0))

    for part in parts:
        path = folder / part.file
        try:
            size_bytes = path.stat().st_size
            if size_bytes != part.size_bytes:
                raise ConfigError(
                    f"{path} has {size_bytes} bytes, its manifest says {part.size_bytes}: the file is cut or changed; "
                    "copy or record the archive again"
                )
            found = sha256_of(path, seen)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror or error}), its manifest counts {part.records} records; "
                "copy or record the archive again"
            ) from error
        if found != part.sha256:
            raise ConfigError(
                f"{path} has sha256 {found[:12]}, its manifest says {part.sha256[:12]}: the file was changed; "
                "copy or record the archive again"
            )
