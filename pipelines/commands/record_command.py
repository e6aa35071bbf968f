"""Record topics into an archive of Parquet files, up to the ends they have now; if killed, it goes on where it was."""

import argparse
import asyncio
import sys
import time
from pathlib import Path

import msgspec

from pipelines.archive.capture import Wanted, record, topics_to_record
from pipelines.archive.manifest import Manifest
from pipelines.archive.moments import EXAMPLES, moment_us
from pipelines.errors import ConfigError
from pipelines.places import find_place, open_log
from pipelines.progress import progress_bar
from pipelines.settings import Settings
from schemas.topics import TOPICS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast record --help`."""
    parser.add_argument(
        "--topics", nargs="+", action="extend", metavar="TOPIC", help="which (default: all of Twincast that are there)"
    )
    parser.add_argument("--from", dest="begin", metavar="T", help=f"first timestamp: {EXAMPLES}")
    parser.add_argument("--to", dest="end", metavar="T", help="first timestamp that is left out")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the archive")
    parser.add_argument("--json", action="store_true", help="tell what is in the archive as one JSON object")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Record, and say what is in the archive."""
    now_us = time.time_ns() // 1000
    begin_ms = None if args.begin is None else moment_us(args.begin, "--from", now_us=now_us) // 1000
    end_ms = None if args.end is None else moment_us(args.end, "--to", now_us=now_us) // 1000
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise ConfigError(f"--to must lie after --from, got {args.begin} to {args.end}; correct one")
    manifest = asyncio.run(_record(args, settings, begin_ms, end_ms))
    print(msgspec.json.encode(manifest).decode() if args.json else "\n".join(_lines(args.out, manifest)))
    return 0


async def _record(args: argparse.Namespace, settings: Settings, begin_ms: int | None, end_ms: int | None) -> Manifest:
    found = find_place(settings, args.bootstrap)
    if found.why != "named":
        print(f"{found.place} ({found.why})", file=sys.stderr)
    async with open_log(settings, found.place) as log:
        topics = topics_to_record(await log.partition_counts(TOPICS), args.topics or ())
        if not topics:
            raise ConfigError(f"{log.name} has none of Twincast's topics; name others with --topics")
        wanted = Wanted(topics=topics, from_ms=begin_ms, to_ms=end_ms)
        with progress_bar(f"recording {len(topics)} topics") as progress:
            return await record(log, args.out, wanted, progress=progress)


def _lines(folder: Path, manifest: Manifest) -> list[str]:
    lines = []
    for topic in manifest.topics:
        entries = manifest.of([topic])
        missing = sum(end - begin for entry in entries for begin, end in entry.gaps)
        gaps = f", {missing} offsets missing in {sum(len(entry.gaps) for entry in entries)} gaps" if missing else ""
        lines.append(f"{topic}: {sum(entry.records for entry in entries)} records of {len(entries)} partitions{gaps}")
    size_mb = manifest.size_bytes / 1e6
    lines.append(f"{folder}: {manifest.records} records, {size_mb:.1f} MB, sha256 {manifest.sha256[:16]}")
    return lines
