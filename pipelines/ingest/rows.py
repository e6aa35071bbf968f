"""What every format reader shares: rows of a file, what became of each, and the declared settings of a source.

A reader is a function from a file to outcomes, one per row: accepted records or a refusal that names file, row and
field. Laws: rows in == rows accepted + rows refused, for every file; a reader raises `ConfigError` only for a file that
cannot be read at all.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from pipelines.ingest.lines import read_all, read_lines
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.times import RowError, Unit, zone_of
from schemas.base import EARLIEST_US, LATEST_US
from schemas.codec import schema_error

RELATIVE_T0_US = 1_704_067_200_000_000
"""2024-01-01: where sources that count from their own start are placed unless told otherwise."""
Columns = Mapping[str, Any]
_NOT_A_NUMBER = re.compile(r"(?<![\w\"])-?(?:NaN|Infinity)(?![\w\"])")


@dataclass(frozen=True, slots=True)
class Source:
    """What was declared about files: their deployment and engine, their clock, and how much to take of a law."""

    deployment: str = ""
    engine: str = ""
    t0_us: int = RELATIVE_T0_US
    zone: str = "UTC"
    unit: Unit | None = None
    limit_s: float = 3600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not EARLIEST_US <= self.t0_us <= LATEST_US:
            raise ConfigError(f"the start must lie between 2000 and 2100 in microseconds, got {self.t0_us}")
        if not 0.0 < self.limit_s <= 366 * 24 * 3600.0:
            raise ConfigError(f"the limit must be in (0, one year] seconds, got {self.limit_s}")
        try:
            zone_of(self.zone)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def named(self, fallback: str) -> str:
        """The declared deployment, else `fallback`."""
        return self.deployment or fallback or "default"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A row that was used: its number (from 1, the header not counted away) and what it became."""

    row: int
    records: tuple[InputRecord, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not used, and why."""

    row: int
    field: str
    reason: str
    detail: str = ""


Outcome = Accepted | Refused
Reader = Callable[[Path, Source], Iterator[Outcome]]


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, enough to tell its format: name, first line, and its first JSON value or text lines."""

    path: Path
    lines: tuple[str, ...]
    json: Any = None

    @property
    def first(self) -> str:
        """The first line, empty for an empty file."""
        return self.lines[0] if self.lines else ""

    def has_columns(self, *names: str) -> bool:
        """True if the first line is a CSV header with these columns."""
        found = {cell.strip() for cell in self.first.split(",")}
        return set(names) <= found

    def has_keys(self, *names: str) -> bool:
        """True if the first JSON value is an object with these keys."""
        return isinstance(self.json, dict) and set(names) <= set(self.json)


@dataclass(frozen=True, slots=True)
class Format:
    """One input format: its name, what it is, how to tell it, how to read it."""

    name: str
    about: str
    matches: Callable[[Head], bool]
    read: Reader
    notes: tuple[str, ...] = field(default=())


def each_row(
    rows: Iterable[tuple[int, Any]], convert: Callable[[int, Any], Iterable[InputRecord]]
) -> Iterator[Outcome]:
    """Convert rows one by one; a `RowError` becomes a refusal. A row that arrives as `RowError` is refused as it is."""
    for number, row in rows:
        try:
            if isinstance(row, RowError):
                raise row
            yield Accepted(number, tuple(convert(number, row)))
        except RowError as error:
            yield Refused(number, error.field, error.reason, error.detail)


def csv_rows(path: Path, required: Iterable[str] = (), header: Iterable[str] = ()) -> Iterator[tuple[int, Any]]:
    """Rows of a CSV file as mappings by column; `header` names the columns of a file that has none.

    Raises ConfigError if a required column is missing. Row numbers are line numbers.
    """
    columns = list(header)
    for number, line in read_lines(path):
        cells = _cells(line)
        if not columns:
            if isinstance(cells, RowError):
                raise ConfigError(f"{path} row {number}: the header cannot be read ({cells.reason}: {cells.detail})")
            columns = [cell.strip() for cell in cells]
            if missing := [name for name in required if name not in columns]:
                raise ConfigError(
                    f"{path} row {number}: no column {', '.join(missing)}; found {', '.join(columns)[:200]}"
                )
        elif isinstance(cells, RowError):
            yield number, cells
        elif len(cells) != len(columns):
            yield number, RowError("", "columns", f"{len(cells)} cells; expected {len(columns)}")
        else:
            yield number, dict(zip(columns, cells, strict=True))


def _cells(line: bytes) -> list[str] | RowError:
    try:
        return next(csv.reader(io.StringIO(line.decode("utf-8"))))
    except UnicodeDecodeError as error:
        return RowError("", "invalid_utf8", f"byte {error.start} of the line")
    except (csv.Error, StopIteration) as error:
        return RowError("", "bad_csv", str(error))


def jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Objects of a JSON Lines file; a line that is none arrives as `RowError`."""
    for number, line in read_lines(path):
        yield number, _object(line)


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Objects of a JSON file that is one array, or one object of objects (its values). Numbered from 1.

    Raises ConfigError if the file is neither.
    """
    try:
        document = msgspec.json.decode(read_all(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); check the file") from error
    values = list(document.values()) if isinstance(document, dict) else document
    if not isinstance(values, list):
        raise ConfigError(f"{path} holds a {type(document).__name__}; expected an array or an object of objects")
    for number, value in enumerate(values, start=1):
        yield number, value if isinstance(value, dict) else RowError("", "bad_type", "is no object")


def cell(row: Columns, name: str) -> Any:
    """A column's value. Raises RowError `missing_field` if the row has no such column."""
    if name not in row:
        raise RowError(name, "missing_field", "is not in the row")
    return row[name]


def _object(line: bytes) -> Any:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = schema_error("", line, error)
        return RowError(found.where, found.reason, found.detail)
    return value if isinstance(value, dict) else RowError("", "bad_type", f"is a {type(value).__name__}, not an object")


def read_head(path: Path, lines: int = 40) -> Head:
    """The beginning of a file. Raises ConfigError if it cannot be read."""
    found: list[str] = []
    try:
        for _, line in read_lines(path):
            found.append(line[:100_000].decode("utf-8", errors="replace"))
            if len(found) >= lines:
                break
    except ConfigError:
        if not found:
            raise
    return Head(path, tuple(found), _first_json(path, found))


def _first_json(path: Path, lines: list[str]) -> Any:
    """The value on the first line, or the whole file's (or its first element's) if that spans several lines."""
    if not lines or lines[0].lstrip()[:1] not in ("{", "["):
        return None
    try:
        # A number that is none must not hide what the file is: its row is refused later, by field.
        return msgspec.json.decode(_NOT_A_NUMBER.sub("null", lines[0]).encode())
    except msgspec.DecodeError:
        pass
    try:
        value = msgspec.json.decode(read_all(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError):
        return None
    return value[0] if isinstance(value, list) and value else value
