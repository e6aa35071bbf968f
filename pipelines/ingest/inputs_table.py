"""The table of docs/INPUTS.md: what became of every row of every file under a folder. Run it to write the table anew.

    python -m pipelines.ingest.inputs_table ../shared/data

Law: rows in == rows out + refused, per line of the table and in its total.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.errors import ConfigError
from pipelines.ingest.importing import FileReport, import_files
from pipelines.ingest.registry import FORMATS
from pipelines.ingest.rows import Source

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "INPUTS.md"
FORMATS_MARK = "<!-- formats -->"
TABLE_MARK = "<!-- table -->"
NOT_DATA = ("README.md", "MANIFEST.tsv", "LICENSE")
SERVEGEN_LIMIT_S = 600.0


@dataclass(slots=True)
class _Line:
    files: int = 0
    rows_in: int = 0
    rows_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    shown: str = ""

    def add(self, report: FileReport) -> None:
        """Count one file more."""
        self.files += 1
        self.rows_in += report.rows_in
        self.rows_out += report.rows_out
        self.refused.update(report.refused)
        self.records.update(report.records)
        if report.examples and not self.shown:
            first = report.examples[0]
            self.shown = f"row {first.row}{f', `{first.field}`' if first.field else ''}: {first.detail}".replace(
                "|", "/"
            )


def table_of(folder: Path) -> str:
    """The table in Markdown, a line per folder, format and set of refusals. Raises ConfigError if it is no folder."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name the one with the files to account for")
    lines: dict[tuple[str, str, str], _Line] = {}
    total = _Line()
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name in NOT_DATA:
            continue
        report = import_files(None, [path], check=True, source=Source(limit_s=SERVEGEN_LIMIT_S)).files[0]
        place = path.relative_to(folder).parts[0]
        lines.setdefault((place, report.format, " ".join(report.refused)), _Line()).add(report)
        total.add(report)
    rows = [_row(place, known, line) for (place, known, _), line in sorted(lines.items())]
    total.shown = ""
    heading = "| folder | format | files | rows in | rows out | refused | became | first refusal |"
    return "\n".join([heading, "|---|---|--:|--:|--:|---|---|---|", *rows, _row("**all**", "", total)])


def formats_of() -> str:
    """The formats there are, in Markdown."""
    return "\n".join(f"| `{known.name}` | {known.about} |" for known in FORMATS.values())


def document_with(text: str, formats: str, table: str) -> str:
    """The document with both tables replaced. Raises ConfigError if a mark is missing."""
    for mark, new in ((FORMATS_MARK, f"| format | what it is |\n|---|---|\n{formats}"), (TABLE_MARK, table)):
        parts = text.split(mark)
        if len(parts) != 3:
            raise ConfigError(f"{DOCUMENT.name} must hold {mark} twice, around the table; restore the marks")
        text = f"{parts[0]}{mark}\n{new}\n{mark}{parts[2]}"
    return text


def _row(place: str, known: str, line: _Line) -> str:
    refused = ", ".join(f"{many:,} {reason}" for reason, many in sorted(line.refused.items()))
    became = ", ".join(f"{many:,} {kind}" for kind, many in sorted(line.records.items()))
    cells = (place, f"`{known}`" if known else "", f"{line.files}", f"{line.rows_in:,}", f"{line.rows_out:,}")
    return "| " + " | ".join((*cells, refused, became, line.shown)) + " |"


def main(arguments: list[str]) -> int:
    """Write the tables into docs/INPUTS.md. Returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m pipelines.ingest.inputs_table FOLDER", file=sys.stderr)
        return 2
    try:
        table = table_of(Path(arguments[0]))
        text = document_with(DOCUMENT.read_text(encoding="utf-8"), formats_of(), table)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    DOCUMENT.write_text(text, encoding="utf-8")
    print(DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
