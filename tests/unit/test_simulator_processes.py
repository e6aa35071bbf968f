"""Simulations in processes: coarse before fine, errors told, a dead process replaced, none left behind."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.standard_job import standard_job
from pipelines.workers import SimulatorError, Simulators
from twin.insight import run_with_insight
from twin.job import SimulationJob, SimulationResult
from twin.simulate import run
from twin.split import joined

pytestmark = pytest.mark.slow
"""Each starts processes of its own."""


def slow_first(job: SimulationJob) -> SimulationResult:
    time.sleep(0.3)
    return replace(run(job), fallback=f"{time.monotonic_ns()}")


def fail(job: SimulationJob) -> SimulationResult:
    raise ValueError("no such engine")


def fail_second(job: SimulationJob) -> SimulationResult:
    if job.share[0] == 1:
        raise ValueError("no such share")
    return run(job)


def end_once(job: SimulationJob) -> SimulationResult:
    """Kills its own process the first time it runs a tick, as the kernel does to one that takes too much memory."""
    mark = Path(os.environ["TWINCAST_TEST_MARK"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run(job)


def end_always(job: SimulationJob) -> SimulationResult:
    os._exit(3)


def test_coarse_jobs_go_before_fine_ones_and_older_before_newer() -> None:
    async def act() -> None:
        async with Simulators(1, slow_first) as simulators:
            job = standard_job()
            first = simulators.submit(job)  # keeps the process busy while the others queue
            await asyncio.sleep(0.1)
            fine = simulators.submit(job.at_phase("fine"))
            newer = simulators.submit(replace(job, as_of_us=job.as_of_us + 1))
            older = simulators.submit(job)
            ended = [int(r.fallback) for r in await asyncio.gather(first, older, newer, fine)]
            assert ended == sorted(ended)

    asyncio.run(act())


def test_the_result_is_that_of_this_process() -> None:
    async def act() -> None:
        async with Simulators(1, run) as simulators:
            job = standard_job(2)
            there, here = await simulators.submit(job), run(job)
            assert there.scenario().horizons[0].latency_s.tobytes() == here.scenario().horizons[0].latency_s.tobytes()

    asyncio.run(act())


def test_shares_of_two_processes_are_the_whole() -> None:
    async def act() -> None:
        async with Simulators(2, run_with_insight) as simulators:
            job = replace(standard_job(3).at_phase("fine"), with_insight=True)
            there, here = await simulators.submit(job), run_with_insight(job)
            assert pickle.dumps(there) == pickle.dumps(joined([here]))
            assert there.insight is not None

    asyncio.run(act())


def test_a_share_that_fails_fails_the_job() -> None:
    async def act() -> None:
        async with Simulators(2, fail_second) as simulators:
            for _ in range(2):
                with pytest.raises(SimulatorError, match="no such share"):
                    await simulators.submit(standard_job(4))

    asyncio.run(act())


def test_an_error_is_told_to_who_waits_and_the_next_job_runs() -> None:
    async def act() -> None:
        async with Simulators(1, fail) as simulators:
            for _ in range(2):
                with pytest.raises(SimulatorError, match="no such engine"):
                    await simulators.submit(standard_job())
            assert simulators.restarts == 0

    asyncio.run(act())


def test_a_process_that_is_killed_is_replaced_and_its_job_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINCAST_TEST_MARK", str(tmp_path / "ended"))

    async def act() -> None:
        async with Simulators(1, end_once) as simulators:
            result = await simulators.submit(standard_job())
            assert result.simulated_requests > 0
            assert simulators.restarts == 1

    asyncio.run(act())


def test_a_job_that_always_ends_its_process_is_given_up() -> None:
    async def act() -> None:
        async with Simulators(1, end_always) as simulators:
            with pytest.raises(SimulatorError, match="ended its process each time"):
                await simulators.submit(standard_job())

    asyncio.run(act())


SCRIPT = """
import asyncio, os, sys
from pipelines.standard_job import standard_job
from pipelines.workers import Simulators

def pid(job):
    return os.getpid()

async def main():
    simulators = Simulators(1, pid)
    await simulators.start()
    print(await simulators.submit(standard_job()), flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()}
    ) as parent:
        if parent.stdout is None:
            raise AssertionError("no output of the parent")
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(10)
        deadline_s = time.monotonic() + 10.0
        while time.monotonic() < deadline_s and _runs(child):
            time.sleep(0.05)
        assert not _runs(child)


def _runs(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_ctrl_c_while_a_simulator_loads_leaves_no_trace_of_it() -> None:
    """A terminal sends SIGINT to the whole group; only the parent answers."""
    program = (
        "import asyncio, sys\n"
        "from pipelines.workers import Simulators\n"
        "from pipelines.standard_job import warm_up\n"
        "async def main():\n"
        "    async with Simulators(1, warm=warm_up):\n"
        "        print('begun', flush=True)\n"
        "        await asyncio.sleep(30)\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        asyncio.run(main())\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert (process.returncode, told) == (130, "")
