"""A file with a line of JSON per transition of an alert, suspected ones included. Reads nothing back.

Law: a line is whole or not there; one that was written is on the disk when `tell` returns.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from pipelines.outlets.alertmanager import SinkDownError
from schemas.alerts import Alert
from schemas.codec import encode


class AlertFile:
    """Appends to a file, which is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, alerts: Sequence[Alert]) -> None:
        """Append. Raises SinkDownError where it cannot; nothing is left half written then."""
        if not alerts:
            return
        data = b"".join(encode(alert) + b"\n" for alert in alerts)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "ab") as file:
                before = file.tell()
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(file.fileno(), before)
                    raise
        except OSError as error:
            raise SinkDownError(f"{self._path} cannot be written ({error.strerror or error}); make room") from error
