"""Files that appear whole or not at all. Knows nothing of what is in them.

Law: whoever reads the path sees the old content or all of the new one, whatever interrupts the writing. A link stays a
link, and what is no file (a pipe, a device such as /dev/null) is written into, never replaced.
"""

import os
from pathlib import Path
from uuid import uuid4

from pipelines.errors import ConfigError


def require_writable(path: Path) -> None:
    """Raise ConfigError unless a file can be written there: for before the work, not after it."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file")
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise ConfigError(f"{path} cannot be written: no right to write to it; name another file")
        return
    folder = _target(path).parent
    if not folder.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {folder}; make it or name another file")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{path} cannot be written: no right to write in {folder}; name another file")


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the path, then move into place. Raises ConfigError if that cannot be done; nothing is left then."""
    if _is_stream(path):
        try:
            with path.open("ab") as stream:
                stream.write(data)
        except OSError as error:
            raise _unwritable(path, error) from error
        return
    target = _target(path)
    scratch = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
    try:
        scratch.write_bytes(data)
        scratch.replace(target)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def _is_stream(path: Path) -> bool:
    if path.exists() and not path.is_file():
        return True
    # /dev/stdout and /dev/fd/3 may lead to a plain file, and are streams to whoever names them.
    return Path(os.path.abspath(path)).is_relative_to("/dev") and (path.is_symlink() or path.parent.is_symlink())


def _target(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written ({error.strerror or error}); name another file")
