"""What a replay is fed with: input messages of an archive or of a recording, in event order. Runs nothing.

Law: the same archive or recording gives the same messages with the same offsets, every time it is gone through.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from pipelines.archive.manifest import NAME
from pipelines.archive.reading import Archive, open_archive
from pipelines.errors import ConfigError
from pipelines.ingest.recording import read_recording
from pipelines.outputs import MADE_HEADER, Headers
from pipelines.playback import as_incoming, messages_of
from pipelines.runtime import Incoming
from pipelines.skips import Skip, skip_of
from schemas.codec import SchemaError, decode
from schemas.slos import SloTarget
from schemas.topics import INPUTS, OUTPUTS, REQUESTS, STATE, STEPS, TICKS, TOPICS

RECORDING_PARTITIONS = 4
INPUT_NAMES = tuple(topic.name for topic in INPUTS)
CORE_NAMES = tuple(topic.name for topic in TOPICS.values() if topic.core)
_TRAFFIC = frozenset((REQUESTS.name, STEPS.name))
Skips = frozenset[Skip]
"""Deployment, event time and phase of ticks that a live run left out."""


class Fed(NamedTuple):
    """One input message; `at_us` is its event time as it counts for order and pace, `stamp_ms` its own timestamp."""

    at_us: int
    message: Incoming
    stamp_ms: int


class State(NamedTuple):
    """A recorded snapshot that a replay can begin from; `made_us` is when it was written, processing time."""

    deployment: str
    value: bytes
    made_us: int


class Recorded(NamedTuple):
    """One output message of the live run."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers


class Feed(Protocol):
    """Input messages and what the live run made of them, if that is known."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def folder(self) -> Path:
        """Where it lies."""

    @property
    def kind(self) -> str:
        """`archive` or `recording`."""

    @property
    def partitions(self) -> int:
        """Of every core topic."""

    @property
    def start_us(self) -> int:
        """Event time of the first message of requests or steps."""

    @property
    def end_us(self) -> int:
        """Event time of the last message."""

    @property
    def records(self) -> int:
        """How many input messages, as far as that is known before they are gone through."""

    @property
    def digest(self) -> str:
        """Names the content."""

    def messages(self) -> Iterator[Fed]:
        """All input messages."""

    def skips(self) -> Skips:
        """Ticks that the live run left out."""

    def outputs(self) -> Iterator[Recorded]:
        """What the live run wrote, redeliveries included; nothing where that is not recorded."""

    def states(self) -> tuple[State, ...]:
        """Where deployments begin whose input is not here from its beginning."""


def open_feed(
    folder: Path, *, slos: tuple[SloTarget, ...] = (), progress: Callable[[float], None] = lambda _: None
) -> Feed:
    """The archive or the recording in a folder. `slos` are told at the start of a recording. Raises ConfigError."""
    if (folder / NAME).exists():
        return ArchiveFeed(open_archive(folder, progress))
    if (folder / "meta.json").exists():
        return RecordingFeed(folder, slos)
    raise ConfigError(
        f"{folder} is neither an archive ({NAME}) nor a recording (meta.json); "
        "make one with `twincast record --out DIR`"
    )


class ArchiveFeed:
    """See `Feed`. Raises ConfigError where an archive holds nothing that a core reads."""

    kind = "archive"

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        manifest = archive.manifest
        counts = {manifest.topics[name] for name in CORE_NAMES if name in manifest.topics}
        entries = [entry for entry in manifest.of(INPUT_NAMES) if entry.records]
        if not entries:
            raise ConfigError(f"{archive.folder} holds no record of {', '.join(INPUT_NAMES)}; record these topics")
        if len(counts) != 1:
            raise ConfigError(
                f"{archive.folder}: core topics have {sorted(counts)} partitions, expected one number for all; "
                "record the topics of one deployment of Twincast"
            )
        self.partitions = counts.pop()
        self.records = sum(entry.records for entry in entries)
        traffic = [entry for entry in entries if TOPICS[entry.topic].policy != "compact"] or entries
        self.start_us = 1000 * min(entry.first_ms for entry in traffic if entry.first_ms is not None)
        self.end_us = 1000 * max(entry.last_ms for entry in entries if entry.last_ms is not None)

    @property
    def name(self) -> str:
        """See `Feed`."""
        return self._archive.name

    @property
    def folder(self) -> Path:
        """See `Feed`."""
        return self._archive.folder

    @property
    def digest(self) -> str:
        """See `Feed`."""
        return self._archive.manifest.sha256

    @property
    def archive(self) -> Archive:
        """What is read."""
        return self._archive

    def messages(self) -> Iterator[Fed]:
        """See `Feed`."""
        for at_ms, r in self._archive.records(INPUT_NAMES):
            message = Incoming(r.topic, r.partition, r.offset, r.key, r.value, r.headers)
            yield Fed(1000 * at_ms, message, r.timestamp_ms)

    def skips(self) -> Skips:
        """See `Feed`. Records that cannot be decoded skip nothing: the core refuses them."""
        skips = (skip_of(record.value) for _, record in self._archive.records([TICKS.name]))
        return frozenset(skip for skip in skips if skip is not None)

    def states(self) -> tuple[State, ...]:
        """See `Feed`: per deployment the earliest snapshot after which all input is here. Others begin cold."""
        manifest = self._archive.manifest
        starts = {(e.topic, e.partition): e.start_offset for e in manifest.of(INPUT_NAMES)}
        cut = {partition for (topic, partition), start in starts.items() if start and topic in _TRAFFIC}
        found: dict[str, State] = {}
        for _, record in self._archive.records([STATE.name] if cut else []):
            name = (record.key or b"").decode(errors="replace")
            if record.value is None or record.partition not in cut or name in found:
                continue
            try:
                offsets = decode(STATE.name, record.value).record.offsets
            except SchemaError:
                continue
            if all(each.next_offset >= starts.get((each.topic, each.partition), 0) for each in offsets):
                found[name] = State(name, record.value, made_us(record.headers))
        return tuple(found[name] for name in sorted(found))

    def outputs(self) -> Iterator[Recorded]:
        """See `Feed`."""
        for _, record in self._archive.records([topic.name for topic in OUTPUTS]):
            yield Recorded(record.topic, record.key, record.value or b"", record.headers)


class RecordingFeed:
    """See `Feed`: a recording as the messages that a player would send. `slos` are told at its start."""

    kind = "recording"
    partitions = RECORDING_PARTITIONS

    def __init__(self, folder: Path, slos: tuple[SloTarget, ...] = ()) -> None:
        self.folder = folder
        self._slos = slos
        self._recording = read_recording(folder)
        if not self._recording.requests:
            raise ConfigError(f"{folder} holds no request; name another recording")

    @property
    def name(self) -> str:
        """See `Feed`."""
        return self.folder.resolve().name

    @property
    def start_us(self) -> int:
        """See `Feed`."""
        return int(self._recording.t0_us)

    @property
    def end_us(self) -> int:
        """See `Feed`."""
        return int(self._recording.events[-1].at_us)

    @property
    def records(self) -> int:
        """See `Feed`."""
        return len(self._recording.events) + 1 + bool(self._slos)

    @property
    def digest(self) -> str:
        """See `Feed`."""
        digest = sha256()
        for fed in self.messages():
            digest.update(f"{fed.message.topic} {fed.message.offset} ".encode() + (fed.message.value or b"") + b"\n")
        return digest.hexdigest()

    def messages(self) -> Iterator[Fed]:
        """See `Feed`."""
        played = list(messages_of(self._recording, self._slos))
        for sent, message in zip(played, as_incoming(played, self.partitions), strict=True):
            yield Fed(sent.at_us, message, sent.at_us // 1000)

    def skips(self) -> Skips:
        """See `Feed`."""
        return frozenset()

    def outputs(self) -> Iterator[Recorded]:
        """See `Feed`."""
        return iter(())

    def states(self) -> tuple[State, ...]:
        """See `Feed`."""
        return ()


def made_us(headers: Headers) -> int:
    """When an output was written, processing time; 0 where that is not told."""
    text = next((value for name, value in headers if name == MADE_HEADER), b"")
    return int(text) if text.isdigit() else 0
