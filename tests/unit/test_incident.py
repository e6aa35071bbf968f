"""Incidents: when a target was missed, when that could have been known, and pages that hold nothing but themselves."""

import asyncio
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from browser import browsing, find_chromium
from hypothesis import given, settings
from hypothesis import strategies as st
from made_archives import QUICK, archive_of, live_run, made_recording
from synthetic import START_US

from pipelines.archive.feeds import open_feed
from pipelines.archive.overrides import parse_overrides
from pipelines.archive.replaying import Plan
from pipelines.cli import main
from pipelines.errors import ConfigError
from pipelines.incident import page as page_module
from pipelines.incident.case import Case
from pipelines.incident.charts import HEIGHT, WIDTH, Band, Chart, Line, svg
from pipelines.incident.findings import (
    SPAN_S,
    Breach,
    arrival_series,
    find_breaches,
    foresight_of,
    lead_s,
    longest,
    trailing_series,
)
from pipelines.incident.inquiry import Question, inquire
from pipelines.incident.markdown_text import markdown_of
from pipelines.incident.observing import Requests
from pipelines.incident.page import page_of
from pipelines.incident.timeline import charts_of
from schemas.alerts import Alert
from schemas.slos import SloTarget
from twin.metrics import Latencies, quantile
from twin.simulate import run as simulate

S = 1_000_000
TTFT = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)


def requests_of(ttft_s: list[float], per_s: int = 5, start_us: int = START_US) -> Requests:
    """One request every 1/per_s seconds with these values; TPOT 10 ms, E2E a second later."""
    values = np.array(ttft_s)
    arrived_us = start_us + (np.arange(values.size) * S) // per_s
    return Requests(arrived_us, Latencies(values, np.full(values.size, 0.01), values + 1.0))


def overload(calm_s: int = 60, bad_s: int = 60, after_s: int = 120, bad: float = 2.0) -> Requests:
    return requests_of([0.1] * (5 * calm_s) + [bad] * (5 * bad_s) + [0.1] * (5 * after_s))


def test_a_breach_begins_with_the_first_window_over_the_limit_and_ends_when_it_is_met_for_good() -> None:
    (found,) = find_breaches(overload(), TTFT, START_US, START_US + 240 * S)
    broke_s, recovered_s = (found.broke_us - START_US) / S, ((found.recovered_us or 0) - START_US) / S
    assert broke_s == pytest.approx(62, abs=1.1)  # 5 % of 150 requests are 8, which take 1.6 s to come
    assert recovered_s == pytest.approx(148, abs=1.1)
    assert found.worst_s == pytest.approx(2.0)
    assert find_breaches(overload(bad=0.4), TTFT, START_US, START_US + 240 * S) == ()


def test_breaches_are_told_one_by_one_and_the_longest_is_the_case() -> None:
    twice = requests_of(
        [0.1] * 200 + [1.0] * 60 + [0.1] * 500 + [2.0] * 300 + [0.1] * 400 + [math.inf] * 100 + [0.1] * 10
    )
    end_us = START_US + 330 * S
    found = find_breaches(twice, TTFT, START_US, end_us)
    assert [each.worst_s for each in found] == [1.0, 2.0, math.inf]
    assert found[2].recovered_us is None
    for earlier, later in itertools.pairwise(found):
        assert (earlier.recovered_us or 0) + SPAN_S * S <= later.broke_us
    assert longest(found, end_us) == found[1]
    trembling = requests_of([0.1] * 200 + ([1.0] * 30 + [0.1] * 150) * 3 + [0.1] * 300)
    series = arrival_series(trembling, "ttft_s", 0.95, START_US, START_US + 200 * S)
    over = series.value > 0.5
    assert np.count_nonzero(np.diff(over.astype(int)) > 0) == 3
    assert len(find_breaches(trembling, TTFT, START_US, START_US + 200 * S)) == 1
    assert longest((), end_us) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 3.0), min_size=60, max_size=200), st.integers(0, 40))
def test_a_window_is_over_the_limit_where_its_requests_are_and_nowhere_else(ttft: list[float], at_s: int) -> None:
    requests = requests_of(ttft)
    series = arrival_series(requests, "ttft_s", 0.95, START_US, START_US + 40 * S)
    end_us = START_US + at_s * S
    inside = (requests.arrived_us > end_us - SPAN_S * S) & (requests.arrived_us <= end_us)
    expected = quantile(requests.latencies.ttft_s[inside], 0.95) if inside.sum() >= 10 else math.nan
    assert series.value[at_s] == pytest.approx(expected, nan_ok=True)


def test_a_trailing_alarm_knows_only_what_has_come() -> None:
    bad = overload(bad=20.0)
    arrival = arrival_series(bad, "ttft_s", 0.95, START_US, START_US + 240 * S)
    trailing = trailing_series(bad, "ttft_s", 0.95, START_US, START_US + 240 * S)
    first = [int(np.argmax(each.value > 0.5)) for each in (arrival, trailing)]
    assert first[1] - first[0] >= 18  # it hears of a request when its first token comes
    never = trailing_series(overload(bad=math.inf), "ttft_s", 0.95, START_US, START_US + 240 * S)
    assert not (never.value > 0.5).any()


def alert(at_s: int, state: Any, name: str = "a") -> Alert:
    return Alert(
        deployment="d",
        at_us=START_US + at_s * S,
        alert_id=name,
        kind="slo_risk",
        state=state,
        cause="x",
        onset_us=START_US,
    )


def foresight_lead(alerts: list[Alert]) -> float | None:
    requests = overload()
    (breach,) = find_breaches(requests, TTFT, START_US, START_US + 240 * S)
    found = foresight_of(breach, requests, [], alerts, START_US, START_US + 240 * S)
    return lead_s(found.fired_us, breach.broke_us)


def test_an_alert_counts_if_it_stood_at_the_breach_and_its_lead_has_a_sign() -> None:
    assert foresight_lead([alert(30, "suspected"), alert(40, "firing")]) == pytest.approx(22, abs=1.1)
    assert foresight_lead([alert(10, "firing", "old"), alert(30, "resolved", "old")]) is None
    assert foresight_lead(
        [alert(10, "firing", "old"), alert(30, "resolved", "old"), alert(50, "firing")]
    ) == pytest.approx(12, abs=1.1)
    late = foresight_lead([alert(80, "firing")])
    assert late is not None
    assert late < 0
    assert foresight_lead([]) is None
    assert lead_s(None, 5) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(allow_nan=True, allow_infinity=True, width=32)), min_size=1, max_size=30
    ),
    st.none() | st.just(2.0),
)
def test_every_point_of_a_chart_lies_inside_its_frame(points: list[tuple[float, float]], at_most: float | None) -> None:
    at_s = sorted(at for at, _ in points)
    values = [abs(value) for _, value in points]
    chart = Chart(
        key="k<",
        title="<b>",
        unit="s",
        lines=(Line("x", "observed", at_s, values),),
        bands=(Band("b", "interval", at_s, values, values),),
        limit=("limit", 1.0),
        at_most=at_most,
    )
    text = svg(chart, 100.0, 0.0)
    assert text == svg(chart, 100.0, 0.0)
    assert "<b>" not in text
    assert not re.search(r"\b(inf|nan)\b", text)
    for x, y in re.findall(r"[ML ](-?[\d.]+),(-?[\d.]+)", text):
        assert 0 <= float(x) <= WIDTH
        assert 0 <= float(y) <= HEIGHT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service that is offered more than it can serve."""
    run = live_run(made_recording(60.0, rate_per_s=24.0))
    return archive_of(run, tmp_path_factory.mktemp("incident") / "a")


def case_of(folder: Path, begin_s: float = 0.0, end_s: float = 60.0, **more: Any) -> Case:
    feed = open_feed(folder)
    plan = Plan(settings_of=lambda _: QUICK, overrides=parse_overrides(["slo=ttft_s:0.95:0.5"]))
    begin_us = feed.start_us + round(begin_s * S)
    question = Question(from_us=begin_us, to_us=feed.start_us + round(end_s * S), slos=(TTFT,), **more)
    return inquire(feed, question, plan, simulate=simulate)


@pytest.fixture(scope="module")
def case(folder: Path) -> Case:
    return case_of(folder)


def test_a_case_holds_what_happened_what_was_known_and_what_would_have_helped(case: Case) -> None:
    assert case.deployment == "d"
    assert len(case.requests) > 1_000
    assert isinstance(case.breach, Breach)
    assert case.foresight is not None
    assert case.forecasts
    assert [phase.name for phase in case.phases][-1] == "during"
    nothing = next(each for each in case.remedies if each.is_nothing)
    names = [each.name for each in case.remedies]
    assert [name.split()[0] for name in names[:4]] == ["1", "2", "3", "4"]
    four = case.remedies[3]
    assert nothing.expected is not None
    assert four.expected is not None
    assert four.hindsight is not None
    assert nothing.hindsight is not None
    assert four.expected.value_s < nothing.expected.value_s
    assert four.hindsight.missed_ratio < nothing.hindsight.missed_ratio
    assert any(f"--from {part}" in case.commands[0] for part in ("2026-",))
    assert {span.topic for span in case.spans} >= {"twincast.requests.v1", "twincast.steps.v1"}


class _Outside(HTMLParser):
    """Addresses that a page refers to, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_the_page_refers_to_nothing_outside_and_is_small(case: Case) -> None:
    page = page_of(case)
    assert page == page_of(case)
    assert len(page) < 5_000_000
    parser = _Outside()
    parser.feed(page.decode())
    assert parser.found == ["data:,"]
    assert b"http://" not in page
    assert b"https://" not in page
    assert b"@import" not in page
    assert b"url(" not in page
    assert parser.tags.count("svg") == len(charts_of(case)) + 1


def test_whatever_a_record_holds_is_text_in_the_page_and_one_cell_in_markdown(case: Case) -> None:
    evil = "<script>alert(1)</script>|x\n\n# y"
    drifted = Alert(
        deployment="d",
        at_us=case.from_us + S,
        alert_id="z",
        kind="cost_drift",
        state="firing",
        cause=evil,
        onset_us=case.from_us,
    )
    hostile = _with(case, source=evil, deployment=evil, alerts=(drifted,))
    parser = _Outside()
    parser.feed(page_of(hostile).decode())
    plain = _Outside()
    plain.feed(page_of(case).decode())
    assert parser.tags.count("script") == plain.tags.count("script") == 2
    text = markdown_of(hostile).decode()
    assert "<script>" not in text
    assert "\n# y" not in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_no_name_of_a_line_can_end_the_script_that_holds_its_values() -> None:
    chart = Chart(key="k", title="t", unit="s", lines=(Line("</script><b>", "observed", [0.0], [1.0]),))
    text = page_module._series([chart], 10.0, 0.0)
    assert "<" not in text
    assert json.loads(text)["lines"]["k"][0]["n"] == "</script><b>"


def _with(case: Case, **changes: Any) -> Case:
    kept = {name: getattr(case, name) for name in Case.__dataclass_fields__}
    return Case(**(kept | changes))


def test_markdown_tells_what_the_page_tells(case: Case) -> None:
    text, page = markdown_of(case).decode(), page_of(case).decode()
    for heading in re.findall(r"<h2>(.*?)</h2>", page):
        assert f"## {heading}" in text
    assert text.count("| advisory |") > 5


@pytest.mark.slow
def test_a_case_does_not_depend_on_what_comes_after_its_window(folder: Path) -> None:
    early, late = case_of(folder, 0.0, 40.0), case_of(folder)
    before_us = early.to_us
    forecasts = [msgspec.json.encode(each) for each in late.forecasts if each.as_of_us < before_us]
    assert [msgspec.json.encode(each) for each in early.forecasts] == forecasts
    assert early.alerts == tuple(each for each in late.alerts if each.at_us < before_us)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "message"),
    [
        (5_000.0, 5_060.0, "no request of a arrived"),
        (20.0, 20.0, "--to must lie after"),
        (0.0, 30_000.0, "at most 6 h"),
    ],
)
def test_a_window_that_holds_nothing_is_refused_in_words(
    folder: Path, begin_s: float, end_s: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        case_of(folder, begin_s, end_s)


def test_a_deployment_that_is_not_there_is_refused_in_words(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no request of other arrived"):
        case_of(folder, 0.0, 5.0, deployment="other")


@pytest.mark.slow
def test_the_command_writes_both_files_and_refuses_before_it_works(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "twincast.toml"
    config.write_text(
        "[forecast]\ncoarse_replications = 1\nfine_replications = 2\nscenarios = ['baseline']\n"
        "period_s = 5.0\nhorizons_s = [10.0, 20.0]\ninsight = false\n"
    )
    out, text = tmp_path / "i.html", tmp_path / "i.md"
    begin = ["--config", str(config), "incident", str(folder), "--to", "30s"]
    assert main([*begin, "--slo", "ttft_s:0.95:0.5", "--out", str(out), "--markdown", str(text), "--json"]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["missed"] is True
    assert account["target"]["limit_s"] == 0.5
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert text.read_bytes().startswith(b"# d: TTFT P95 went over 0.5 s at")
    for wrong in (
        ["--slo", "ttft"],
        ["--from", "never"],
        ["--from", "9000s", "--to", "9100s"],
        ["--out", str(tmp_path / "none" / "i.html")],
    ):
        assert main([*begin, *wrong]) == 2
        told = capsys.readouterr().err
        assert told.startswith("twincast: ")
        assert told.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser_every_chart_is_drawn_and_nothing_is_asked_for(case: Case, tmp_path: Path, dark: bool) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(page_of(case))

    async def look() -> tuple[list[float], str, str, list[str], list[str]]:
        async with browsing(1180, 900, dark=dark) as tab:
            await tab.open(page.as_uri())
            await tab.until("document.readyState === 'complete' && document.querySelector('svg.chart') !== null")
            lengths = await tab.run(
                "[...document.querySelectorAll('svg.chart')].map("
                "s => Math.max(0, ...[...s.querySelectorAll('path.line')].map(p => p.getTotalLength())))"
            )
            background = await tab.run("getComputedStyle(document.body).backgroundColor")
            read = await tab.run(
                "(() => { const s = document.querySelector('svg.chart'), b = s.getBoundingClientRect();"
                "s.dispatchEvent(new PointerEvent('pointermove', {clientX: b.x + b.width / 2, clientY: b.y + 20}));"
                "return document.querySelector('.read').textContent })()"
            )
            return lengths, background, read, tab.problems, tab.asked

    lengths, background, read, problems, asked = asyncio.run(look())
    assert problems == []
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert len(lengths) == len(charts_of(case))
    assert min(lengths) > 100
    assert background == ("rgb(15, 20, 27)" if dark else "rgb(246, 247, 249)")
    assert "observed" in read
