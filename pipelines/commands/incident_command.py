"""Make a page of an incident: what happened, when it could have been known, and what each action would have done."""

import argparse
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from pipelines.archive.feeds import open_feed
from pipelines.archive.moments import moment_us, utc
from pipelines.archive.overrides import Overrides, parse_overrides
from pipelines.archive.replaying import Plan
from pipelines.errors import ConfigError
from pipelines.incident.case import Case
from pipelines.incident.findings import lead_s
from pipelines.incident.inquiry import Question, inquire
from pipelines.incident.markdown_text import markdown_of
from pipelines.incident.page import page_of
from pipelines.incident.wording import facts, title
from pipelines.progress import progress_bar
from pipelines.settings import Settings
from pipelines.warmth import read_warm
from pipelines.whole_file import require_writable, write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast incident --help`."""
    parser.add_argument("archive", type=Path, metavar="DIR", help="folder of an archive or a recording")
    parser.add_argument("--from", dest="begin", default="0s", metavar="T", help="start of the window (default: all)")
    parser.add_argument("--to", dest="end", metavar="T", help="its end: a time, or a span such as 300s from the start")
    parser.add_argument("--deployment", default="", metavar="NAME", help="which, where there are several")
    parser.add_argument("--slo", action="append", default=[], metavar="METRIC:QUANTILE:SECONDS", help="targets")
    parser.add_argument("--warm", type=Path, metavar="FILE", help="what the live run began with")
    parser.add_argument("--cold", action="store_true", help="begin without the state that an archive holds")
    parser.add_argument("--out", type=Path, default=Path("incident.html"), metavar="FILE", help="the page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the same as Markdown")
    parser.add_argument("--json", action="store_true", help="answer with one JSON object: the numbers at the top")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Replay, look, and write."""
    for path in (args.out, args.markdown):
        if path is not None:
            require_writable(path)
    with progress_bar("checking the archive") as progress:
        feed = open_feed(args.archive, progress=progress)
    # Whole milliseconds, as the command that the page names has them.
    start_us, end_us = feed.start_us // 1000 * 1000, (feed.end_us // 1000 + 1) * 1000
    begin_us = moment_us(args.begin, "--from", start_us)
    if begin_us >= end_us:
        raise ConfigError(f"--from {args.begin} lies behind the end of {feed.name}, {utc(end_us)}; name a time before")
    question = Question(
        from_us=begin_us,
        to_us=end_us if args.end is None else moment_us(args.end, "--to", start_us),
        deployment=args.deployment,
        slos=_targets(args.slo).slos,
        options=tuple(itertools.chain.from_iterable(("--slo", text) for text in args.slo)),
    )
    plan = Plan(
        settings_of=settings.core,
        overrides=_targets(args.slo),
        warm=None if args.warm is None else read_warm(args.warm),
        cold=args.cold,
    )
    with progress_bar(f"replaying {feed.name}") as progress:
        case = inquire(feed, question, plan, progress=progress)
    write_whole(args.out, page_of(case))
    if args.markdown is not None:
        write_whole(args.markdown, markdown_of(case))
    print(msgspec.json.encode(_account(case, args.out)).decode() if args.json else "\n".join(_lines(case, args.out)))
    return 0


def _targets(texts: Iterable[str]) -> Overrides:
    listed = list(texts)
    try:
        return parse_overrides([f"slo={','.join(listed)}"] if listed else [])
    except ConfigError as error:
        raise ConfigError(f"--slo: {error}") from error


def _lines(case: Case, page: Path) -> list[str]:
    return [title(case), *(f"{each.label}: {each.value} ({each.detail})" for each in facts(case)), f"page: {page}"]


def _account(case: Case, page: Path) -> dict[str, Any]:
    """Event times in microseconds; None is what was not there."""
    breach, foresight = case.breach, case.foresight
    found: dict[str, Any] = {"deployment": case.deployment, "page": str(page), "missed": breach is not None}
    if breach is None or foresight is None:
        return found
    return found | {
        "target": msgspec.to_builtins(breach.target),
        "broke_us": breach.broke_us,
        "recovered_us": breach.recovered_us,
        "worst_s": breach.worst_s if math.isfinite(breach.worst_s) else None,
        "likely_us": foresight.likely_us,
        "fired_us": foresight.fired_us,
        "trailing_us": foresight.trailing_us,
        "lead_s": lead_s(foresight.fired_us, breach.broke_us),
        "lead_over_trailing_s": lead_s(foresight.fired_us, foresight.trailing_us),
    }
