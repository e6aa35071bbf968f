"""ServeGen client files: a rate, its burstiness and a law per window, not requests. Requests are drawn from them.

`*-trace.csv` has no header: window start (s), rate (requests/s), CV of gaps, law (Gamma, Weibull or empty), two
parameters. `*-dataset.json[.gz]` beside it gives token lengths per window as probabilities in a text. Windows that
start beyond `limit_s` are refused as `not_selected`: two weeks of a large client are tens of millions of requests.

Laws: the same seed gives the same requests; drawn gaps have the window's rate and CV.
Source: alibaba/ServeGen (Apache-2.0).
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipelines.errors import ConfigError
from pipelines.ingest.lifecycle import Life, life_records
from pipelines.ingest.lines import read_all
from pipelines.ingest.recording import InputRecord
from pipelines.ingest.rows import Columns, Format, Head, Outcome, Source, cell, csv_rows, each_row
from pipelines.ingest.times import RowError, number

HEADER = ("start_s", "rate", "cv", "law", "first", "second")
DEFAULT_WINDOW_S = 600.0
LAWS = ("Gamma", "Weibull", "")
_FIRST_LINE = re.compile(r"\d+,[\d.eE+-]+,[\d.eE+-]*,(Gamma|Weibull|)(,[\d.eE+-]*){2}")
_PAIR = re.compile(r"(\d+)\s*:\s*([0-9.eE+-]+)")
_LAW = re.compile(rf"\s*\{{\s*{_PAIR.pattern}(\s*,\s*{_PAIR.pattern})*\s*,?\s*\}}\s*")
_MAX_TOKENS = 10**9
_MAX_PER_WINDOW = 2_000_000

Law = tuple[NDArray[np.int64], NDArray[np.float64]]
Lengths = tuple[float, Law | None, Law | None]
"""A window's start in seconds, and the laws of input and output tokens; None where the client sent nothing."""


def _matches(head: Head) -> bool:
    return bool(_FIRST_LINE.fullmatch(head.first.strip()))


def is_dataset(head: Head) -> bool:
    """True for the file of token lengths that belongs to a trace."""
    first = next(iter(head.json.values()), None) if isinstance(head.json, dict) else None
    return isinstance(first, dict) and {"input_tokens", "output_tokens"} <= set(first)


def parse_law(text: str, field: str) -> Law | None:
    """Token counts and their probabilities out of a text like `{50: 0.4}`; None for `{}`. Evaluates nothing."""
    if text.strip() == "{}":
        return None
    whole = _LAW.fullmatch(text) is not None
    pairs = [(int(count), float(share)) for count, share in _PAIR.findall(text)] if whole else []
    total = math.fsum(share for _, share in pairs)
    if not pairs or not 0.0 < total < math.inf or min(share for _, share in pairs) < 0.0 or max(pairs)[0] > _MAX_TOKENS:
        raise RowError(field, "bad_law", f"{text[:40]!r}; expected token counts with probabilities")
    counts, shares = zip(*pairs, strict=True)
    return np.array(counts, dtype=np.int64), np.array(shares) / total


def _lengths(path: Path) -> list[Lengths]:
    stem = path.name.removesuffix("-trace.csv")
    for name in (f"{stem}-dataset.json", f"{stem}-dataset.json.gz"):
        file = path.with_name(name)
        if file.exists():
            break
    else:
        raise ConfigError(f"{path} needs {stem}-dataset.json beside it for token lengths; copy it there")
    try:
        table = msgspec.json.decode(read_all(file), type=dict[str, dict[str, str]])
        return sorted(
            (
                (
                    float(start),
                    parse_law(entry["input_tokens"], "input_tokens"),
                    parse_law(entry["output_tokens"], "output_tokens"),
                )
                for start, entry in table.items()
            ),
            key=lambda found: found[0],
        )
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise ConfigError(f"{file} is no table of token lengths ({error}); check the file") from error
    except RowError as error:
        raise ConfigError(f"{file} {error.field}: {error.detail}") from error


def _gaps_s(generator: np.random.Generator, rate: float, cv: float, law: str, many: int) -> NDArray[np.float64]:
    """Gaps with mean 1 / rate and coefficient of variation cv."""
    if law == "Weibull" and cv > 0.0:
        shape = _weibull_shape(cv)
        return generator.weibull(shape, many) / (rate * math.gamma(1.0 + 1.0 / shape))
    shape = 1.0 / (cv * cv) if cv > 0.0 else 1.0
    return generator.gamma(shape, 1.0 / (rate * shape), many)


def _weibull_shape(cv: float) -> float:
    """The shape whose coefficient of variation is cv, by bisection on a monotone function."""
    low, high = 0.05, 50.0
    for _ in range(80):
        middle = (low + high) / 2.0
        second = math.lgamma(1.0 + 2.0 / middle) - 2.0 * math.lgamma(1.0 + 1.0 / middle)
        low, high = (middle, high) if math.expm1(second) > cv * cv else (low, middle)
    return low


def _read(path: Path, source: Source) -> Iterator[Outcome]:
    lengths = _lengths(path)
    starts = [start for start, _, _ in lengths]
    rows = list(csv_rows(path, header=HEADER))
    window_s = _window_s(rows)

    def convert(number_: int, row: Columns) -> tuple[InputRecord, ...]:
        start_s = number(cell(row, "start_s"), "start_s", text=True)
        rate = number(cell(row, "rate"), "rate", text=True)
        if rate < 0.0 or cell(row, "law") not in LAWS:
            raise RowError("rate", "out_of_range", f"rate {rate}, law {row['law']!r}; expected >= 0, one of {LAWS}")
        if start_s >= source.limit_s:
            raise RowError("start_s", "not_selected", f"starts after the first {source.limit_s:.0f} s; raise the limit")
        if rate == 0.0:
            return ()
        cv = number(row["cv"], "cv", text=True) if row["cv"] else 1.0
        if rate * window_s > _MAX_PER_WINDOW:
            raise RowError("rate", "out_of_range", f"{rate} requests/s; at most {_MAX_PER_WINDOW} per window are drawn")
        generator = np.random.default_rng([source.seed, number_])
        _, isl, osl = lengths[max(bisect_right(starts, start_s) - 1, 0)]
        if isl is None or osl is None:
            raise RowError("rate", "no_lengths", f"{rate} requests/s but no token lengths for this window")
        return _draw(path, source, generator, start_s, _arrivals_s(generator, rate, cv, row["law"], window_s), isl, osl)

    return each_row(rows, convert)


def _window_s(rows: list[tuple[int, Any]]) -> float:
    """Length of a window: the step between the first two starts."""
    try:
        first, second = (number(cell(row, "start_s"), "start_s", text=True) for _, row in rows[:2])
    except (RowError, TypeError, ValueError):
        return DEFAULT_WINDOW_S
    return second - first if second > first else DEFAULT_WINDOW_S


def _arrivals_s(
    generator: np.random.Generator, rate: float, cv: float, law: str, window_s: float
) -> NDArray[np.float64]:
    many = int(rate * window_s * 1.5) + 100
    arrivals = np.cumsum(_gaps_s(generator, rate, cv, law, many))
    while arrivals[-1] < window_s and arrivals.size < _MAX_PER_WINDOW:
        arrivals = np.concatenate([arrivals, arrivals[-1] + np.cumsum(_gaps_s(generator, rate, cv, law, many))])
    return arrivals[arrivals < window_s]


def _draw(
    path: Path,
    source: Source,
    generator: np.random.Generator,
    start_s: float,
    arrivals_s: NDArray[np.float64],
    isl: Law,
    osl: Law,
) -> tuple[InputRecord, ...]:
    isl_tokens = generator.choice(isl[0], arrivals_s.size, p=isl[1]).tolist()
    osl_tokens = generator.choice(osl[0], arrivals_s.size, p=osl[1]).tolist()
    base_us = source.t0_us + round(start_s * 1e6)
    records: list[InputRecord] = []
    for place, arrival_s in enumerate(arrivals_s.tolist()):
        records += life_records(
            Life(
                deployment=source.named("servegen"),
                request_id=f"{path.stem}:{start_s:.0f}:{place}",
                arrived_us=base_us + round(arrival_s * 1e6),
                isl_tokens=isl_tokens[place],
                osl_tokens=osl_tokens[place],
            )
        )
    return tuple(records)


FORMAT = Format(
    "servegen",
    "ServeGen client files (requests drawn from their laws)",
    _matches,
    _read,
    notes=("requests are drawn from the client's laws, they are no recorded traffic",),
)
