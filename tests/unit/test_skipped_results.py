"""Results that do not come within a period: left out for live services, told to the log, and left out again."""

import asyncio
from typing import Any

import pytest
from test_worker_memory import Bench, on_a_bench, recording

from pipelines.playback import messages_of
from pipelines.skips import Skip, skip_of, skip_record
from schemas.codec import decode
from schemas.topics import FORECASTS, TICKS


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every service lives now, and a twentieth of a second is too long."""
    monkeypatch.setattr("pipelines.jobs.lives_now", lambda at_us, now_us: True)
    monkeypatch.setattr("pipelines.jobs.LATE_AFTER_PERIODS", 0.01)


async def skips(bench: Bench) -> list[Skip]:
    found = [skip_of(record.value) for record in await bench.records(TICKS.name)]
    return [skip for skip in found if skip is not None]


async def forecasts(bench: Bench) -> list[tuple[int, str]]:
    found: list[Any] = [decode(FORECASTS.name, r.value or b"").record for r in await bench.records(FORECASTS.name)]
    return [(f.as_of_us, f.phase) for f in found]


async def drained(bench: Bench, worker: Any, messages: int) -> None:
    """All that was sent and all skips are handled."""
    async with asyncio.timeout(20.0):
        while True:
            report = worker.report()
            if report.idle and sum(report.handed.values()) == messages + len(await skips(bench)):
                return
            await asyncio.sleep(0.02)


def test_late_results_are_skipped_and_told_and_the_next_ticks_come(impatient: None) -> None:
    async def scene(bench: Bench) -> None:
        bench.simulators.hold = True
        sent = list(messages_of(recording()))
        async with bench.worker() as worker:
            await bench.send(sent)
            await drained(bench, worker, len(sent))
            balance = worker.report().balance
            ticks = worker._runtime.cores["d"].ticks
        told = await skips(bench)
        assert [phase for _, _, phase in told] == ["coarse", "fine"] * (len(told) // 2)
        assert len(told) // 2 == len({at_us for _, at_us, _ in told}) >= ticks - 1 >= 6
        assert await forecasts(bench) == []
        assert (balance["held"], balance["dead_letter"], balance["late"]) == (0, 0, 0)

    on_a_bench(scene)


def test_a_result_that_comes_after_its_skip_is_not_published(impatient: None) -> None:
    async def scene(bench: Bench) -> None:
        bench.simulators.hold = True
        sent = list(messages_of(recording()))
        async with bench.worker() as worker:
            await bench.send(sent[: len(sent) // 2])
            async with asyncio.timeout(10.0):
                while len(await skips(bench)) < 4:
                    await asyncio.sleep(0.02)
            bench.simulators.release()
            await bench.send(sent[len(sent) // 2 :])
            await drained(bench, worker, len(sent))
        left_out = {(at_us, phase) for _, at_us, phase in await skips(bench)}
        made = await forecasts(bench)
        assert made
        assert not left_out & set(made)

    on_a_bench(scene)


def test_after_a_kill_what_the_log_says_was_skipped_is_skipped_again(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(bench: Bench) -> None:
        monkeypatch.setattr("pipelines.worker.Worker._save_is_due", lambda *_: False)  # the next one begins anew
        bench.simulators.hold = True
        sent = list(messages_of(recording()))
        async with bench.worker(clean=False) as worker:
            await bench.send(sent)
            await drained(bench, worker, len(sent))
        before = await skips(bench)
        bench.simulators.release()
        async with bench.worker() as worker:
            await drained(bench, worker, len(sent))
        assert await skips(bench) == before
        assert await forecasts(bench) == []

    on_a_bench(scene)


def test_a_recording_of_the_past_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.jobs.LATE_AFTER_PERIODS", 0.01)

    async def scene(bench: Bench) -> None:
        bench.simulators.hold = True
        sent = list(messages_of(recording()))
        async with bench.worker() as worker:
            await bench.send(sent)
            await asyncio.sleep(0.3)
            assert await skips(bench) == []
            bench.simulators.release()
            await bench.done(worker, len(sent))
        assert await skips(bench) == []

    on_a_bench(scene)


def test_what_is_written_of_a_job_is_read_back_as_its_skip() -> None:
    job: Any = type("Job", (), {"deployment": "d", "as_of_us": 1_796_052_000_000_000, "phase": "fine"})
    message = skip_record(job, job.as_of_us + 10_000_000)
    assert skip_of(message.value) == ("d", job.as_of_us, "fine")
    assert skip_of(None) is None
