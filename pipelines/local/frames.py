"""Records <-> bytes in a log file. Opens no file, knows no topic.

A frame is: length of the payload, the same length with its bits turned, CRC-32 of the payload (three unsigned 32-bit
numbers), then the payload: offset and timestamp (two signed 64-bit numbers) and a msgpack array of key, value and
headers. All little-endian. The first frame of a file is its head, with offset -1 and `begin` and `next` offset.

Law: whatever prefix of a file of whole frames is left after a crash, `scan` finds the same frames up to the cut, and
tells damage in the middle from a torn last write.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from pipelines.errors import ConfigError
from pipelines.log import Header

_PREFIX = struct.Struct("<III")
_STAMP = struct.Struct("<qq")
_HEAD = struct.Struct("<qqqq")
_TURN = 0xFFFFFFFF
HEAD_OFFSET = -1

Body = tuple[bytes | None, bytes | None, tuple[Header, ...]]
_encode_body = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode


class LogDamagedError(ConfigError):
    """Bytes in the middle of a log file are not what was written."""


class Frame(NamedTuple):
    """One whole frame: where it ends in the scanned bytes, its offset and timestamp, its undecoded body."""

    end: int
    offset: int
    timestamp_ms: int
    body: memoryview

    def record(self) -> Body:
        """Key, value and headers."""
        return _decode_body(self.body)


@dataclass(slots=True)
class Rest:
    """Where `scan` stopped: the byte after the last whole frame; a torn write may follow."""

    end: int = 0


def frame(offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> bytes:
    """The bytes of one record."""
    return _seal(_STAMP.pack(offset, timestamp_ms) + _encode_body((key, value, headers)))


def head(begin: int, end: int) -> bytes:
    """The first frame of a file: first offset that counts, and the offset that follows when no record does."""
    return _seal(_HEAD.pack(HEAD_OFFSET, 0, begin, end))


def read_head(found: Frame) -> tuple[int, int]:
    """`begin` and `next` of a head."""
    begin, end = _STAMP.unpack(found.body)
    return begin, end


def _seal(payload: bytes) -> bytes:
    length = len(payload)
    return _PREFIX.pack(length, length ^ _TURN, zlib.crc32(payload)) + payload


def scan(data: bytes, rest: Rest, *, path: str = "", place: int = 0) -> Iterator[Frame]:
    """The whole frames of `data`, the bytes of `path` from `place` on; `rest` tells where they end.

    Raises LogDamagedError when bytes are wrong that a torn last write cannot explain: such a write leaves a part of
    a frame, followed by nothing, or by zeros where the machine lost power.
    """
    view, at, size = memoryview(data), 0, len(data)
    while at + _PREFIX.size <= size:
        length, turned, crc = _PREFIX.unpack_from(view, at)
        if length ^ turned != _TURN or length < _STAMP.size:
            if only_zeros(view[at + _PREFIX.size :]):
                break
            raise damaged(path, place + at)
        end = at + _PREFIX.size + length
        if end > size:
            break
        payload = view[at + _PREFIX.size : end]
        if zlib.crc32(payload) != crc:
            if only_zeros(view[end:]):
                break
            raise damaged(path, place + at)
        offset, timestamp_ms = _STAMP.unpack_from(payload)
        yield Frame(end, offset, timestamp_ms, payload[_STAMP.size :])
        rest.end = at = end


def only_zeros(data: memoryview) -> bool:
    """Whether no byte is set, as behind the last write before a loss of power."""
    return not bytes(data).strip(b"\0")


def damaged(path: str, at: int) -> LogDamagedError:
    """The error for wrong bytes at a place of a file."""
    return LogDamagedError(f"{path} is damaged at byte {at}; restore the file, or delete its topic's directory")
