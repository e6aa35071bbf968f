"""Keeps a broker from outliving whoever started it: runs as a small process between the two.

Run as `python -I -S guard.py DIR COMMAND...`; imports the standard library only. Says `pid N` on standard
output, then carries out the signals named on standard input, one a line. Does not read what the command prints:
that goes to the guard's standard error.

Law: when the parent is gone, however it went, the command is gone within `GRACE_S` and `POLL_S` together, and
then DIR (a scratch directory; "" for none) too. A command that ends by itself leaves DIR alone.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

POLL_S = 0.5
GRACE_S = 5.0
PR_SET_PDEATHSIG = 1


def die_with_guard() -> None:
    """Ask Linux to kill the command when the guard itself is killed. Elsewhere: nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def obey(command: "subprocess.Popen[bytes]", parent_pid: int) -> None:
    """Pass signals on until the parent closes the pipe or disappears."""
    buffer = b""
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([0], [], [], POLL_S)
        if not readable:
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            command.send_signal(signal.Signals[line.decode()])


def put_down(command: "subprocess.Popen[bytes]", scratch_dir: str) -> None:
    """End a command whose parent is gone: politely, then not; a paused one has to wake first."""
    command.send_signal(signal.SIGTERM)
    command.send_signal(signal.SIGCONT)
    deadline_s = time.monotonic() + GRACE_S
    while command.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    command.kill()
    command.wait()
    if scratch_dir:
        shutil.rmtree(scratch_dir, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run the command to its end and return its exit code, negative for a signal."""
    parent_pid = os.getppid()
    scratch_dir, *words = arguments
    # The thread that forks must live as long as the command: PDEATHSIG looks at the thread, not the process.
    command = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, preexec_fn=die_with_guard)
    os.write(1, b"pid %d\n" % command.pid)
    orphaned = threading.Event()

    def watch() -> None:
        obey(command, parent_pid)
        orphaned.set()
        put_down(command, scratch_dir)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = command.wait()
    if orphaned.is_set():
        watcher.join()
    return code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code if code >= 0 else 128 - code)
