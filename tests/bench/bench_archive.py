"""Archives: a live run on a real Apache Kafka recorded and replayed, and the speed and memory of a large one.

    python -m tests.bench.bench_archive live [whole]
    python -m tests.bench.bench_archive large [GIGABYTES]

`live` plays a recording into Kafka beside a worker, records all topics, and replays the archive at full speed, at 100
times and, its first seconds or the whole, at the recorded pace. `large` makes an archive by repeating a recording
shifted in time, in a directory that is removed afterwards; its files are not compressed, so that they are as large as
what is in them.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest does for its tests

from worker_process import Stage

from pipelines.archive.capture import Wanted, record
from pipelines.archive.manifest import Manifest, PartitionEntry, write_manifest
from pipelines.archive.part_writer import PartWriter
from pipelines.archive.reading import open_archive
from pipelines.broker import broker_settings, choose_broker, running_broker
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Event, Recording, event_of, read_recording
from pipelines.log import LogRecord
from pipelines.outputs import Outgoing
from pipelines.partitions import partition_of
from pipelines.places import Place, open_log
from pipelines.playback import messages_of
from schemas.codec import decode, encode
from schemas.slos import SloTarget
from schemas.steps import StepBatch
from schemas.topics import OUTPUTS, TOPICS

HERE = Path(__file__).resolve().parents[2]
SHARED = HERE.parent / "shared" / "recordings" / "C_ramp_s301"
SAMPLE = HERE / "examples" / "recordings" / "ramp"
SLO = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)
LIVE_CONFIG = """[forecast]
coarse_replications = 2
fine_replications = 8
scenarios = ["baseline", "burst"]
"""
QUICK_CONFIG = """[forecast]
coarse_replications = 1
fine_replications = 1
scenarios = ["baseline"]
horizons_s = [60.0]
period_s = 60.0
insight = false
"""
PACED_S = 20
PARTITIONS = 4
BAR_RECORDS_PER_S = 100_000
BAR_RSS_MB = 500


def main() -> int:
    """Print the figures; exit code 1 where a bar is missed."""
    what = sys.argv[1] if len(sys.argv) > 1 else "live"
    with tempfile.TemporaryDirectory(prefix="twincast-archive-") as scratch:
        if what == "large":
            return large(Path(scratch), float(sys.argv[2]) if len(sys.argv) > 2 else 2.0)
        if what == "decode":
            return decode_all(Path(sys.argv[2]))
        return live(Path(scratch), paced_s=None if "whole" in sys.argv else PACED_S)


def live(scratch: Path, paced_s: int | None) -> int:
    """A live run through a broker, recorded, and replayed at several speeds; at 1x so many seconds, None for all."""
    folder = SHARED if SHARED.exists() else SAMPLE
    try:
        choice = choose_broker(broker_settings(os.environ))
    except ConfigError as error:
        print(f"archive: skipped, {error}")
        return 0
    if choice.kind == "embedded":
        print("archive: skipped, no Apache Kafka here")
        return 0
    recording = read_recording(folder)
    with running_broker(choice) as bootstrap, _stage(str(bootstrap), scratch) as stage:
        sent = list(messages_of(recording, (SLO,)))
        worker = stage.worker()
        began_s = time.monotonic()
        count = stage.play(sent, speed=20.0)
        worker.wait_for(lambda report: _done(report, count), "the end", timeout_s=900.0)
        worker.stop()
        print(f"live: {recording.name}, {count} messages through Kafka in {time.monotonic() - began_s:.0f} s")
        manifest = asyncio.run(_recorded(stage, scratch / "archive"))
        print(f"archive: {manifest.records} records, {manifest.size_bytes / 1e6:.1f} MB of Parquet")
        return _replays(stage, scratch, recording, paced_s)


def _stage(bootstrap: str, scratch: Path) -> Stage:
    return Stage(Place(kind="kafka", where=bootstrap, namespace=f"live{os.getpid()}"), scratch, LIVE_CONFIG)


def _done(report: dict[str, Any], count: int) -> bool:
    return bool(report["idle"] and sum(report["handed"].values()) >= count)


async def _recorded(stage: Stage, folder: Path) -> Manifest:
    async with open_log(stage.settings, stage.place) as log:
        there = await log.partition_counts(TOPICS)
        return await record(log, folder, Wanted(topics=tuple(name for name in TOPICS if name in there)))


def _replays(stage: Stage, scratch: Path, recording: Recording, paced_s: int | None) -> int:
    """At full speed and 100 times the whole, compared with the live run; the first seconds also at their own pace."""
    slice_name = "the whole" if paced_s is None else f"its first {paced_s} s"
    found = {speed: _replay(stage, scratch, "--speed", speed) for speed in ("max", "100")}
    until = () if paced_s is None else ("--until", f"{paced_s}s")
    slices = {speed: _replay(stage, scratch, "--speed", speed, *until) for speed in ("max", "1")}
    equal = all(account["equals_recorded"] for account in found.values())
    hashes = {account["output_sha256"] for account in found.values()}
    sliced = {account["output_sha256"] for account in slices.values()}
    outputs = sum(n for topic, n in found["max"]["outputs"].items() if topic in {t.name for t in OUTPUTS})
    same = equal and len(hashes) == 1 and len(sliced) == 1
    print(
        f"replay: {outputs} outputs of {recording.name} equal to those of the live run: {equal}; sha256 "
        f"{hashes.pop()[:16]} at max ({found['max']['wall_s']:.0f} s) and 100x ({found['100']['wall_s']:.0f} s); "
        f"{slice_name} at 1x ({slices['1']['wall_s']:.1f} s) and max: {'equal' if len(sliced) == 1 else 'DIFFER'} "
        f"(bar: all equal{'' if same else ', missed: ' + ', '.join(found['max']['differing_topics'])})"
    )
    return 0 if same else 1


def _replay(stage: Stage, scratch: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pipelines.cli", "replay", str(scratch / "archive"), "--json", "-", *options]
    done = subprocess.run(command, env=stage.environ, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def large(scratch: Path, gigabytes: float) -> int:
    """Make a large archive; decode all of it; replay it through the core, each in a process of its own."""
    folder = scratch / "large"
    began_s = time.monotonic()
    manifest = _made(folder, read_recording(SAMPLE), round(gigabytes * 1e9))
    print(
        f"made {manifest.size_bytes / 1e9:.2f} GB, {manifest.records:,} records in {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    decoding = _child("-m", "tests.bench.bench_archive", "decode", str(folder))
    print(decoding[0].strip())
    config = scratch / "twincast.toml"
    config.write_text(QUICK_CONFIG)
    out, rss_mb = _child("-m", "pipelines.cli", "--config", str(config), "replay", str(folder), "--json", "-")
    account = json.loads(out)
    rate = account["messages"] / account["wall_s"]
    print(
        f"replay: {account['messages']:,} messages of {manifest.size_bytes / 1e9:.2f} GB through the core, "
        f"{rate:,.0f}/s with forecasts, {rss_mb:.0f} MB RSS at most (bar: {BAR_RSS_MB})"
    )
    return 0 if max(rss_mb, decoding[1]) < BAR_RSS_MB and "missed" not in decoding[0] else 1


def _child(*arguments: str) -> tuple[str, float]:
    """Output of a process and its largest resident size, MB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=HERE)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{arguments}: {done.stderr}")
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return done.stdout, max(peak_kb, before) / 1024


def decode_all(folder: Path) -> int:
    """Read an archive in event order; once more, and decode every value too."""
    archive = open_archive(folder)
    read = _Pace()
    for batch in archive.batches():
        read.records += len(batch)
    read.stop()
    decoded = _Pace()
    for batch in archive.batches():
        for _, each in batch:
            decoded.units += decode(each.topic, each.value or b"").units
            decoded.size_bytes += len(each.value or b"")
        decoded.records += len(batch)
    decoded.stop()
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    word = "" if decoded.records / decoded.wall_s >= BAR_RECORDS_PER_S and rss_mb < BAR_RSS_MB else ", missed"
    print(f"read: {read} in event order")
    print(
        f"decode: {decoded}, values of {decoded.size_bytes / decoded.records:,.0f} bytes and "
        f"{decoded.units / decoded.records:.1f} units each decoded from JSON too; {rss_mb:.0f} MB RSS at most "
        f"(bars: {BAR_RECORDS_PER_S:,}/s by the clock, {BAR_RSS_MB} MB{word})"
    )
    return 0


class _Pace:
    """Records in wall and CPU time."""

    def __init__(self) -> None:
        self.records = self.units = self.size_bytes = 0
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        self.wall_s = self.cpu_s = 0.0

    def stop(self) -> None:
        self.wall_s, self.cpu_s = time.monotonic() - self._began_s, time.process_time() - self._began_cpu_s

    def __str__(self) -> str:
        return f"{self.records / self.wall_s:,.0f} records/s ({self.records / self.cpu_s:,.0f}/s of CPU time)"


def _made(folder: Path, recording: Recording, size_bytes: int) -> Manifest:
    """Rounds of the recording, one after the other in time, with names of their own, until it is that large."""
    writers: dict[tuple[str, int], PartWriter] = {}
    offsets: dict[tuple[str, int], int] = {}
    parts: dict[tuple[str, int], list[Any]] = {}
    times: dict[tuple[str, int], tuple[int, int]] = {}
    for number, message in _rounds(recording):
        place = (message.topic, partition_of(message.deployment, PARTITIONS))
        if place not in writers:
            writers[place], offsets[place], parts[place] = PartWriter(folder, *place, compression="none"), 0, []
        at_ms = message.at_us // 1000
        times[place] = (times.get(place, (at_ms, 0))[0], at_ms)
        kept = LogRecord(*place, offsets[place], at_ms, message.key, message.value, ())
        offsets[place] += 1
        part = writers[place].add(kept)
        if part is not None:
            parts[place].append(part)
            if number and sum(each.size_bytes for some in parts.values() for each in some) >= size_bytes:
                break
    for place, writer in writers.items():
        last = writer.finish()
        parts[place] += [last] if last is not None else []
    entries = tuple(_entry(place, offsets[place], times[place], parts[place]) for place in sorted(parts))
    topics = dict.fromkeys(sorted({entry.topic for entry in entries}), PARTITIONS)
    manifest = Manifest(source="made", from_ms=None, to_ms=None, topics=topics, partitions=entries, complete=True)
    write_manifest(folder, manifest)
    return manifest


def _entry(place: tuple[str, int], count: int, times_ms: tuple[int, int], parts: list[Any]) -> PartitionEntry:
    return PartitionEntry(
        topic=place[0],
        partition=place[1],
        start_offset=0,
        stop_offset=count,
        first_offset=0,
        last_offset=count - 1,
        records=count,
        first_ms=times_ms[0],
        last_ms=times_ms[1],
        parts=tuple(parts),
    )


def _rounds(recording: Recording) -> Iterator[tuple[int, Outgoing]]:
    span_us = recording.events[-1].at_us - recording.t0_us + 1_000_000
    steps = max(step.step for batch in recording.step_batches for step in batch.steps) + 1
    number = 0
    while True:
        for event in recording.events:
            shifted = _shifted(event, number, span_us, steps)
            yield (
                number,
                Outgoing(
                    event.topic, event.record.deployment, event.key.encode(), encode(shifted.record), (), shifted.at_us
                ),
            )
        number += 1


def _shifted(event: Event, number: int, span_us: int, steps: int) -> Event:
    """The event in a later round: other times, other names of requests, other numbers of steps."""
    record, shift_us = event.record, number * span_us
    if isinstance(record, StepBatch):
        moved = tuple(_moved(step, shift_us, number, steps) for step in record.steps)
        return event_of(msgspec.structs.replace(record, steps=moved))
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name.endswith("_us") and value is not None:
            changes[name] = value + shift_us
        elif name == "request_id":
            changes[name] = f"{value}-{number}"
    return event_of(msgspec.structs.replace(record, **changes))


def _moved(step: Any, shift_us: int, number: int, steps: int) -> Any:
    return msgspec.structs.replace(
        step,
        step=step.step + number * steps,
        start_us=step.start_us + shift_us,
        preempted=tuple(f"{name}-{number}" for name in step.preempted),
        rows=tuple(msgspec.structs.replace(row, request_id=f"{row.request_id}-{number}") for row in step.rows),
    )


if __name__ == "__main__":
    sys.exit(main())
