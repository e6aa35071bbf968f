"""Files that appear whole or not at all. Knows nothing of what is in them.

Law: whoever reads the path sees the old content or all of the new one, whatever interrupts the writing.
"""

import os
from pathlib import Path
from uuid import uuid4

from pipelines.errors import ConfigError


def require_writable(path: Path) -> None:
    """Raise ConfigError unless a file can be written there: for before the work, not after it."""
    folder = path.parent
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {folder}; make it or name another file")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written: no right to write in {folder}; name another file")


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the path, then move into place. Raises ConfigError if that cannot be done; nothing is left then."""
    scratch = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written ({error.strerror or error}); name another file") from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
