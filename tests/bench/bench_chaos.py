"""Faults drawn at random against workers on a real Apache Kafka; then every state, account and forecast is compared.

    python -m tests.bench.bench_chaos [FAULTS] [SEED]

A fault is one of: kill -9 of a worker, an ordered stop, a stop for longer than its session (SIGSTOP, then SIGCONT), a
second worker that comes and goes (a rebalance each), kill -9 of the broker. Traffic of three deployments goes on
meanwhile. The end must be that of runs that nobody disturbed, for every deployment.
"""

import heapq
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest does for its tests

from worker_process import Stage, WorkerProcess, messages, recording_of, unique

from pipelines.broker import JvmKafka, broker_settings, choose_broker
from pipelines.errors import ConfigError
from pipelines.outputs import Outgoing
from schemas.topics import FORECASTS

SPEED = 3.0
SECONDS_PER_FAULT = 60.0
"""Event time of traffic for each fault: more than a restart takes at this speed."""
DEPLOYMENTS = ("d", "e", "f")


class Chaos:
    """Workers on a stage and the faults that befall them; `worker` is the one that is at work between two faults."""

    def __init__(self, stage: Stage, broker: JvmKafka, rng: random.Random) -> None:
        self._stage = stage
        self._broker = broker
        self._rng = rng
        self._deck: list[Callable[[], None]] = []
        self.ended = 0
        self.worker = self._begin()

    def _begin(self) -> WorkerProcess:
        worker = self._stage.worker()
        worker.wait_ready()
        return worker

    def done(self, messages: int) -> None:
        """Wait until all is handled, as under a supervisor: a worker that ends by itself is replaced, and counted."""
        while True:
            try:
                self.worker.wait_done(messages, timeout_s=300.0)
            except AssertionError:
                if self.worker.ended(0.0) is None:
                    raise
                self.ended += 1
                self.worker = self._begin()
            else:
                return

    def kill(self) -> None:
        """kill -9, at once another."""
        self.worker.kill()
        self.worker = self._begin()

    def stop(self) -> None:
        """An ordered end, and another."""
        if self.worker.stop() != 0:
            raise RuntimeError(f"an ordered stop failed:\n{self.worker.log[-3000:]}")
        self.worker = self._begin()

    def pause(self) -> None:
        """Stopped for less or more than its session of 10 s; a worker that ended over it is replaced."""
        self.worker.pause()
        time.sleep(self._rng.uniform(2.0, 16.0))
        self.worker.go_on()
        if self.worker.ended(3.0) is not None:
            self.ended += 1
            self.worker = self._begin()

    def second(self) -> None:
        """A second member takes half of the partitions and gives them back."""
        other = self._stage.worker(slot=1)
        other.wait_for(lambda report: report["partitions"] and report["simulators_ready"], "partitions")
        time.sleep(self._rng.uniform(0.0, 5.0))
        if self._rng.random() < 0.5:
            other.kill()
        else:
            other.stop()
        self.worker.wait_ready()

    def broker(self) -> None:
        """The broker is killed and started again; what is in its log stays."""
        self._broker.kill()
        time.sleep(self._rng.uniform(0.5, 5.0))
        self._broker.start()

    def befall(self) -> str:
        """One fault, its name; each comes once before one comes again."""
        if not self._deck:
            self._deck = [self.kill, self.stop, self.pause, self.second, self.broker]
            self._rng.shuffle(self._deck)
        fault = self._deck.pop()
        time.sleep(self._rng.uniform(0.0, 4.0))
        fault()
        return fault.__name__


def main() -> int:
    """Print what befell and what came of it; exit code 1 where anything differs."""
    faults = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the player sees its broker killed too
    try:
        choice = choose_broker(broker_settings(os.environ))
    except ConfigError as error:
        print(f"chaos: skipped, {error}")
        return 0
    if choice.java is None or choice.classpath is None:
        print("chaos: skipped, no Apache Kafka on the JVM here: its broker is killed too")
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        kafka = JvmKafka(choice.classpath, java=choice.java, data_dir=Path(scratch) / "kafka")
        with kafka as broker, Stage.on_kafka(broker.bootstrap, Path(scratch)) as stage:
            return measure(stage, broker, faults, random.Random(seed))


def measure(stage: Stage, broker: JvmKafka, faults: int, rng: random.Random) -> int:
    """Play, disturb, and compare the end with runs that nobody disturbed."""
    recordings = [recording_of(faults * SECONDS_PER_FAULT, deployment=name) for name in DEPLOYMENTS]
    sent: list[Outgoing] = list(heapq.merge(*map(messages, recordings), key=lambda message: message.at_us))
    chaos = Chaos(stage, broker, rng)
    playing = stage.playing(sent, SPEED)
    for number in range(faults):
        print(f"chaos: {number + 1} of {faults}: {chaos.befall()}", flush=True)
    playing.join()
    chaos.done(len(sent))
    chaos.stop()  # the state of one that stops may be an earlier one: the next goes on to the end
    chaos.done(len(sent))
    chaos.worker.stop()
    found, cores = stage.records(FORECASTS.name), stage.cores()
    right = 0
    for recording in recordings:
        replay, core = stage.undisturbed(recording), cores[recording.deployment]
        mine = [r for r in found if (r.key or b"").decode() == recording.deployment]
        expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
        same = core.state_hash() == replay.core.state_hash()
        balanced = core.accounts.as_dict() == replay.core.accounts.as_dict()
        complete = unique(mine) == expected
        print(f"chaos: {recording.deployment}: state as undisturbed {same}, accounts {balanced}, forecasts {complete}")
        right += same and balanced and complete
    print(f"chaos: {right} of {len(recordings)} deployments as undisturbed after {faults} faults (bar: all)")
    print(f"chaos: {chaos.ended} workers ended by themselves and were replaced")
    return 0 if right == len(recordings) else 1


if __name__ == "__main__":
    sys.exit(main())
