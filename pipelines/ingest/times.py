"""Times and numbers as sources write them, to microseconds and counts. Guesses nothing that was not declared.

A unit is declared per format; only `auto` tells seconds, milliseconds, microseconds and nanoseconds apart by size, and
only for instants since 1990. Naive timestamps take a declared zone. What cannot be is refused with the field's name.

Laws: no value whatever raises anything but `RowError`; booleans, NaN and infinities are never numbers; a duration is
never negative, and a missing one is None, never 0.
"""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from schemas.base import EARLIEST_US, LATEST_US, MAX_TOKENS

Unit = Literal["s", "ms", "us", "ns", "iso", "auto"]

US_PER = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
MIN_STAMPS = 20
TICK_SHARE = 0.98
JITTER_US = 2_000
TICKS_US = tuple(round(tick_s * 1_000_000) for tick_s in (60, 30, 10, 5, 3, 2, 1, 0.5, 0.2, 0.1))
"""Ticks that clocks of traces have, coarsest first: the coarsest that nearly all stamps keep is the clock's."""
_ISO = re.compile(r"(\d{4})-(\d{2})-(\d{2})[T ](\d{2}):(\d{2}):(\d{2})(?:[.,](\d{1,12}))?\s*(Z|z|[+-]\d{2}:?\d{2})?")
_DIGITS = re.compile(r"[+-]?\d{1,30}(\.\d*)?([eE][+-]?\d{1,3})?")


class RowError(Exception):
    """One row cannot be used. `field` names the column, `reason` is a short stable code."""

    def __init__(self, field: str, reason: str, detail: str) -> None:
        super().__init__(field, reason, detail)
        self.field = field
        self.reason = reason
        self.detail = detail


def number(value: Any, field: str, *, text: bool = False) -> float:
    """A finite number. `text` allows it to be written as a string, as CSV does and some JSON sources do.

    >>> number("18.5", "ttft", text=True)
    18.5
    """
    if value is None or value == "":
        raise RowError(field, "missing_field", "is empty; expected a number")
    if isinstance(value, str):
        value = value.strip()
        if not text or not _DIGITS.fullmatch(value):
            reason = "non_finite" if value.lower().lstrip("+-") in ("nan", "inf", "infinity") else "bad_type"
            raise RowError(field, reason, f"{value[:40]!r}; expected a number")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError(field, "bad_type", f"{str(value)[:40]!r}; expected a number")
    if isinstance(value, int) and abs(value) > 2**63:
        raise RowError(field, "int_out_of_range", "expected a number of at most 63 bits")
    if not math.isfinite(value):
        raise RowError(field, "non_finite", f"{value}; expected a finite number")
    return value


def tokens(value: Any, field: str, *, text: bool = False) -> int:
    """A whole number of tokens, 0 to 100 million; `1.0` is whole."""
    found = number(value, field, text=text)
    if found != int(found):
        raise RowError(field, "bad_type", f"{found}; expected a whole number of tokens")
    if not 0 <= found <= MAX_TOKENS:
        raise RowError(field, "out_of_range", f"{found}; expected 0 to {MAX_TOKENS} tokens")
    return int(found)


def duration_us(value: Any, field: str, unit: Unit = "s", *, text: bool = False) -> int:
    """A duration >= 0 of at most a week in microseconds."""
    found = number(value, field, text=text) * US_PER[unit]
    if found < 0:
        raise RowError(field, "negative_duration", f"{value} {unit}; expected at least 0")
    if found > 7 * 24 * 3600e6:
        raise RowError(field, "out_of_range", f"{value} {unit}; expected at most a week")
    return round(found)


def instant_us(value: Any, field: str, unit: Unit, zone: str = "UTC", *, text: bool = False) -> int:
    """An instant in microseconds since the epoch, written in `unit` since the epoch or as ISO 8601.

    >>> [instant_us(v, "t", "auto") for v in (1796052001, 1796052001000, 1796052001000000)]
    [1796052001000000, 1796052001000000, 1796052001000000]
    >>> instant_us("2023-11-16 18:15:46.6805900", "t", "iso")
    1700158546680590
    """
    if unit == "iso" or (unit == "auto" and isinstance(value, str) and _ISO.fullmatch(value.strip())):
        found = _iso_us(value, field, zone)
    else:
        exact = number(value, field, text=text)
        found = _scaled_us(exact, _unit_of(exact) if unit == "auto" else unit)
    if not EARLIEST_US <= found <= LATEST_US:
        raise RowError(field, "timestamp_unit", f"{value} is not an instant in {unit} between 2000 and 2100")
    return found


def offset_us(value: Any, field: str, unit: Unit, t0_us: int, *, text: bool = False) -> int:
    """An instant written relative to the source's own start, or on a clock that counts from boot, placed at `t0_us`."""
    found = t0_us + _scaled_us(number(value, field, text=text), unit)
    if not EARLIEST_US <= found <= LATEST_US:
        raise RowError(field, "out_of_range", f"{value} {unit} after the start; expected within this century")
    return found


def zone_of(name: str) -> timezone | ZoneInfo:
    """A zone by IANA name or as `+02:00`. Raises ValueError if there is none such."""
    if match := re.fullmatch(r"([+-])(\d{2}):?(\d{2})", name):
        minutes = int(match[2]) * 60 + int(match[3])
        return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"time zone {name!r} is unknown; expected an IANA name or an offset like +02:00") from error


def tick_of(stamps_us: Sequence[int]) -> int | None:
    """The tick of a quantised clock, microseconds; None if stamps are fine-grained or too few to say.

    >>> tick_of([3_000_000 * (k // 4) + k % 3 * 1_000 for k in range(100)])
    3000000
    """
    stamps = np.asarray(stamps_us, dtype=np.int64)
    if stamps.size < MIN_STAMPS:
        return None
    for tick_us in TICKS_US:
        beside = np.abs((stamps - stamps[0] + tick_us // 2) % tick_us - tick_us // 2)
        if float(np.mean(beside <= JITTER_US)) >= TICK_SHARE:
            return tick_us
    return None


def _unit_of(value: float) -> Unit:
    """By size: 1990 to 2100 in one unit is in no other."""
    for unit, scale in US_PER.items():
        if 631_152_000e6 <= value * scale <= LATEST_US:
            return unit  # type: ignore[return-value]
    return "s"


def _scaled_us(value: float, unit: Unit) -> int:
    if isinstance(value, int):
        return value // 1000 if unit == "ns" else value * int(US_PER[unit])
    return round(value * US_PER[unit])


def _iso_us(value: Any, field: str, zone: str) -> int:
    match = _ISO.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise RowError(field, "bad_type", f"{str(value)[:40]!r}; expected a time like 2024-05-10 00:00:00.009930")
    fraction = (match[7] or "0")[:7].ljust(7, "0")
    micros = round(int(fraction) / 10)
    offset = match[8]
    try:
        where = zone_of(zone if offset is None else "+00:00" if offset in "Zz" else offset)
        moment = datetime(*(int(match[i]) for i in range(1, 7)), tzinfo=where)  # type: ignore[misc, arg-type]
    except (ValueError, OverflowError) as error:
        raise RowError(field, "bad_type", f"{value[:40]!r} is no date ({error})") from error
    return round(moment.timestamp()) * 1_000_000 + micros
