"""The project's own records, one JSON object per line, of any input topic mixed: what a log of the topics holds.

Lines are read by the same codec as messages, so what is refused here is refused there, for the same reason.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.ingest.lines import read_lines
from pipelines.ingest.rows import Accepted, Format, Head, Outcome, Refused, Source
from schemas.codec import SchemaError, decode
from schemas.topics import ENGINES, REQUESTS, STEPS, Topic


def _topic(line: bytes) -> Topic:
    """By the tag: requests have an `event`, the others a `record`."""
    if b'"event"' in line[:200]:
        return REQUESTS
    return ENGINES if b'"record":"engine"' in line[:200].replace(b" ", b"") else STEPS


def _read(path: Path, _: Source) -> Iterator[Outcome]:
    for number, line in read_lines(path):
        try:
            decoded = decode(_topic(line).name, line)
        except SchemaError as error:
            yield Refused(number, error.where, error.reason, error.detail)
            continue
        if decoded.refused:
            index, found = decoded.refused[0]
            where = f"steps[{index}]" + found.where.removeprefix("$")
            yield Refused(number, where, found.reason, found.detail)
        else:
            yield Accepted(number, (decoded.record,))


def _matches(head: Head) -> bool:
    if not isinstance(head.json, dict) or "deployment" not in head.json:
        return False
    return "event" in head.json or head.json.get("record") in ("steps", "stats", "engine")


FORMAT = Format("native", "the project's own records, one per line", _matches, _read)
