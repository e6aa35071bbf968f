"""Compare two windows, traces or published figures, and grade what follows from them."""

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from pipelines.errors import ConfigError
from pipelines.evidence.evidence_cases import chain_of_case
from pipelines.evidence.evidence_html import html_page
from pipelines.evidence.evidence_markdown import markdown
from pipelines.evidence.evidence_post import post
from pipelines.evidence.evidence_windows import Asked, windows_chain
from pipelines.kv_link import parse_link
from pipelines.places import find_place, open_log
from pipelines.progress import progress_bar
from pipelines.settings import Settings, parse_slo
from pipelines.whole_file import require_writable, write_whole
from schemas.evidence import Evidence
from twin.evidence.measure import BLOCK_S, NOISE_FLOOR_RATIO

CASE_SUFFIX = ".toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `twincast evidence --help`."""
    parser.add_argument(
        "base", type=Path, metavar="BASE", help="a recording or archive, a kernel trace, or a case (.toml)"
    )
    parser.add_argument("candidate", type=Path, nargs="?", metavar="CANDIDATE", help="the other one (not with a case)")
    parser.add_argument("--deployment", metavar="NAME", help="which one, where a recording holds several")
    parser.add_argument("--limit", action="append", default=[], metavar="METRIC:QUANTILE:SECONDS", help="who falls out")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="own rules of span classes (.toml), tried first")
    parser.add_argument(
        "--kv-link",
        metavar="US_PER_TOKEN[:FIXED_US[:CV]]",
        help="how KV travels between prefill and decode engines (default: as their requests' KV loads tell)",
    )
    for side in ("base", "candidate"):
        group = parser.add_argument_group(f"the {side}")
        group.add_argument(f"--{side}-window", metavar="FROM:TO", help="only these seconds of its recording")
        group.add_argument(
            f"--{side}-trace", type=Path, action="append", default=[], metavar="FILE", help="torch-profiler trace of it"
        )
        group.add_argument(
            f"--{side}-repeat", type=Path, action="append", default=[], metavar="DIR", help="the same, recorded again"
        )
    judging = parser.add_argument_group("how a change is judged")
    judging.add_argument("--block", type=float, default=BLOCK_S, metavar="S", help="seconds resampled together (30)")
    judging.add_argument(
        "--noise-floor",
        type=float,
        default=NOISE_FLOOR_RATIO,
        metavar="RATIO",
        help="effects under this are noise (0.15; with repeats it is measured)",
    )
    judging.add_argument("--seed", type=int, default=0, metavar="N", help="of resampling and of simulated noise (0)")
    out = parser.add_argument_group("output")
    out.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    out.add_argument("--markdown", type=Path, metavar="FILE", help="write the report as Markdown")
    out.add_argument("--json", type=Path, metavar="FILE", help="write the record as JSON (- for stdout)")
    out.add_argument(
        "--broker",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="send the record to the topic of evidence (without a value: the cluster or broker that is found)",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Make the chain, print it, write and send what was asked for."""
    for path in (args.html, args.markdown, args.json):
        if path is not None and str(path) != "-":
            require_writable(path)
    asked = _asked(args)
    with progress_bar(f"comparing {args.base.name}") as progress:
        is_case = args.base.suffix == CASE_SUFFIX
        found = chain_of_case(args.base, asked, progress) if is_case else windows_chain(asked, progress)
    _write(args, found)
    if args.broker is not None:
        asyncio.run(_post(args.broker, settings, found))
    return 0


def _asked(args: argparse.Namespace) -> Asked:
    is_case = args.base.suffix == CASE_SUFFIX
    if is_case and args.candidate is not None:
        raise ConfigError(f"{args.base} is a case with both sides in it; leave {args.candidate} out")
    if not is_case and args.candidate is None:
        raise ConfigError(f"{args.base} needs something to be compared with; give BASE and CANDIDATE, or a case file")
    return Asked(
        base=args.base,
        candidate=args.candidate or args.base,
        deployment=args.deployment,
        base_window=args.base_window,
        candidate_window=args.candidate_window,
        base_traces=tuple(args.base_trace),
        candidate_traces=tuple(args.candidate_trace),
        base_repeats=tuple(args.base_repeat),
        candidate_repeats=tuple(args.candidate_repeat),
        rules=args.rules,
        limits=tuple(parse_slo(text) for text in args.limit),
        block_s=args.block,
        noise_floor_ratio=args.noise_floor,
        link=None if args.kv_link is None else parse_link(args.kv_link, overlapped=False),
        seed=args.seed,
    )


def _write(args: argparse.Namespace, found: Evidence) -> None:
    if args.html is not None:
        write_whole(args.html, html_page(found).encode())
    if args.markdown is not None:
        write_whole(args.markdown, markdown(found).encode())
    if args.json is not None and str(args.json) != "-":
        write_whole(args.json, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    if args.json is not None and str(args.json) == "-":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
        return
    for line in _lines(found):
        print(line)


def _lines(found: Evidence) -> list[str]:
    """The short form: grade, what it lacks, what would refute it, advice."""
    return [
        f"{found.title}: grade {found.grade}, {found.grade_reasons[0]}",
        *(f"  missing: {text}" for text in found.missing),
        f"  refuted by: {found.refuted_by}",
        f"{found.advice.title}: {found.advice.text}",
        *(f"  risk: {text}" for text in found.advice.risks),
        f"finding: {found.finding}",
        *(f"  not shown: {text}" for text in found.not_shown),
        *(f"  limit: {text}" for text in found.limits),
    ]


async def _post(where: str, settings: Settings, found: Evidence) -> None:
    place = find_place(settings, where or None)
    async with open_log(settings, place.place) as log:
        await post(log, found, settings.partitions)
    print(f"sent to {place.place} ({place.why})", file=sys.stderr)
