"""The thread that ends a stalled process: it ends nothing once its context is closed."""

import subprocess
import sys

from pipelines.heartbeat import EXIT_STALLED

STALLED = """
import time
from pipelines import heartbeat
heartbeat.LOOP_SILENCE_S = 0.3
{body}
"""


def exit_code(body: str) -> int:
    return subprocess.run([sys.executable, "-c", STALLED.format(body=body)], timeout=60, check=False).returncode


def test_a_loop_that_stands_ends_the_process() -> None:
    assert exit_code("with heartbeat.Heartbeat(): time.sleep(20)") == EXIT_STALLED


def test_a_closed_heartbeat_ends_nothing() -> None:
    assert exit_code("with heartbeat.Heartbeat(): pass\ntime.sleep(1.5)") == 0
