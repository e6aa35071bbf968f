"""A worker under steady traffic for long: its memory, its snapshot and its lag must not grow.

    python -m tests.bench.bench_soak [MINUTES [SPEED]]

On a real Apache Kafka where there is one, else on the embedded log. Event time runs SPEED times as fast as the clock:
half an hour is five hours of service, and every rolling window is full many times over. Growth is from a third of it
to its end; the first third fills what is bounded.
"""

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest does for its tests

from worker_process import Stage, WorkerProcess, messages, recording_of

from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.errors import ConfigError
from schemas.topics import STATE

GROWTH_BAR_RATIO = 1.1
CONFIG = """[forecast]
coarse_replications = 1
fine_replications = 2
scenarios = ["baseline"]
period_s = 10.0
insight = false
"""
SAMPLE_EVERY_S = 2.0


@dataclass
class Samples:
    """Resident memory of the worker with its simulator, and units it held, over the run."""

    memory_mb: list[float] = field(default_factory=list)
    held_units: list[int] = field(default_factory=list)

    def growth(self) -> tuple[float, float]:
        """Median memory, MB, of the second tenth after the first third, and of the last tenth."""
        count = len(self.memory_mb)
        third, tenth = count // 3, max(count // 10, 1)
        return statistics.median(self.memory_mb[third : third + tenth]), statistics.median(self.memory_mb[-tenth:])


def main() -> int:
    """Print the figures; exit code 1 where something grows."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    speed = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    with tempfile.TemporaryDirectory() as scratch:
        try:
            choice = choose_broker(broker_settings(os.environ))
        except ConfigError as error:
            print(f"soak: skipped, {error}")
            return 0
        if choice.kind == "embedded":
            with Stage.on_files(Path(scratch), CONFIG) as stage:
                return measure(stage, minutes, speed)
        with running_broker(choice) as bootstrap, Stage.on_kafka(str(bootstrap), Path(scratch), CONFIG) as stage:
            return measure(stage, minutes, speed)


def measure(stage: Stage, minutes: float, speed: float) -> int:
    """Play and watch."""
    sent = messages(recording_of(60.0 * minutes * speed))
    worker = stage.worker()
    worker.wait_ready()
    playing = stage.playing(sent, speed)
    samples = Samples()
    while playing.is_alive():
        samples.memory_mb.append(memory_mb(worker))
        samples.held_units.append(worker.report["balance"]["held"])
        time.sleep(SAMPLE_EVERY_S)
    ended_s = time.monotonic()
    worker.wait_done(len(sent), timeout_s=300.0)
    behind_s = time.monotonic() - ended_s
    if worker.stop() != 0:
        print(f"soak: the worker did not end well:\n{worker.log[-2000:]}")
        return 1
    sizes = [len(record.value or b"") for record in stage.records(STATE.name)]
    third, end = samples.growth()
    state_growth = max(sizes[-len(sizes) // 10 :]) / max(sizes[len(sizes) // 3 : -len(sizes) // 10])
    print(
        f"soak: {minutes * speed / 60:.1f} hours of service in {minutes:g} minutes: memory {third:.0f} MB after a "
        f"third, {end:.0f} MB at the end, {end / third:.3f} times (bar: < {GROWTH_BAR_RATIO})"
    )
    print(f"soak: snapshot {sizes[-1] / 1024:.0f} KiB, {state_growth:.3f} times (bar: < {GROWTH_BAR_RATIO})")
    print(f"soak: done {behind_s:.1f} s after the last record; at most {max(samples.held_units)} units held meanwhile")
    return 0 if max(end / third, state_growth) < GROWTH_BAR_RATIO else 1


def memory_mb(worker: WorkerProcess) -> float:
    """Resident memory of a process and of those below it."""
    pids, total_kb = [worker.pid], 0
    while pids:
        pid = pids.pop()
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            pids += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            continue  # it ended just now
        total_kb += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return total_kb / 1024


if __name__ == "__main__":
    sys.exit(main())
