"""What a simulation starts from: a recording, an archive or trace files of any known format, as requests and engines.

Simulates nothing. Laws: a row that cannot be used stops everything before it starts, by file, row and field, unless
such rows are to be left out, and then it is counted; a recording read twice gives the same source.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.archive.archived_recording import read_archived
from pipelines.errors import ConfigError
from pipelines.ingest.importing import FileReport, read_files
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Source
from schemas.engines import EngineConfig
from schemas.requests import RequestFinished, RequestRecord
from schemas.steps import Step, StepBatch
from twin.job import FrontendOverheads
from twin.known.requests import KnownRequests, known_requests
from twin.overheads import FrontendModel

NOT_ROWS = ("not_a_record", "not_selected", "no_request", "duplicate")
"""Refusals that say nothing against a file: lines of a log, other spans, windows not asked for, a row told twice."""
TRACE = "trace"


@dataclass(frozen=True, slots=True, eq=False)
class TrafficSource:
    """One deployment of a recording or of trace files. `steps` are by engine; `overheads` are what its stamps teach."""

    name: str
    deployment: str
    requests: KnownRequests
    engines: tuple[EngineConfig, ...]
    steps: dict[str, tuple[Step, ...]]
    finished: tuple[RequestFinished, ...]
    overheads: FrontendOverheads
    notes: tuple[str, ...] = ()


def read_source(
    paths: Sequence[Path],
    *,
    format_name: str | None = None,
    deployment: str | None = None,
    skip_refused: bool = False,
) -> TrafficSource:
    """Read and fold. Raises ConfigError if there is nothing to simulate, or a row is bad and not to be skipped."""
    records, notes = _records(paths, format_name, deployment, skip_refused)
    chosen = _deployment(records, deployment, paths)
    own = [record for record in records if record.deployment == chosen]
    told = [record for record in own if isinstance(record, RequestRecord)]
    name = ", ".join(path.name for path in paths)
    engines = {record.engine: record for record in own if isinstance(record, EngineConfig)}
    try:
        requests = known_requests(told, min(_from_us(record) for record in own))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}; give a trace that tells it") from error
    finished = tuple(record for record in told if isinstance(record, RequestFinished))
    return TrafficSource(
        name=name,
        deployment=chosen,
        requests=requests,
        engines=tuple(config for _, config in sorted(engines.items()) if not config.removed),
        steps=_steps(own),
        finished=finished,
        overheads=_overheads(finished),
        notes=notes,
    )


def _records(
    paths: Sequence[Path], format_name: str | None, deployment: str | None, skip_refused: bool
) -> tuple[list[InputRecord], tuple[str, ...]]:
    if len(paths) == 1 and paths[0].is_dir() and format_name in (None, "recording"):
        return [event.record for event in read_archived(paths[0])], ()
    report, records = read_files(format_name, paths, source=Source(deployment=deployment or TRACE))
    notes = list(report.notes)
    for file in report.files:
        bad = {reason: count for reason, count in file.refused.items() if reason not in NOT_ROWS}
        if bad and not skip_refused:
            raise ConfigError(_refusal(file, bad))
        if bad:
            reasons = ", ".join(f"{count} {reason}" for reason, count in bad.items())
            notes.append(f"{file.path.name}: {sum(bad.values())} of {file.rows_in} rows left out ({reasons})")
    return records, tuple(notes)


def _refusal(file: FileReport, bad: dict[str, int]) -> str:
    first = next(example for example in file.examples if example.reason in bad)
    where = f"{file.path} row {first.row}" + (f" field {first.field}" if first.field else "")
    more = sum(bad.values()) - 1
    others = f" (and {more} rows more)" if more else ""
    if not file.rows_out:
        return f"{where}: {first.reason}: {first.detail}{others}; give a trace of requests"
    return f"{where}: {first.reason}: {first.detail}{others}; correct the file, or leave such rows out: --skip-refused"


def _deployment(records: Iterable[InputRecord], wanted: str | None, paths: Sequence[Path]) -> str:
    """The one to simulate: as named, or the only one with requests."""
    found = sorted({record.deployment for record in records if isinstance(record, RequestRecord)})
    if wanted is not None and wanted in found:
        return wanted
    if not found:
        raise ConfigError(f"{', '.join(map(str, paths))} holds no requests to simulate; give a recording or a trace")
    names = ", ".join(found[:5])
    if wanted is not None:
        raise ConfigError(f"{paths[0]} holds no deployment {wanted!r}, only {names}; name one of these")
    if len(found) != 1:
        raise ConfigError(f"{paths[0]} holds {len(found)} deployments ({names}); name one: --deployment NAME")
    return found[0]


def _from_us(record: InputRecord) -> int:
    """The earliest time that a record speaks of."""
    if isinstance(record, StepBatch):
        return min((step.start_us for step in record.steps), default=2**62)
    return min(getattr(record, "arrived_us", None) or record.at_us, record.at_us)


def _steps(records: Iterable[InputRecord]) -> dict[str, tuple[Step, ...]]:
    steps: dict[str, list[Step]] = {}
    for record in records:
        if isinstance(record, StepBatch):
            steps.setdefault(record.engine, []).extend(record.steps)
    return {name: tuple(sorted(rows, key=lambda step: step.start_us)) for name, rows in sorted(steps.items())}


def _overheads(finished: Iterable[RequestFinished]) -> FrontendOverheads:
    """What the way into the engine and back took, from all requests that tell it."""
    model = FrontendModel()
    for record in finished:
        model.on_finished(record)
    return model.overheads()
