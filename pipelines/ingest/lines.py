"""Lines of text files, plain or gzipped, whatever their line ends. Does not parse what a line holds.

Law: every byte of the file is in exactly one line or in a line end; the last line counts without a newline too.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from pipelines.errors import ConfigError

BOM = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_BYTES = 64 * 1024 * 1024


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines (from 1) without CR, LF and byte order mark; blank lines are left out, their numbers stay.

    Gzip is told by its first bytes, not by the name.
    Raises ConfigError if the file is missing, unreadable, a broken gzip, or holds a line over 64 MiB.
    """
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ConfigError(
                        f"{path} line {number} is longer than {MAX_LINE_BYTES} bytes; is this a text file?"
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                line = line.rstrip(b"\r\n")
                if line.strip():
                    yield number, line
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; expected a file there, check the path") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path} is a truncated or damaged gzip ({error}); copy it again from its source") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error


def read_all(path: Path) -> bytes:
    """The whole file, unzipped if it is a gzip, without byte order mark. Raises ConfigError like `read_lines`."""
    try:
        data = path.read_bytes()
        if data[:2] == GZIP_MAGIC:
            data = gzip.decompress(data)
        return data.removeprefix(BOM)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing; expected a file there, check the path") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path} is a truncated or damaged gzip ({error}); copy it again from its source") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror or error}); check the path and its rights"
        ) from error
