"""Run a worker: forecasts for every deployment whose records come in."""

import argparse
import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from pipelines.heartbeat import EXIT_STALLED, Heartbeat
from pipelines.logs import log_to_stderr
from pipelines.places import find_place
from pipelines.posts import Report
from pipelines.service import StalledError, serve
from pipelines.settings import Settings
from twin.settings import NATIVE_LATENESS_S, CoreSettings

OTLP_LATENESS_S = 10.0
"""Exporters send a batch every five seconds, and a collector in between adds its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast up --help`."""
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="Kafka cluster (default: TWINCAST_BOOTSTRAP)")
    parser.add_argument("--slot", type=int, metavar="N", help="number of this worker among those of its group, from 0")
    parser.add_argument("--group", metavar="NAME", help="consumer group (default: twincast)")
    parser.add_argument("--report", action="store_true", help="write a JSON line on stdout every second: counts, lag")
    parser.add_argument(
        "--otlp",
        metavar="[HOST:]PORT",
        help="take OTLP exports over HTTP (host: 127.0.0.1); deployments without a table of their own are then taken "
        "to tell finished requests alone, up to 10 s late: give it to all workers of a group",
    )
    parser.add_argument(
        "--web",
        metavar="[HOST:]PORT",
        help="serve the page there as well (host: 127.0.0.1; any other needs TWINCAST_WEB_TOKEN)",
    )
    parser.add_argument(
        "--scrape",
        action="append",
        metavar="DEPLOYMENT[/ENGINE]=URL",
        help="read the metrics page of an engine every five seconds; again for each engine, in one worker of a group",
    )
    parser.add_argument("--warm", type=Path, metavar="FILE", help="begin with what was learned elsewhere")
    parser.add_argument("--metrics", metavar="[HOST:]PORT", help="serve Prometheus metrics there (host: 127.0.0.1)")
    parser.add_argument("--alertmanager", metavar="URL", help="tell an Alertmanager of alerts, and of their end")
    parser.add_argument("--alerts-file", type=Path, metavar="FILE", help="append a line of JSON per change of an alert")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Serve until asked to stop."""
    log_to_stderr(settings.log_level)
    worker = replace(
        settings.worker,
        slot=settings.worker.slot if args.slot is None else args.slot,
        group=args.group or settings.worker.group,
        warm_file=args.warm or settings.worker.warm_file,
        otlp=args.otlp or settings.worker.otlp,
        web=args.web or settings.worker.web,
        scrape=tuple(args.scrape or settings.worker.scrape),
    )
    outlets = replace(
        settings.outlets,
        metrics=args.metrics or settings.outlets.metrics,
        alertmanager=args.alertmanager or settings.outlets.alertmanager,
        alerts_file=args.alerts_file or settings.outlets.alerts_file,
    )
    settings = replace(settings, outlets=outlets)
    settings = replace(settings, worker=worker, defaults=_as_spans_tell(settings) if worker.otlp else settings.defaults)
    found = find_place(settings, args.bootstrap)
    if found.why != "named":
        print(f"{found.place} ({found.why})", file=sys.stderr)
    report = _print if args.report else _keep_quiet
    try:
        with Heartbeat() as heartbeat:
            asyncio.run(serve(settings, found.place, heartbeat, report))
    except StalledError as error:
        print(f"twincast: {error}; restart the worker", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_STALLED)  # whatever hangs may hang an ordered end as well
    return 0


def _as_spans_tell(settings: Settings) -> CoreSettings:
    """Settings of a service that its spans alone tell of: no steps, and ends of requests that exporters hold back."""
    usual = settings.defaults
    lateness_s = OTLP_LATENESS_S if usual.lateness_s == NATIVE_LATENESS_S else usual.lateness_s
    return replace(usual, steps_expected=False, lateness_s=lateness_s)


def _print(report: Report) -> None:
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


def _keep_quiet(report: Report) -> None:
    """No report was asked for."""
