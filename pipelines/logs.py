"""Log lines on stderr: short, with a bound on repetition. Writes nothing to stdout.

Law: a message that repeats fills no disk: after `BURST` of one kind within `WINDOW_S` the rest are counted, and the
count is told when the window ends.
"""

import logging
import sys
import time
from collections.abc import Callable

BURST = 10
WINDOW_S = 10.0
QUIET = ("faust", "mode", "aiokafka", "kafka", "asyncio", "numba")
"""Libraries that tell of their ordinary life at INFO."""


class RateLimit(logging.Filter):
    """Lets `burst` records of one kind (logger, level, template) through per window; `now` tells seconds."""

    def __init__(
        self, burst: int = BURST, window_s: float = WINDOW_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._now = now
        self._burst = burst
        self._window_s = window_s
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """False for one too many; the first after a window says how many were dropped."""
        kind = (record.name, record.levelno, str(record.msg)[:80])
        now_s = self._now()
        since_s, count = self._seen.get(kind, (now_s, 0))
        if now_s - since_s > self._window_s:
            if count > self._burst:
                record.msg = f"{record.msg} ({count - self._burst} more like this in between)"
            since_s, count = now_s, 0
        self._seen[kind] = (since_s, count + 1)
        if len(self._seen) > 1000:
            self._seen.pop(next(iter(self._seen)))
        return count < self._burst


def log_to_stderr(level: str) -> None:
    """Set up logging of this process; `level` is debug, info, warning or error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    handler.addFilter(RateLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    chosen = getattr(logging, level.upper())
    logging.getLogger("twincast").setLevel(chosen)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else logging.ERROR)
