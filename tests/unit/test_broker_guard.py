"""A command under guard does not outlive its parent, however that ends. Uses sleep in the place of a broker."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

GUARD = str(resources.files("pipelines.broker").joinpath("guard.py"))
PARENT = """
import subprocess, sys, time
guard = subprocess.Popen([sys.executable, "-I", "-S", *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(60)
"""


def state(pid: int) -> str:
    """The letter that ps shows, T for paused, empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z")


def gone_within(pid: int, limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not alive(pid)


@contextlib.contextmanager
def guarded(scratch_dir: str = ""):
    """A guard of ours over a sleep, and the sleep's process id."""
    command = [sys.executable, "-I", "-S", GUARD, scratch_dir, "sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        try:
            yield guard, int(guard.stdout.readline().split()[1])
        finally:
            guard.kill()


def test_signals_reach_the_command_and_its_end_ends_the_guard():
    with guarded() as (guard, pid):
        guard.stdin.write(b"SIGSTOP\nSIGCONT\nSIGTERM\n")
        guard.stdin.flush()
        assert guard.wait(5) == 128 + signal.SIGTERM
        assert not alive(pid)


def test_a_closed_pipe_ends_a_paused_command_and_its_directory(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with guarded(str(scratch)) as (guard, pid):
        guard.stdin.write(b"SIGSTOP\n")
        guard.stdin.flush()
        while state(pid) != "T":
            time.sleep(0.01)
        guard.stdin.close()
        assert guard.wait(3) != 0
        assert not alive(pid)
        assert not scratch.exists()


def test_a_command_that_ends_by_itself_keeps_its_directory(tmp_path):
    with guarded(str(tmp_path)) as (guard, pid):
        os.kill(pid, signal.SIGKILL)
        guard.wait(5)
    assert tmp_path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a child of its parent's death on Linux only")
def test_a_killed_guard_takes_the_command_with_it():
    with guarded() as (guard, pid):
        guard.kill()
        assert gone_within(pid, 2.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_parent_that_dies_leaves_nothing_behind(number):
    command = [sys.executable, "-c", PARENT, GUARD, "", "sleep", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        pid = int(parent.stdout.readline().split()[1])
        assert alive(pid)
        parent.send_signal(number)
        parent.wait(5)
        assert gone_within(pid, 2.0)
