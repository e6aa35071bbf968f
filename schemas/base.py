"""Building blocks of every wire struct: units as types, and the base classes. Holds no message of its own.

Law: every number on the wire is finite, bounded and carries its unit in its name.
"""

from typing import Annotated

from msgspec import Meta, Struct

SCHEMA_VERSION = 1
NEWEST_READABLE_VERSION = SCHEMA_VERSION + 1
"""A version only ever adds optional fields, so the next one still reads; beyond that nothing is promised."""
EARLIEST_US = 946_684_800_000_000
"""2000-01-01. A stamp below this was written in seconds or milliseconds."""
LATEST_US = 4_102_444_800_000_000
"""2100-01-01. A stamp above this was written in nanoseconds."""
MAX_TOKENS = 100_000_000
MAX_DURATION_US = 7 * 24 * 3600 * 1_000_000

Version = Annotated[int, Meta(ge=1, le=NEWEST_READABLE_VERSION, description="version of the wire format")]
EventTime = Annotated[int, Meta(ge=EARLIEST_US, le=LATEST_US, description="microseconds since the epoch")]
DurationUs = Annotated[int, Meta(ge=0, le=MAX_DURATION_US, description="microseconds")]
Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS, description="tokens")]
Count = Annotated[int, Meta(ge=0, le=2**53, description="how many, at least 0")]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9, description="seconds")]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0, description="a share between 0 and 1")]
NonNegative = Annotated[float, Meta(ge=0.0, le=1e15)]
Quantile = Annotated[float, Meta(gt=0.0, lt=1.0, description="a quantile strictly between 0 and 1")]


class Wire(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record or a part of one. A new field always has a default, so that old records still read."""


class Record(Wire, frozen=True, kw_only=True):
    """What a topic carries. A version that this program cannot read is refused when a record is decoded."""

    schema_version: Version = SCHEMA_VERSION


class Row(Struct, frozen=True, array_like=True):
    """A part that comes in thousands and travels as a JSON array, in field order."""
