"""What a run has learned, as a file for later runs to begin with. Learns nothing.

Law: what is written reads back as the same snapshot, and the same snapshot gives the same bytes.
"""

import gzip
import zlib
from pathlib import Path

from pipelines.errors import ConfigError
from schemas.codec import SchemaError, decode, encode
from schemas.state import Snapshot
from schemas.topics import STATE
from twin.core import Core, SnapshotError
from twin.settings import CoreSettings


def write_warm(path: Path, snapshot: Snapshot) -> None:
    """Write the file, compressed. Raises ConfigError where that cannot be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(encode(snapshot), compresslevel=9, mtime=0))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file") from error


def read_warm(path: Path) -> Snapshot:
    """Read the file. Raises ConfigError where it is missing, damaged, or of another program."""
    try:
        found: Snapshot = decode(STATE.name, gzip.decompress(path.read_bytes())).record
        Core(found.deployment, CoreSettings()).adopt(found)
    except (OSError, EOFError, zlib.error, SchemaError, SnapshotError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(
            f"warm file {path} cannot be used ({error}); make it anew with `twincast backtest DIR --save-state FILE`"
        ) from error
    return found
