"""Files of any known format to a recording, with an account of every row. Prints nothing (the command line does).

Laws: rows in == rows out + rows refused, per file; a row seen twice counts once; rows that contradict each other about
one request are all refused (`id_conflict`); with `check` nothing is written.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.ingest.not_traffic import refuse_file
from pipelines.ingest.recording import Event, InputRecord, batched_steps, event_of, read_recording, write_recording
from pipelines.ingest.registry import FORMATS, RECORDING, detect
from pipelines.ingest.rows import Accepted, Format, Outcome, Refused, Source, read_head
from pipelines.ingest.traffic_statistics import TrafficStatistics, traffic_statistics
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRejected
from schemas.steps import Step, StepBatch

MAX_EXAMPLES = 3
_REQUEST_RECORDS = (RequestArrived, RequestFinished, RequestAborted, RequestRejected)


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: its format (empty if none), its rows, and what was odd. `examples` shows some refusals per reason."""

    path: Path
    format: str
    rows_out: int
    refused: dict[str, int]
    examples: tuple[Refused, ...]
    records: dict[str, int]
    oddities: tuple[str, ...]

    @property
    def rows_in(self) -> int:
        """Rows of the file."""
        return self.rows_out + sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class ImportReport:
    """All files, the traffic in them, and where it was written (None with `check` or if nothing was accepted)."""

    files: tuple[FileReport, ...]
    statistics: tuple[TrafficStatistics, ...]
    notes: tuple[str, ...]
    out: Path | None


@dataclass(slots=True)
class _Read:
    """One file while it is read: outcomes in order; refusals may replace accepted rows later."""

    path: Path
    format: str
    notes: tuple[str, ...]
    outcomes: list[Outcome] = field(default_factory=list)


def import_files(
    format_name: str | None,
    files: Sequence[Path],
    *,
    out: Path | None = None,
    check: bool = False,
    source: Source | None = None,
) -> ImportReport:
    """Read `files` (or recording folders), account for every row, write a recording to `out` unless `check`.

    `format_name` None tells each file's format by its beginning.
    Raises ConfigError for a missing file, an unknown format name, a file that is not of the named format, and a folder
    that cannot be written.
    """
    if out is None and not check:
        raise ConfigError("no place to write to; give a folder, or only check")
    report, records = read_files(format_name, files, source=source)
    if out is None or check or not records:
        return report
    ticks = [entry.tick_us for entry in report.statistics if entry.tick_us]
    name = "+".join(dict.fromkeys(one.format for one in report.files if one.format))
    written = write_recording(
        out, _events(records), Path(out).name, name, report.notes, tick_us=max(ticks, default=None)
    )
    return replace(report, out=written)


def read_files(
    format_name: str | None, files: Sequence[Path], *, source: Source | None = None
) -> tuple[ImportReport, list[InputRecord]]:
    """The report of `files` and all records in them, nothing written. Raises ConfigError as `import_files`."""
    if format_name is not None and format_name not in (*FORMATS, RECORDING):
        raise ConfigError(f"format {format_name!r} is unknown; expected one of {', '.join((*FORMATS, RECORDING))}")
    if not files:
        raise ConfigError("no files to import; name at least one")
    declared = source or Source()
    read = [_read_one(format_name, path, declared) for path in files]
    _settle_identities(read)
    notes = tuple(dict.fromkeys(note for one in read for note in one.notes))
    records = [
        record
        for one in read
        for outcome in one.outcomes
        if isinstance(outcome, Accepted)
        for record in outcome.records
    ]
    statistics = traffic_statistics(records, judge_gaps=not any("reconstructed" in note for note in notes))
    ticks = {entry.tick_us for entry in statistics if entry.tick_us}
    notes += tuple(f"arrivals tick every {tick_us / 1e6:g} s: gaps within a tick are lost" for tick_us in sorted(ticks))
    return ImportReport(tuple(map(_report, read)), statistics, notes, None), records


def _read_one(format_name: str | None, path: Path, source: Source) -> _Read:
    if path.is_dir():
        if format_name not in (None, RECORDING):
            raise ConfigError(f"{path} is a folder; only recordings are folders, format {format_name!r} reads files")
        events = read_recording(path)
        outcomes: list[Outcome] = [Accepted(number, (event.record,)) for number, event in enumerate(events, start=1)]
        return _Read(path, RECORDING, (), outcomes)
    if not path.exists():
        raise ConfigError(f"{path} is missing; expected a file there, check the path")
    if format_name == RECORDING:
        raise ConfigError(f"{path} is a file; a recording is a folder with meta.json in it")
    chosen = _chosen(format_name, path)
    if chosen is None:
        return _Read(path, "", (), list(refuse_file(path, read_head(path))))
    return _Read(path, chosen.name, chosen.notes, list(chosen.read(path, source)))


def _chosen(format_name: str | None, path: Path) -> Format | None:
    return detect(read_head(path)) if format_name is None else FORMATS[format_name]


_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Told:
    """Where a life-cycle event was first told, and how."""

    outcomes: list[Outcome]
    place: int
    record: InputRecord
    conflict: bool = False


def _settle_identities(read: list[_Read]) -> None:
    """A request told twice counts once; a request told in two ways counts not at all."""
    told: dict[_Key, _Told] = {}
    for one in read:
        for place, outcome in enumerate(one.outcomes):
            if isinstance(outcome, Accepted):
                verdict = _verdict(one.outcomes, place, outcome, told)
                if verdict:
                    detail = "this request was told before" + (", otherwise" if verdict == "id_conflict" else "")
                    one.outcomes[place] = Refused(outcome.row, "request_id", verdict, detail)


def _verdict(outcomes: list[Outcome], place: int, row: Accepted, told: dict[_Key, _Told]) -> str:
    """Empty for a new row, `duplicate`, or `id_conflict`; a conflict refuses the row told first as well."""
    before: list[_Told] = []
    news: list[tuple[_Key, InputRecord]] = []
    for record in row.records:
        if isinstance(record, _REQUEST_RECORDS):
            key = (str(type(record).__struct_config__.tag), record.deployment, record.request_id)
            known = told.get(key)
            if known is None:
                news.append((key, record))
            else:
                before.append(known)
                known.conflict = known.conflict or known.record != record
    if not before:
        told.update({key: _Told(outcomes, place, record) for key, record in news})
        return ""
    if not any(known.conflict for known in before):
        return "duplicate"
    for known in before:
        known.conflict = True
        first = known.outcomes[known.place]
        known.outcomes[known.place] = Refused(first.row, "request_id", "id_conflict", "told otherwise later")
    return "id_conflict"


def _events(records: list[InputRecord]) -> list[Event]:
    """Messages; single steps of an engine are gathered into batches in order of time."""
    steps: dict[tuple[str, str, int], list[Step]] = {}
    events: list[Event] = []
    for record in records:
        if isinstance(record, StepBatch):
            steps.setdefault((record.deployment, record.engine, record.epoch), []).extend(record.steps)
        else:
            events.append(event_of(record))
    for (deployment, engine, epoch), found in sorted(steps.items()):
        ordered = sorted(found, key=lambda step: (step.start_us, step.step))
        events += map(event_of, batched_steps(deployment, engine, ordered, epoch))
    return events


def _report(one: _Read) -> FileReport:
    accepted = [outcome for outcome in one.outcomes if isinstance(outcome, Accepted)]
    refused = [outcome for outcome in one.outcomes if isinstance(outcome, Refused)]
    reasons = Counter(outcome.reason for outcome in refused)
    examples = [found for reason in reasons for found in _first(refused, reason)]
    kinds = Counter(str(type(record).__struct_config__.tag) for outcome in accepted for record in outcome.records)
    return FileReport(
        path=one.path,
        format=one.format,
        rows_out=len(accepted),
        refused=dict(sorted(reasons.items())),
        examples=tuple(examples),
        records=dict(sorted(kinds.items())),
        oddities=(*one.notes, *_oddities(accepted)),
    )


def _first(refused: list[Refused], reason: str) -> list[Refused]:
    return [outcome for outcome in refused if outcome.reason == reason][:MAX_EXAMPLES]


def _oddities(accepted: list[Accepted]) -> list[str]:
    found: list[str] = []
    arrivals = [
        (row.row, record.at_us) for row in accepted for record in row.records if isinstance(record, RequestArrived)
    ]
    back = [later[0] for earlier, later in pairwise(arrivals) if later[1] < earlier[1]]
    if back:
        found.append(f"{len(back)} rows arrive earlier than the row before them, first row {back[0]}")
    untimed = sum(isinstance(r, RequestFinished) and not r.timed for row in accepted for r in row.records)
    if untimed:
        found.append(f"{untimed} requests end at no told time: lengths only, no latencies")
    failed = sum(isinstance(r, RequestAborted) for row in accepted for r in row.records)
    if failed:
        found.append(f"{failed} requests failed or gave no token: no latencies from them")
    return found
