"""An incident page of recording C: when the target was missed, when that was known, and the page in a browser.

    python -m tests.bench.bench_incident [RECORDING [PAGE]]

The breach is compared with one counted here from the recording's own rows, in disjoint windows of 30 s.
"""

import asyncio
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as pytest does for its tests

from browser import browsing, find_chromium

from pipelines.archive.feeds import open_feed
from pipelines.archive.overrides import parse_overrides
from pipelines.archive.replaying import Plan
from pipelines.incident.case import Case
from pipelines.incident.findings import SPAN_S, lead_s
from pipelines.incident.inquiry import Question, inquire
from pipelines.incident.observing import US_PER_S
from pipelines.incident.page import page_of
from pipelines.incident.timeline import charts_of, seconds
from pipelines.settings import read_settings
from schemas.slos import SloTarget

HERE = Path(__file__).resolve().parents[2]
SHARED = HERE.parent / "shared" / "recordings" / "C_ramp_s301"
SAMPLE = HERE / "examples" / "recordings" / "ramp"
SLO = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)
LIMIT_BYTES = 5_000_000
LENGTHS = (
    "[...document.querySelectorAll('svg.chart')].map("
    "s => Math.max(0, ...[...s.querySelectorAll('path.line')].map(p => p.getTotalLength())))"
)


def main() -> int:
    """Print the figures; exit code 1 where a bar is missed."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    folder = folder if folder.exists() else SAMPLE
    began_s = time.monotonic()
    case = _case(folder)
    page = page_of(case)
    print(f"incident: {case.source}, {len(page) / 1e6:.2f} MB in {time.monotonic() - began_s:.0f} s (bar: under 5 MB)")
    found = [len(page) < LIMIT_BYTES, _breach(case, folder)]
    if find_chromium() is None:
        print("browser: skipped, no Chromium here")
    else:
        found.append(_browser(case, page))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_bytes(page)
    return 0 if all(found) else 1


def _case(folder: Path) -> Case:
    feed = open_feed(folder)
    plan = Plan(settings_of=read_settings({}).core, overrides=parse_overrides(["slo=ttft_s:0.95:0.5"]))
    begin_us, end_us = feed.start_us // 1000 * 1000, (feed.end_us // 1000 + 1) * 1000
    return inquire(feed, Question(from_us=begin_us, to_us=end_us, slos=(SLO,)), plan)


def _breach(case: Case, folder: Path) -> bool:
    breach, foresight = case.breach, case.foresight
    if breach is None or foresight is None:
        print("breach: none found, missed")
        return False
    told_s = seconds(case, breach.broke_us)
    counted_s = _counted_s(case, folder)
    near = counted_s is None or abs(told_s - counted_s) <= SPAN_S
    word = "" if counted_s is None else f", the first window of {SPAN_S:g} s over it ends at +{counted_s:.0f} s"
    print(f"breach: found at +{told_s:.0f} s{word} (bar: within one window{'' if near else ', missed'})")
    ahead, over = lead_s(foresight.fired_us, breach.broke_us), lead_s(foresight.fired_us, foresight.trailing_us)
    good = over is not None and over > 0
    print(
        f"lead: risk alert {ahead} s before the target was missed, {over} s before a trailing {SPAN_S:g} s P95 alarm "
        f"(bar: above 0{'' if good else ', missed'})"
    )
    return near and good


def _counted_s(case: Case, folder: Path) -> float | None:
    """End of the first disjoint window over the limit, seconds from the case's start; None without the lab's rows."""
    path = folder / "requests.jsonl.gz"
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    if "t_arr" not in rows[0]:
        return None
    arrived_s = np.array([row["t_arr"] for row in rows])
    ttft_s = np.array([np.inf if row["ttft_ms"] is None else row["ttft_ms"] / 1000 for row in rows])
    meta = json.loads((folder / "meta.json").read_text())
    shift_s = meta["t0_unix"] - case.from_us / US_PER_S
    for begin_s in np.arange(0.0, float(arrived_s.max()), SPAN_S):
        inside = ttft_s[(arrived_s >= begin_s) & (arrived_s < begin_s + SPAN_S)]
        if inside.size and np.quantile(inside, SLO.quantile) > SLO.limit_s:
            return float(begin_s + SPAN_S + shift_s)
    return None


def _browser(case: Case, page: bytes) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "incident.html"
        path.write_bytes(page)
        lengths, problems, asked = asyncio.run(_look(path))
    outside = [address for address in asked if not address.startswith(("file:", "data:"))]
    drawn = sum(length > 100 for length in lengths)
    good = drawn == len(charts_of(case)) and not problems and not outside
    print(
        f"browser: {drawn} of {len(charts_of(case))} charts drawn, {len(problems)} console errors, {len(outside)} "
        f"outside requests (bar: all, 0, 0{'' if good else ', missed'})"
    )
    return good


async def _look(path: Path) -> tuple[list[float], list[str], list[str]]:
    async with browsing(1180, 900) as tab:
        await tab.open(path.as_uri())
        await tab.until("document.readyState === 'complete' && document.querySelector('svg.chart') !== null")
        lengths: list[float] = await tab.run(LENGTHS)
        return lengths, tab.problems, tab.asked


if __name__ == "__main__":
    sys.exit(main())
