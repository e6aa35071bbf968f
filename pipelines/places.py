"""Which log a command talks to: a cluster, a broker of ours that runs, or the embedded log in a directory.

A broker or a demo of ours leaves a note of where it is, so that a command in another terminal finds it. Law: a note of
a process that is gone is as good as none.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from pipelines.errors import ConfigError
from pipelines.local.embedded import file_log
from pipelines.log import Log
from pipelines.namespace import in_namespace
from pipelines.settings import Settings

NOTE = "running.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log is. `where` is host:port for Kafka, a directory for the embedded log."""

    kind: Literal["kafka", "file"]
    where: str
    namespace: str = ""

    def __str__(self) -> str:
        kind = "Kafka at" if self.kind == "kafka" else "the embedded log in"
        return f"{kind} {self.where}" + (f", namespace {self.namespace}" if self.namespace else "")


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    place: Place
    pid: int


@dataclass(frozen=True, slots=True)
class Found:
    """A place and how it was found, for people."""

    place: Place
    why: str


def find_place(settings: Settings, bootstrap: str | None = None) -> Found:
    """The named cluster, else the broker of ours that runs, else the embedded log of this user."""
    named = bootstrap or settings.broker.bootstrap
    if named:
        return Found(Place(kind="kafka", where=named, namespace=settings.namespace), "named")
    noted = read_note(settings.cache_dir)
    if noted is not None:
        return Found(noted, "running here")
    place = Place(kind="file", where=str(settings.data_dir), namespace=settings.namespace)
    return Found(place, "no cluster is named by TWINCAST_BOOTSTRAP and no broker of ours runs")


def open_log(settings: Settings, place: Place) -> Log:
    """The log, to be opened with `async with`. Raises ConfigError for a directory that cannot be used."""
    if place.kind == "file":
        return in_namespace(file_log(Path(place.where)), place.namespace)
    from pipelines.kafka.kafka_log import KafkaLog

    return in_namespace(KafkaLog(settings.access(place.where)), place.namespace)


def read_note(cache_dir: Path) -> Place | None:
    """The place that a living process noted."""
    try:
        note = msgspec.json.decode((cache_dir / NOTE).read_bytes(), type=_Note)
        os.kill(note.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return note.place


@contextlib.contextmanager
def noted(cache_dir: Path, place: Place) -> Iterator[None]:
    """Leave a note of the place while this process runs. Raises ConfigError where it cannot be written."""
    path = cache_dir / NOTE
    note = msgspec.json.encode(_Note(place=place, pid=os.getpid()))
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(note)
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {cache_dir} ({error.strerror}); set TWINCAST_CACHE_DIR to a directory of yours"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_bytes() == note:
                path.unlink()
