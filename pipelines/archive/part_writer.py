"""Records of one partition into part files of bounded size. Knows neither log nor manifest.

Row groups are bounded in rows and bytes, so that a reader holds little; a part is bounded so that little is read again
after a kill. Law: a part is in its place whole, stored and named by its first offset, or not there at all.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.archive.archive_rows import REPEATED_COLUMNS, SCHEMA, table_of
from pipelines.archive.manifest import Part, sha256_of
from pipelines.errors import ConfigError
from pipelines.log import LogRecord

GROUP_RECORDS = 8_192
GROUP_BYTES = 4 << 20
PART_BYTES = 64 << 20
"""Of keys and values, before compression."""
SCRATCH_PREFIX = "."


class PartWriter:
    """Writes into `folder / topic / partition`; give it records in offset order."""

    def __init__(
        self, folder: Path, topic: str, partition: int, *, part_bytes: int = PART_BYTES, compression: str = "zstd"
    ) -> None:
        self._folder = folder
        self._place = f"{topic}/{partition}"
        self._part_bytes = part_bytes
        self._compression = compression
        self._rows: list[LogRecord] = []
        self._rows_bytes = 0
        self._written_bytes = 0
        self._records = 0
        self._first_offset = 0
        self._last_offset = 0
        self._writer: Any = None
        self._scratch: Path | None = None

    def add(self, record: LogRecord) -> Part | None:
        """Take a record; the part that this completes, if it does."""
        if not self._records:
            self._first_offset = record.offset
        self._records += 1
        self._last_offset = record.offset
        self._rows.append(record)
        self._rows_bytes += len(record.key or b"") + len(record.value or b"")
        if self._written_bytes + self._rows_bytes >= self._part_bytes:
            return self.finish()
        if len(self._rows) >= GROUP_RECORDS or self._rows_bytes >= GROUP_BYTES:
            self._write_group()
        return None

    def finish(self) -> Part | None:
        """Complete the part begun; None where nothing came since the last one."""
        if not self._records:
            return None
        self._write_group()
        scratch, file = self._scratch, f"{self._place}/{self._first_offset:020d}.parquet"
        if self._writer is None or scratch is None:
            return None
        try:
            self._writer.close()
            with open(scratch, "rb") as written:
                os.fsync(written.fileno())
            digest, size_bytes = sha256_of(scratch), scratch.stat().st_size
            scratch.replace(self._folder / file)
            _sync_folder((self._folder / file).parent)
        except OSError as error:
            raise _unwritable(self._folder / file, error) from error
        part = Part(
            file=file,
            records=self._records,
            size_bytes=size_bytes,
            sha256=digest,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
        )
        self._writer, self._scratch, self._records, self._written_bytes = None, None, 0, 0
        return part

    def abandon(self) -> None:
        """Drop the part begun."""
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
        if self._scratch is not None:
            self._scratch.unlink(missing_ok=True)
        self._writer, self._scratch, self._rows, self._records = None, None, [], 0

    def _write_group(self) -> None:
        if not self._rows:
            return
        try:
            if self._writer is None:
                self._open()
            self._writer.write_table(table_of(self._rows), row_group_size=len(self._rows))
        except OSError as error:
            raise _unwritable(self._folder / self._place, error) from error
        self._written_bytes += self._rows_bytes
        self._rows, self._rows_bytes = [], 0

    def _open(self) -> None:
        folder = self._folder / self._place
        folder.mkdir(parents=True, exist_ok=True)
        self._scratch = folder / f"{SCRATCH_PREFIX}{self._first_offset:020d}.part"
        level = 1 if self._compression == "zstd" else None
        self._writer = pq.ParquetWriter(
            self._scratch,
            SCHEMA,
            compression=self._compression,
            compression_level=level,
            use_dictionary=REPEATED_COLUMNS,
        )


def _sync_folder(folder: Path) -> None:
    """A renamed file is there after a power cut only if its folder was stored too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({error.strerror or error}); free space or name another folder")
