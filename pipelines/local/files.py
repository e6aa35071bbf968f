"""An embedded log in a directory: topics.json, a file for each partition, a file for the offsets of each group.

Several processes may open it; each group has its members in one process only. Retention and compaction happen when
the log is opened. No network file systems: their locks do not hold.

Law: what a process was told is stored is there for the next one, however the first ended.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from pipelines.errors import ConfigError
from pipelines.local.file_partition import FilePartition
from pipelines.local.stores import Partition
from pipelines.log import FOREVER_MS, GroupBusyError, TopicPartition, TopicSpec

TIDY_FROM_BYTES = 8 << 20
POLL_INTERVAL_S = 0.05


T = TypeVar("T")


class _Committed(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int


class FileStore:
    """All of an embedded log in `directory`, which is made where missing. Raises ConfigError when it cannot be used."""

    poll_interval_s = POLL_INTERVAL_S

    def __init__(
        self,
        directory: Path,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        tidy_from_bytes: int = TIDY_FROM_BYTES,
    ) -> None:
        self.name = f"the embedded log in {directory}"
        self._directory = directory
        self._partitions: dict[TopicPartition, FilePartition] = {}
        self._topics: dict[str, TopicSpec] = {}
        self._topics_read: tuple[int, int] | None = None
        try:
            (directory / "groups").mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"cannot keep the embedded log in {directory} ({error.strerror}); choose another directory"
            ) from error
        self._tidy(now_ms(), tidy_from_bytes)

    def topics(self) -> Mapping[str, TopicSpec]:
        """See `Store`."""
        path = self._directory / "topics.json"
        try:
            told = os.stat(path)
        except FileNotFoundError:
            return self._topics
        version = (told.st_ino, told.st_mtime_ns)
        if version != self._topics_read:
            specs = _read_json(path, list[TopicSpec])
            self._topics = {spec.name: spec for spec in specs}
            self._topics_read = version
        return self._topics

    def create(self, spec: TopicSpec) -> bool:
        """See `Store`."""
        with self._locked():
            known = self.topics()
            if spec.name in known:
                return False
            (self._directory / spec.name).mkdir(exist_ok=True)
            _write_json(self._directory / "topics.json", [*known.values(), spec])
        for number in range(spec.partitions):
            self.partition(TopicPartition(spec.name, number))
        return True

    def partition(self, where: TopicPartition) -> Partition:
        """See `Store`."""
        return self._file(where)

    def offsets(self, group: str) -> dict[TopicPartition, int]:
        """See `Store`."""
        path = self._group_path(group, "json")
        if not path.exists():
            return {}
        return {TopicPartition(c.topic, c.partition): c.offset for c in _read_json(path, list[_Committed])}

    def save_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """See `Store`."""
        with self._locked():
            merged = self.offsets(group) | dict(offsets)
            rows = [_Committed(where.topic, where.partition, offset) for where, offset in sorted(merged.items())]
            _write_json(self._group_path(group, "json"), rows)

    @contextmanager
    def membership(self, group: str) -> Iterator[None]:
        """See `Store`: a lock that the system gives back however the process ends."""
        fd = os.open(self._group_path(group, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise GroupBusyError(
                f"another process is in group {group} of {self.name}, which takes one process per group; stop it, or "
                "use Kafka"
            ) from error
        finally:
            os.close(fd)

    def close(self) -> None:
        """See `Store`."""
        for partition in self._partitions.values():
            partition.close()
        self._partitions.clear()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _file(self, where: TopicPartition) -> FilePartition:
        if where not in self._partitions:
            path = self._directory / where.topic / f"{where.partition}.log"
            self._partitions[where] = FilePartition(where, path, self._locked)
        return self._partitions[where]

    def _group_path(self, group: str, suffix: str) -> Path:
        return self._directory / "groups" / f"{quote(group, safe='')}.{suffix}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _tidy(self, now_ms: int, from_bytes: int) -> None:
        for spec in self.topics().values():
            for number in range(spec.partitions):
                path = self._directory / spec.name / f"{number}.log"
                if path.exists() and path.stat().st_size >= from_bytes:
                    kept_ms = None if spec.retention_ms == FOREVER_MS else now_ms - spec.retention_ms
                    partition = self._file(TopicPartition(spec.name, number))
                    partition.tidy(compact=spec.policy == "compact", older_than_ms=kept_ms)


def _read_json(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); restore it, or delete the log's directory") from error


def _write_json(path: Path, content: object) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_bytes(msgspec.json.encode(content))
    scratch.replace(path)
