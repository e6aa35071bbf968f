"""Per-request rows of a simulated run, as CSV or JSON Lines. Decides nothing, writes no file.

Law: one row per request, in order of arrival; what is undefined is empty (null), never 0.
"""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.errors import ConfigError
from twin.engine.types import Status
from twin.known.comparison import Basis, observed_latencies, twin_latencies
from twin.known.requests import NOT_TOLD, End, KnownRequests
from twin.known.run import KnownRun

SUFFIXES = (".csv", ".jsonl")
DIGITS = 9


def require_rows_file(path: Path) -> None:
    """Raise ConfigError unless the name says how rows are to be written."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--rows {path}: rows are written as {' or '.join(SUFFIXES)}; name such a file")


def rows_file(path: Path, requests: KnownRequests, run: KnownRun, basis: Basis) -> bytes:
    """The rows as the bytes of a file whose name says the form."""
    rows = list(request_rows(requests, run, basis))
    if path.suffix == ".jsonl":
        return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def request_rows(requests: KnownRequests, run: KnownRun, basis: Basis) -> Iterator[dict[str, Any]]:
    """Times are seconds from the source's start; latencies as `basis` says; `observed_` is what was recorded."""
    names = [engine.config.engine for engine in run.engines]
    twin, observed = twin_latencies(requests, run, basis), observed_latencies(requests, basis)
    for i, request_id in enumerate(requests.ids):
        yield {
            "request_id": request_id,
            "engine": names[int(run.engine[i])],
            "status": Status(int(run.status[i])).name.lower(),
            "arrived_s": _plain(requests.arrived_s[i]),
            "isl_tokens": int(requests.isl_tokens[i]),
            "osl_tokens": int(requests.osl_tokens[i]),
            "cached_tokens": int(run.cached_tokens[i]),
            "preemptions": int(run.preemptions[i]),
            "queued_s": _plain(run.queued_s[i]),
            "scheduled_s": _plain(run.scheduled_s[i]),
            "first_token_s": _plain(run.first_s[i]),
            "last_token_s": _plain(run.last_s[i]),
            "ttft_s": _plain(twin.ttft_s[i]),
            "tpot_s": _plain(twin.tpot_s[i]),
            "e2e_s": _plain(twin.e2e_s[i]),
            "observed_status": End(int(requests.end[i])).name.lower(),
            "observed_ttft_s": _plain(observed.ttft_s[i]),
            "observed_tpot_s": _plain(observed.tpot_s[i]),
            "observed_e2e_s": _plain(observed.e2e_s[i]),
            "observed_preemptions": _told(requests.preemptions[i]),
            "observed_cached_tokens": _told(requests.cached_tokens[i]),
        }


def _plain(value: float) -> float | None:
    return round(float(value), DIGITS) if math.isfinite(value) else None


def _told(count: int) -> int | None:
    return None if count == NOT_TOLD else int(count)
