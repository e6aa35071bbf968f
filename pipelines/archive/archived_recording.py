"""An archive as a recording, for whatever looks back at requests and steps. Replays nothing, keeps nothing but input.

Holds the input of the archive in memory, as a recording does. Laws: a message that the log holds twice counts once, as
it does live; what the core would refuse is left out and counted; a recording's archive gives the recording's events.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.archive.manifest import NAME
from pipelines.archive.reading import Archive, open_archive
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Event, Level, Recording, at_level, event_of, in_order, read_recording
from schemas.codec import SchemaError, decode
from schemas.engines import EngineConfig
from schemas.requests import RequestRecord
from schemas.steps import StepBatch
from schemas.topics import ENGINES, REQUESTS, STEPS

INPUTS = (REQUESTS.name, STEPS.name, ENGINES.name)


def read_archived(folder: Path, level: Level = "S3") -> Recording:
    """The recording or the archive in a folder, as input level `level` would see it. Raises ConfigError."""
    if not (folder / NAME).is_file():
        return read_recording(folder, level)
    archive = open_archive(folder)
    refused: Counter[str] = Counter()
    events = in_order(_events(archive, refused))
    without = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
    if not events:
        told = f" that can be read ({without})" if without else ""
        raise ConfigError(f"{folder} holds no requests, steps or engines{told}; record the topics {', '.join(INPUTS)}")
    return Recording(
        name=archive.name,
        level=level,
        t0_us=min(event.at_us for event in events),
        events=at_level(events, level),
        source=f"archive of {archive.manifest.source}" + (f", without {without}" if without else ""),
    )


def _events(archive: Archive, refused: Counter[str]) -> Iterator[Event]:
    told: set[Any] = set()
    for _, record in archive.records(INPUTS):
        if record.value is None:
            continue
        try:
            decoded = decode(record.topic, record.value)
        except SchemaError as error:
            refused[error.reason] += 1
            continue
        refused.update(error.reason for _, error in decoded.refused)
        found = _once(decoded.record, told)
        if found is not None:
            yield event_of(found)


def _once(record: Any, told: set[Any]) -> Any:
    """The record, or what of it was not told yet; None for nothing."""
    if isinstance(record, StepBatch):
        names = [(record.deployment, record.engine, record.epoch, step.step) for step in record.steps]
        fresh = tuple(step for step, name in zip(record.steps, names, strict=True) if name not in told)
        told.update(names)
        return msgspec.structs.replace(record, steps=fresh) if fresh else None
    if isinstance(record, EngineConfig):
        return record
    name = (record.deployment, getattr(record, "request_id", ""), type(record), record.at_us)
    if isinstance(record, RequestRecord) and name in told:
        return None
    told.add(name)
    return record
