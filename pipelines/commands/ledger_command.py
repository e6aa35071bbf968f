"""Say what was foreseen, proposed and done, and what then happened."""

import argparse
import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pipelines.archive.feeds import open_feed
from pipelines.backtest import backtest
from pipelines.errors import ConfigError
from pipelines.ingest.recording import read_recording
from pipelines.log import LogRecord, TopicPartition
from pipelines.places import find_place, open_log
from pipelines.settings import Settings, parse_slo
from schemas.codec import SchemaError, decode
from schemas.slos import SloTarget
from schemas.topics import ACTIONS, ALERTS, CHANGES, ENGINES, FORECASTS, REQUESTS, SLOS
from twin.ledger import Account, Breach, Ledger, Proposal
from twin.ledger_obeyed import Obeyed

US_PER_S = 1_000_000
READ = (REQUESTS, ENGINES, SLOS, CHANGES, ALERTS, ACTIONS, FORECASTS)
NAMES = frozenset(topic.name for topic in READ)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast ledger --help`."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="an archive, or a recording to run first")
    parser.add_argument("--broker", action="store_true", help="what is on the broker now")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster, with --broker")
    parser.add_argument("--deployment", default="", metavar="NAME", help="only this one (default: all)")
    parser.add_argument("--slo", action="append", metavar="METRIC:QUANTILE:SECONDS", help="such as ttft_s:0.95:0.5")
    parser.add_argument("--json", action="store_true", help="the accounts as JSON")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Read everything, then print one account per deployment."""
    if (args.folder is None) == (not args.broker):
        raise ConfigError("say what to account for: a folder, or --broker (not both)")
    slos = tuple(parse_slo(text) for text in args.slo or ())
    ledgers = _Ledgers(settings, slos, args.deployment)
    if args.broker:
        asyncio.run(_from_log(ledgers, settings, args.bootstrap))
    else:
        _from_folder(ledgers, args.folder, settings, slos)
    accounts = ledgers.accounts()
    if not accounts:
        raise ConfigError("no finished request was found; let the service run, or name another folder")
    if args.json:
        sys.stdout.write(
            msgspec.json.format(msgspec.json.encode([plain(each) for each in accounts]), indent=1).decode()
        )
        sys.stdout.write("\n")
        return 0
    for each in accounts:
        _print(each, Console())
    return 0


class _Ledgers:
    """One ledger per deployment that is asked for."""

    def __init__(self, settings: Settings, slos: tuple[SloTarget, ...], only: str) -> None:
        self._settings, self._slos, self._only = settings, slos, only
        self._ledgers: dict[str, Ledger] = {}

    def take(self, topic: str, value: bytes | None) -> None:
        """One message; what cannot be read has been refused before, and is left out."""
        if topic not in NAMES or not value:
            return
        try:
            record = decode(topic, value).record
        except SchemaError:
            return
        name = record.deployment
        if self._only and name != self._only:
            return
        if name not in self._ledgers:
            self._ledgers[name] = Ledger(name, self._slos or self._settings.core(name).slos)
        if self._slos and topic == SLOS.name:
            return
        self._ledgers[name].on_record(record)

    def accounts(self) -> list[Account]:
        """Of every deployment in which a request has finished, by name."""
        found = []
        for _, ledger in sorted(self._ledgers.items()):
            try:
                found.append(ledger.account())
            except ValueError:
                continue
        return found


def _from_folder(ledgers: _Ledgers, folder: Path, settings: Settings, slos: tuple[SloTarget, ...]) -> None:
    if (folder / "meta.json").exists():
        recording = read_recording(folder)
        core = settings.core(recording.deployment)
        ran = backtest(recording, core, slos=slos or core.slos)
        for message in ran.outputs:
            ledgers.take(message.topic, message.value)
    feed = open_feed(folder, slos=slos)
    for fed in feed.messages():
        ledgers.take(fed.message.topic, fed.message.value)
    for made in feed.outputs():
        ledgers.take(made.topic, made.value)


async def _from_log(ledgers: _Ledgers, settings: Settings, bootstrap: str | None) -> None:
    """From the beginning of every topic to where it ends now."""
    found = find_place(settings, bootstrap)
    print(f"{found.place} ({found.why})", file=sys.stderr)
    async with open_log(settings, found.place) as log:
        places = [TopicPartition(topic.name, number) for topic in READ for number in range(settings.partitions)]
        begins, ends = await log.begin_offsets(places), await log.end_offsets(places)
        left = {place: ends[place] for place in places if ends[place] > begins[place]}
        async with log.reader({place: begins[place] for place in left}) as reader:
            while left:
                for record in _ordered(await reader.get(timeout_s=5.0)):
                    ledgers.take(record.topic, record.value)
                    place = TopicPartition(record.topic, record.partition)
                    if place in left and record.offset + 1 >= left[place]:
                        del left[place]


def _ordered(records: Iterable[LogRecord]) -> list[LogRecord]:
    return sorted(records, key=lambda each: (each.topic, each.partition, each.offset))


def plain(account: Account) -> dict[str, Any]:
    """An account as plain data; times are seconds from its start."""

    def seconds(at_us: int | None) -> float | None:
        return None if at_us is None else (at_us - account.start_us) / US_PER_S

    def breach(each: Breach) -> dict[str, Any]:
        return {
            "target": target_words(each.target),
            "start_s": seconds(each.start_us),
            "end_s": seconds(each.end_us),
            "missed_requests": each.missed_requests,
            "lead_s": each.lead_s,
            "proposed": each.proposed or None,
        }

    def proposal(each: Proposal) -> dict[str, Any]:
        return {
            "action_id": each.action.action_id,
            "what": msgspec.to_builtins(each.action.what),
            "opened_s": seconds(each.opened_us),
            "ended_s": seconds(each.ended_us),
            "fate": each.fate,
            "executable": each.action.executable,
            "needless": each.needless,
        }

    return {
        "deployment": account.deployment,
        "span_s": seconds(account.end_us),
        "requests": account.requests,
        "breaches": [breach(each) for each in account.breaches],
        "foreseen": account.foreseen,
        "missed": len(account.breaches) - account.foreseen,
        "pages": account.pages,
        "false_pages": account.false_pages,
        "proposals": [proposal(each) for each in account.proposals],
        "needless": account.needless,
        "mode": "obeyed" if account.obeyed else "shadow",
        "engine_hours": account.engine_hours,
        "engine_hours_had_you_obeyed": account.engine_hours_obeyed,
        "steps_done": account.steps_done,
        "reversals_done": account.reversals_done,
        "reversals_proposed": account.reversals_proposed,
        "breaches_covered_by_proposals": account.covered,
        "misses_in_covered_breaches": account.covered_requests,
        "forecasts_intervened": account.judged.intervened,
        "forecasts_obeyed": account.judged.forecasts,
        "obeyed_brier": account.judged.brier,
        "obeyed_brier_had_nothing_changed": account.judged.brier_unchanged,
        "obeyed_goodput_error_ratio": account.judged.goodput_error_ratio,
    }


def target_words(target: SloTarget) -> str:
    """A target for people.

    >>> target_words(SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5))
    'ttft P95 0.5 s'
    """
    return f"{target.metric.removesuffix('_s')} P{target.quantile * 100:g} {target.limit_s:g} s"


def _print(account: Account, console: Console) -> None:
    leads = sorted(breach.lead_s for breach in account.breaches if breach.lead_s is not None)
    shadow = not account.obeyed
    rows = [
        ("requests", str(account.requests)),
        (
            "breaches over 20 s",
            f"{len(account.breaches)}: {account.foreseen} foreseen, {len(account.breaches) - account.foreseen} missed",
        ),
        ("lead", f"{leads[len(leads) // 2]:.0f} s in the middle" if leads else "-"),
        ("pages", f"{account.pages}, {account.false_pages} false"),
        ("proposals", f"{len(account.proposals)}: {account.obeyed} obeyed, {account.needless} needless"),
        ("engine-hours", "not told" if account.engine_hours is None else f"{account.engine_hours:.2f}"),
        ("steps done", f"{account.steps_done}, {account.reversals_done} reversals"),
    ]
    if shadow and account.proposals:
        hours = "not told" if account.engine_hours_obeyed is None else f"{account.engine_hours_obeyed:.2f} engine-hours"
        rows.append(
            (
                "had you obeyed",
                f"{hours}, {account.covered} of {len(account.breaches)} breaches met with a proposal in effect "
                f"({account.covered_requests} late requests in them), {account.reversals_proposed} reversals",
            )
        )
    if account.judged.intervened:
        rows.append(("forecasts obeyed", _obeyed_words(account.judged)))
    table = Table(title=f"{account.deployment} ({'shadow' if shadow else 'as obeyed'})", show_header=False)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _obeyed_words(judged: Obeyed) -> str:
    told = f"{judged.forecasts} of {judged.intervened} with a change in their window judged by the count that served"
    if judged.brier is None or judged.brier_unchanged is None or judged.goodput_error_ratio is None:
        return told
    return (
        f"{told}: breach probability off by {judged.brier:.2f} squared ({judged.brier_unchanged:.2f} had nothing "
        f"changed), goodput by {judged.goodput_error_ratio:.0%}"
    )
