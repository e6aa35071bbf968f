"""Replay an archive through the live core: the same bytes at every speed; other ones under `--set`."""

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from pipelines.archive.agreement import Agreement, Outputs, agreement
from pipelines.archive.feeds import INPUT_NAMES, Feed, open_feed
from pipelines.archive.moments import Until, until_of, utc
from pipelines.archive.overrides import parse_overrides
from pipelines.archive.replaying import Pace, Plan, Played, Replay
from pipelines.archive.republish import KeptHeaders, republish, require_namespace
from pipelines.errors import ConfigError
from pipelines.near_names import instead_of
from pipelines.places import find_place, open_log
from pipelines.progress import progress_bar
from pipelines.settings import Settings, parse_slo
from pipelines.warmth import read_warm
from pipelines.whole_file import require_writable, write_whole

MAX_SPEED = 1e6
TOLD_EVERY = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast replay --help`."""
    parser.add_argument("archive", type=Path, metavar="DIR", help="folder of an archive, or of a recording")
    parser.add_argument("--speed", default="max", metavar="N", help="times event time: 1, 10, 0.5 or max (default)")
    parser.add_argument("--until", metavar="T|TOPIC:PARTITION:OFFSET", help="stop before this time or record")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="counterfactual: see docs")
    parser.add_argument("--slo", action="append", metavar="METRIC:QUANTILE:SECONDS", help="targets of a recording")
    parser.add_argument("--warm", type=Path, metavar="FILE", help="what the live run began with")
    parser.add_argument("--cold", action="store_true", help="begin without the state that an archive holds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the account as JSON (- for stdout)")
    parser.add_argument("--publish", action="store_true", help="write input and outputs onto a log as well")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="which (default: TWINCAST_BOOTSTRAP)")
    parser.add_argument("--namespace", metavar="NAME", help="fresh namespace to write into (default: replay-<time>)")
    parser.add_argument("--keep-header", action="append", default=[], metavar="NAME", help="keep only these headers")
    parser.add_argument("--drop-header", action="append", default=[], metavar="NAME", help="leave these headers out")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Replay, and say what came of it; 1 where the live run is recorded and wrote other outputs."""
    if args.json is not None and str(args.json) != "-":
        require_writable(args.json)
    speed, overrides = _speed(args.speed), parse_overrides(args.set)
    _require_published(args)
    slos = tuple(parse_slo(text) for text in args.slo or ())
    with progress_bar("checking the archive") as progress:
        feed = open_feed(args.archive, slos=slos, progress=progress)
    plan = Plan(
        settings_of=settings.core,
        until=None if args.until is None else _until(args.until, feed),
        overrides=overrides,
        warm=None if args.warm is None else read_warm(args.warm),
        pace=Pace(speed),
        cold=args.cold,
    )
    replay, outputs = Replay(feed, plan), Outputs()
    began_s = time.monotonic()
    with progress_bar(f"replaying {feed.name}") as progress:
        played = _told(replay, feed, outputs, progress)
        namespace = asyncio.run(_publish(args, settings, feed, played)) if args.publish else _drain(played)
    whole = plan.until is None and not overrides.texts
    compared = agreement(feed.outputs(), outputs, replay.states) if whole else None
    account = _account(feed, replay, outputs, compared) | {
        "set": list(overrides.texts),
        "namespace": namespace,
        "wall_s": round(time.monotonic() - began_s, 3),
    }
    _tell(args.json, account)
    return 0 if compared is None or compared.equal else 1


def _require_published(args: argparse.Namespace) -> None:
    """Options that say how to write onto a log are refused where nothing is written."""
    given = {
        "--bootstrap": args.bootstrap,
        "--namespace": args.namespace,
        "--keep-header": args.keep_header or None,
        "--drop-header": args.drop_header or None,
    }
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None and not args.publish:
        raise ConfigError(f"{name} is about writing onto a log; add --publish, or leave it out")


def _until(text: str, feed: Feed) -> Until:
    """A place that is never played would let everything through; it is refused."""
    until = until_of(text, feed.start_us)
    if until.at_us is None and until.topic not in INPUT_NAMES:
        raise ConfigError(
            f"--until: {until.topic!r} is no topic that is played; {instead_of(until.topic, INPUT_NAMES)}"
        )
    if until.at_us is None and until.partition >= feed.partitions:
        raise ConfigError(
            f"--until: {until.topic} has no partition {until.partition}; expected 0 .. {feed.partitions - 1}"
        )
    return until


def _speed(text: str) -> float:
    try:
        speed = float("inf") if text == "max" else float(text)
    except ValueError:
        speed = -1.0
    if not (speed == float("inf") or 0.0 < speed <= MAX_SPEED):
        raise ConfigError(f"--speed must be max or a number in 0 .. {MAX_SPEED:g}, got {text!r}; 1 is as it happened")
    return speed


def _told(replay: Replay, feed: Feed, outputs: Outputs, progress: Any) -> Iterator[Played]:
    for number, played in enumerate(replay):
        for message in played.outputs:
            outputs.add(message.topic, message.key, message.value)
        if number % TOLD_EVERY == 0:
            progress(min(number / max(feed.records, 1), 1.0))
        yield played


def _drain(played: Iterator[Played]) -> str:
    for _ in played:
        pass
    return ""


async def _publish(args: argparse.Namespace, settings: Settings, feed: Feed, played: Iterator[Played]) -> str:
    namespace = f"replay-{time.time_ns() // 10**9}" if args.namespace is None else args.namespace
    require_namespace(namespace, settings.namespace)
    place = msgspec.structs.replace(find_place(settings, args.bootstrap).place, namespace="")
    label = " ".join(itertools.chain([feed.name, feed.digest[:16]], args.set))
    kept = KeptHeaders(allow=frozenset(args.keep_header), deny=frozenset(args.drop_header))
    async with open_log(settings, place) as log:
        written = await republish(log, namespace, played, partitions=feed.partitions, label=label, kept=kept)
        print(f"{written} records into namespace {namespace} of {log.name}", file=sys.stderr)
    return namespace


def _account(feed: Feed, replay: Replay, outputs: Outputs, compared: Agreement | None) -> dict[str, Any]:
    return {
        "source": feed.name,
        "digest": feed.digest,
        "messages": replay.fed,
        "first": None if replay.first_us is None else utc(replay.first_us),
        "last": None if replay.last_us is None else utc(replay.last_us),
        "records": replay.runtime.balance(),
        "skipped_phases": replay.skipped,
        "begun_from_state": [state.deployment for state in replay.states],
        "outputs": dict(sorted(outputs.counts.items())),
        "output_sha256": outputs.sha256,
        "equals_recorded": None if compared is None else compared.equal,
        "differing_topics": [] if compared is None else list(compared.differing),
        "recorded_outputs": None if compared is None else dict(sorted(compared.recorded.items())),
    }


def _tell(path: Path | None, account: dict[str, Any]) -> None:
    data = msgspec.json.format(msgspec.json.encode(account), indent=1) + b"\n"
    if path is not None and str(path) == "-":
        sys.stdout.write(data.decode())
        return
    if path is not None:
        write_whole(path, data)
    print("\n".join(_lines(account)))


def _lines(account: dict[str, Any]) -> list[str]:
    wrote = ", ".join(f"{count} {topic.split('.')[1]}" for topic, count in account["outputs"].items()) or "nothing"
    others = ", ".join(f"{name} {n}" for name, n in account["records"].items() if name != "in" and n) or "0"
    lines = [
        f"{account['source']}: {account['messages']} messages from {account['first']} to {account['last']}",
        f"records in {account['records']['in']} = {others}",
        f"outputs: {wrote}; sha256 {account['output_sha256'][:16]}",
    ]
    if account["begun_from_state"]:
        lines.append(f"begun from the recorded state of {', '.join(account['begun_from_state'])}")
    if account["set"]:
        lines.append(f"set: {', '.join(account['set'])}; scores of what happened are left out where engines are set")
    if account["equals_recorded"] is True:
        lines.append("equal to what the live run wrote, byte for byte")
    elif account["equals_recorded"] is False:
        lines.append(
            f"NOT equal to what the live run wrote: {', '.join(account['differing_topics'])} differ; were settings, "
            "program and warm state the same, and did recording begin with the run?"
        )
    return lines
