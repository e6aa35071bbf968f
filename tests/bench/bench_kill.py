"""kill -9 of a worker, ten times, on a real Apache Kafka: how soon forecasts go on, and whether the account holds.

    python -m tests.bench.bench_kill [KILLS]

Each kill hits a worker at work; the next one is started at once in the same slot. The time is from the kill to the
first forecast made after it, start of the process, state and simulators included.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest does for its tests

from worker_process import Stage, WorkerProcess, messages, recording_of, unique

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.errors import ConfigError
from schemas.topics import FORECASTS

BAR_S = 15.0
SPEED = 2.0
SECONDS_PER_KILL = 45.0
"""Event time of traffic for each kill: more than a restart takes at this speed."""


def main() -> int:
    """Print the figures; exit code 1 where a bar is missed."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    try:
        choice = choose_broker(broker_settings(os.environ))
    except ConfigError as error:
        print(f"kill: skipped, {error}")
        return 0
    if choice.kind == "embedded":
        print("kill: skipped, no Apache Kafka here: " + "; ".join(over.reason for over in choice.passed_over))
        return 0
    with running_broker(choice) as bootstrap, tempfile.TemporaryDirectory() as scratch:
        return measure(str(bootstrap), Path(scratch), kills)


def measure(bootstrap: str, scratch: Path, kills: int) -> int:
    """Play, kill, start again; then compare the end with a run that nobody disturbed."""
    recording = recording_of(kills * SECONDS_PER_KILL)
    sent = messages(recording)
    with Stage.on_kafka(bootstrap, scratch) as stage, at_work(stage) as worker:
        playing = stage.playing(sent, SPEED)
        killed_ms = []
        for _ in range(kills):
            worker.wait_for(lambda report: report["written"].get(FORECASTS.name, 0) >= 2, "forecasts")
            worker.kill()
            killed_ms.append(time.time_ns() / 1e6)
            worker = stage.worker()
        playing.join()
        worker.wait_done(len(sent))
        worker.stop()
        replay = stage.undisturbed(recording)
        core = stage.cores()[recording.deployment]
        found = stage.records(FORECASTS.name)
        made_ms = np.array([int(dict(record.headers)["twincast_made_us"]) / 1000 for record in found])
        gaps_s = np.array([(made_ms[made_ms > at].min() - at) / 1000 for at in killed_ms])
        expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
        same = core.state_hash() == replay.core.state_hash()
        balanced = core.accounts.as_dict() == replay.core.accounts.as_dict()
        complete = unique(found) == expected
    p95_s = float(np.quantile(gaps_s, 0.95))
    print(
        f"kill: forecasts go on after {p95_s:.1f} s (P95 of {kills} kills, median {np.median(gaps_s):.1f} s; "
        f"bar: < {BAR_S:g} s)"
    )
    print(
        f"kill: state equal to an undisturbed run: {same}; accounts: {balanced}; forecasts: {complete} (bar: all True)"
    )
    print(f"kill: {len(found) - len(expected)} of {len(expected)} forecasts written twice, with the same id")
    return 0 if p95_s < BAR_S and same and balanced and complete else 1


@contextmanager
def at_work(stage: Stage) -> Iterator[WorkerProcess]:
    worker = stage.worker()
    worker.wait_ready()
    yield worker


if __name__ == "__main__":
    sys.exit(main())
