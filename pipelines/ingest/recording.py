"""Recordings: a stretch of a service on disk as a stream of records in event order. Does not talk to Kafka.

Two layouts are read: the project's own (`meta.json` names it; one file of wire JSON per topic) and the folders that a
recorded vLLM wrote (`lab_recording`). The own layout is also written.

Laws: reading is deterministic; what is written reads back the same; a lower level never tells more than a higher one.
"""

import gzip
import io
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from pipelines.errors import ConfigError
from pipelines.ingest.lines import read_all, read_lines
from schemas.codec import encode, non_finite_field
from schemas.engines import EngineConfig
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRecord, RequestRejected
from schemas.steps import EngineStats, Step, StepBatch, StepRecord
from schemas.topics import ENGINES, REQUESTS, STEPS

Level = Literal["S0", "S1", "S2", "S3"]
InputRecord = RequestRecord | StepRecord | EngineConfig

BATCH_STEPS: Final = 64
BATCH_US: Final = 250_000
"""A batch of steps is sent after this many steps or this much event time, whichever comes first."""

LAYOUT: Final = "twincast-recording"
LAYOUT_VERSION: Final = 1
_FILES = {ENGINES.name: "engines.jsonl.gz", REQUESTS.name: "requests.jsonl.gz", STEPS.name: "steps.jsonl.gz"}
_DECODERS: dict[str, msgspec.json.Decoder[InputRecord]] = {
    ENGINES.name: msgspec.json.Decoder(EngineConfig),
    REQUESTS.name: msgspec.json.Decoder(RequestRecord),
    STEPS.name: msgspec.json.Decoder(StepRecord),
}
_EVENT_ORDER = (EngineConfig, RequestArrived, RequestRejected, RequestAborted, RequestFinished, StepBatch, EngineStats)


class Event(NamedTuple):
    """One message of a recording: where it goes, its key, the record, and its event time in microseconds."""

    topic: str
    key: str
    record: InputRecord
    at_us: int


class RecordingMeta(msgspec.Struct, frozen=True, kw_only=True):
    """`meta.json` of the project's own layout."""

    layout: str
    version: int
    name: str
    source: str = ""
    deployments: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    tick_us: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording at one input level; iterate to get its events in order. `t0_us` is its start, microseconds.

    `tick_us` is set where the source's clock ticks coarsely: gaps between arrivals within a tick mean nothing.
    """

    name: str
    level: Level
    t0_us: int
    events: tuple[Event, ...]
    source: str = ""
    tick_us: int | None = None

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    @property
    def deployments(self) -> tuple[str, ...]:
        """All deployments in it, sorted."""
        return tuple(sorted({event.record.deployment for event in self.events}))

    @property
    def deployment(self) -> str:
        """The only deployment. Raises ConfigError if there are none or several."""
        names = self.deployments
        if len(names) != 1:
            raise ConfigError(
                f"recording {self.name} holds {len(names)} deployments {names[:5]}; name the one you mean"
            )
        return names[0]

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        """Engine configurations, in order."""
        return tuple(event.record for event in self.events if isinstance(event.record, EngineConfig))

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """Request events, in order."""
        return tuple(event.record for event in self.events if isinstance(event.record, RequestRecord))

    @property
    def step_batches(self) -> tuple[StepBatch, ...]:
        """Messages of steps, in order."""
        return tuple(event.record for event in self.events if isinstance(event.record, StepBatch))

    @property
    def counts(self) -> dict[str, int]:
        """How many records of each kind, by wire tag; `step` counts single steps."""
        counts = Counter(str(event.record.__struct_config__.tag) for event in self.events)
        if batches := self.step_batches:
            counts["step"] = sum(len(batch.steps) for batch in batches)
        return dict(sorted(counts.items()))


def read_recording(folder: Path | str, level: Level = "S3") -> Recording:
    """The recording in `folder`, reduced to what input level `level` would see.

    S0: engine configurations and ends of requests as a client sees them. S1: plus engine stamps and counts from
    metrics. S2: plus arrivals and steps without rows. S3: everything; counts from metrics are left out from S2 on
    where steps of the engine count what is running.

    Raises ConfigError naming file, line and field if anything is missing, truncated or malformed.
    """
    from pipelines.ingest.lab_recording import read_lab_events

    if level not in get_args(Level):
        raise ConfigError(f"input level {level!r} is unknown; expected one of {', '.join(get_args(Level))}")
    path = Path(folder)
    meta_path = path / "meta.json"
    raw = read_all(meta_path)
    try:
        head = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{meta_path} is not JSON ({error}); expected the recording's description") from error
    if not isinstance(head, dict):
        raise ConfigError(f"{meta_path} holds a {type(head).__name__}; expected an object")
    if "layout" in head:
        meta = _own_meta(meta_path, raw)
        events: Iterable[Event] = tuple(_read_own(path))
        _require_all(path, meta, events)
        name, source, tick_us = meta.name, meta.source, meta.tick_us
    else:
        events = read_lab_events(path, raw, level)
        name, source, tick_us = str(head.get("name") or path.name), "vllm-lab", None
    ordered = at_level(in_order(events), level)
    return Recording(name, level, min((event.at_us for event in ordered), default=0), ordered, source, tick_us)


def write_recording(
    folder: Path | str,
    events: Iterable[Event],
    name: str,
    source: str,
    notes: Iterable[str] = (),
    tick_us: int | None = None,
) -> Path:
    """Writes the own layout, whole or not at all; the same events give the same bytes. Returns the folder.

    Raises ConfigError if the folder already holds something or cannot be written.
    """
    path = Path(folder)
    recording = Recording(name, "S3", 0, in_order(events), source)
    meta = RecordingMeta(
        layout=LAYOUT,
        version=LAYOUT_VERSION,
        name=name,
        source=source,
        deployments=recording.deployments,
        counts=recording.counts,
        notes=tuple(notes),
        tick_us=tick_us,
    )
    require_new_folder(path)
    scratch = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        scratch.mkdir(parents=True)
        for topic, file_name in _FILES.items():
            records = [event.record for event in recording if event.topic == topic]
            if records:
                (scratch / file_name).write_bytes(_gzip(b"".join(encode(record) + b"\n" for record in records)))
        (scratch / "meta.json").write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")
        scratch.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another folder") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path


def require_new_folder(path: Path) -> None:
    """Raise ConfigError unless a recording can be written there: for before the work, not after it."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; name a new folder for the recording")
    if path.is_dir() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; name a new folder for the recording")


def event_of(record: InputRecord) -> Event:
    """The record as a message: its topic, key and event time. A batch of steps is sent when its last step ends."""
    if isinstance(record, EngineConfig):
        return Event(ENGINES.name, f"{record.deployment}/{record.engine}", record, record.at_us)
    if isinstance(record, StepBatch):
        return Event(STEPS.name, record.deployment, record, record.steps[-1].at_us if record.steps else 0)
    topic = STEPS if isinstance(record, EngineStats) else REQUESTS
    return Event(topic.name, record.deployment, record, record.at_us)


def batched_steps(deployment: str, engine: str, steps: Iterable[Step], epoch: int = 0) -> Iterator[StepBatch]:
    """Steps of one engine, in order, as messages of at most `BATCH_STEPS` steps and `BATCH_US` of event time."""
    pending: list[Step] = []
    for step in steps:
        if pending and (len(pending) >= BATCH_STEPS or step.at_us - pending[0].start_us > BATCH_US):
            yield StepBatch(deployment=deployment, engine=engine, epoch=epoch, steps=tuple(pending))
            pending.clear()
        pending.append(step)
    if pending:
        yield StepBatch(deployment=deployment, engine=engine, epoch=epoch, steps=tuple(pending))


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Sorted by event time, then kind of record (arrivals before ends), then key; otherwise as given."""
    rank: dict[type, int] = {kind: place for place, kind in enumerate(_EVENT_ORDER)}
    return tuple(sorted(events, key=lambda event: (event.at_us, rank[type(event.record)], event.key)))


def at_level(events: Iterable[Event], level: Level) -> tuple[Event, ...]:
    """What input level `level` sees of `events`; see `read_recording`."""
    kept = tuple(events)
    stepping = {
        (event.record.deployment, event.record.engine)
        for event in kept
        if isinstance(event.record, StepBatch) and any(step.running is not None for step in event.record.steps)
    }
    reduced = (_reduce(event, level, stepping) for event in kept)
    return tuple(event for event in reduced if event is not None)


def _reduce(event: Event, level: Level, stepping: set[tuple[str, str]]) -> Event | None:
    record = event.record
    if isinstance(record, EngineStats):
        told_by_steps = level in ("S2", "S3") and (record.deployment, record.engine) in stepping
        return None if level == "S0" or told_by_steps else event
    if isinstance(record, StepBatch):
        if level in ("S0", "S1"):
            return None
        return event if level == "S3" else event._replace(record=_without_rows(record))
    if isinstance(record, RequestArrived):
        return event if level in ("S2", "S3") else None
    if isinstance(record, EngineConfig) and level in ("S0", "S1"):
        return event._replace(record=replace(record, emits_steps=False))
    if isinstance(record, RequestFinished) and level == "S0":
        return event._replace(record=_client_view(record))
    return event


def _without_rows(batch: StepBatch) -> StepBatch:
    return replace(batch, steps=tuple(replace(step, rows=()) for step in batch.steps))


def _client_view(record: RequestFinished) -> RequestFinished:
    return replace(
        record,
        engine_queued_us=None,
        engine_scheduled_us=None,
        engine_first_token_us=None,
        engine_last_token_us=None,
        cached_tokens=None,
        preemptions=None,
        chunks=(),
    )


def _own_meta(path: Path, raw: bytes) -> RecordingMeta:
    try:
        meta = msgspec.json.decode(raw, type=RecordingMeta)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} does not describe a recording: {error}") from error
    if meta.layout != LAYOUT or not 1 <= meta.version <= LAYOUT_VERSION:
        found = f"layout {meta.layout!r} version {meta.version}"
        raise ConfigError(
            f"{path} has {found}; this program reads {LAYOUT!r} up to version {LAYOUT_VERSION}, update it"
        )
    for topic, count_of in ((REQUESTS, ("arrived", "finished", "rejected", "aborted")), (STEPS, ("steps", "stats"))):
        file = path.parent / _FILES[topic.name]
        if any(meta.counts.get(tag) for tag in count_of) and not file.exists():
            raise ConfigError(f"{file} is missing although {path.name} counts its records; copy the recording again")
    return meta


def _require_all(path: Path, meta: RecordingMeta, events: Iterable[Event]) -> None:
    """A file cut between two compressed stretches reads like a whole one; only the counts tell."""
    found = Counter(str(event.record.__struct_config__.tag) for event in events)
    for tag, count in meta.counts.items():
        if tag != "step" and found[tag] < count:
            raise ConfigError(
                f"{path} holds {found[tag]:,} records {tag!r} and meta.json counts {count:,}; copy the recording again"
            )


def _read_own(path: Path) -> Iterator[Event]:
    for topic, file_name in _FILES.items():
        file = path / file_name
        if not file.exists():
            continue
        decoder = _DECODERS[topic]
        for number, line in read_lines(file):
            try:
                yield event_of(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                name = non_finite_field(line)
                reason = f"{name} is not a finite number" if name else str(error)
                raise ConfigError(
                    f"{file} line {number}: {reason}; correct the line, or copy the recording again"
                ) from error


def _gzip(data: bytes) -> bytes:
    """Gzip without a time or a name inside, so that equal content gives equal files."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()
