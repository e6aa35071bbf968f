"""A thread that ends the process when its event loop has stopped turning, or an ordered end takes too long.

Only for processes of their own: it ends the whole process, whatever else runs in it. Law: it never ends a process
whose loop turned within `LOOP_SILENCE_S`, unless that was told to end.
"""

import logging
import os
import threading
import time
from typing import Self

log = logging.getLogger("twincast.heartbeat")

LOOP_SILENCE_S = 60.0
EXIT_STALLED = 70


class Heartbeat:
    """See the module; watches while its context is open."""

    def __init__(self) -> None:
        self._deadline_s = time.monotonic() + LOOP_SILENCE_S
        self._ending = False
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.beat()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()

    def beat(self) -> None:
        """The loop turns."""
        if not self._ending:
            self._deadline_s = time.monotonic() + LOOP_SILENCE_S

    def must_end_within(self, bound_s: float) -> None:
        """From now on the process has this long to end by itself."""
        self._ending = True
        self._deadline_s = time.monotonic() + bound_s

    def _watch(self) -> None:
        while time.monotonic() < self._deadline_s:
            if self._over.wait(0.2):
                return
        log.error("the process does not %s; ending it", "end" if self._ending else "get on: its event loop stands")
        os._exit(EXIT_STALLED)
