"""Reports of chains: what stands where, nothing from outside, every value drawn; and the record on a log."""

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from pipelines.cli import main
from pipelines.evidence.evidence_charts import Bar, ChangeRow, bars, changes
from pipelines.evidence.evidence_html import html_page
from pipelines.evidence.evidence_markdown import markdown
from pipelines.evidence.evidence_post import post
from pipelines.local.embedded import memory_log
from pipelines.log import TopicPartition
from pipelines.samples import EXAMPLES
from schemas.codec import decode, encode
from schemas.evidence import Evidence
from schemas.topics import EVIDENCE
from tests.made_evidence import shipped_case

PUBLISHED = EXAMPLES / "evidence" / "published_prefix.toml"


@pytest.fixture(scope="module")
def found() -> Evidence:
    return shipped_case("published_prefix")


@pytest.fixture(scope="module")
def measured() -> Evidence:
    return shipped_case("prefix_cache")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "line", "rect", "circle", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "rect", "circle"):
            assert self.open.pop() == tag


def tags(page: str) -> Tags:
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_grade_missing_and_refutation_stand_before_the_advice(found: Evidence, measured: Evidence) -> None:
    for chain in (found, measured):
        for report in (html_page(chain), markdown(chain)):
            title = re.search(rf"(<h2>|## ){chain.advice.title}", report)
            assert title is not None
            before = report[: title.start()]
            assert "Missing for one grade higher" in before.replace("**", "")
            assert "What would refute it" in before.replace("**", "")
            assert chain.missing[-1] in before
            assert chain.refuted_by[1:40] in before
            assert chain.advice.text[1:20] not in before


def test_below_b_the_advice_is_titled_a_hypothesis(found: Evidence) -> None:
    assert "<h2>Hypothesis</h2>" in html_page(found)
    assert "<h2>Recommendation</h2>" not in html_page(found)


def test_the_page_asks_nobody_and_runs_nothing(found: Evidence, measured: Evidence) -> None:
    for chain in (found, measured):
        page = html_page(chain)
        seen = tags(page).seen
        assert not {tag for tag, _ in seen} & {"script", "img", "iframe", "object"}
        assert [attrs["href"] for tag, attrs in seen if "href" in attrs] == ["data:,"]
        assert not re.search(r"https?://|@import|url\(", page)
        assert "prefers-color-scheme:dark" in page
        assert len(page.encode()) < 5_000_000


def test_every_chart_is_drawn(measured: Evidence) -> None:
    charts = [attrs for tag, attrs in tags(html_page(measured)).seen if tag == "svg"]
    names = {attrs["data-chart"] for attrs in charts}
    assert names == {"changes of facts", "class times, engine level", "simulated and measured changes"}


def test_text_of_files_is_escaped(found: Evidence) -> None:
    evil = msgspec.structs.replace(found, title="<script>alert(1)</script>", base="a|b & <b>")
    page = html_page(evil)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a|b &amp; &lt;b&gt;" in page


def test_markdown_tables_have_as_many_cells_as_heads(measured: Evidence) -> None:
    lines = markdown(measured).splitlines()
    assert any(line.startswith("| ") for line in lines)
    width = 0
    for line in lines:
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        if cells and width:
            assert cells == width, line
        width = cells


def test_bars_and_changes_stay_within_the_picture() -> None:
    drawn = bars([Bar("a", 3.0, 1.0, "ms"), Bar("b", -1.0, 0.0, "ms per decode step")], "c")
    rows = [ChangeRow("x", (-0.5, -0.9, 30.0), (0.1, None, None)), ChangeRow("y", (12.0, None, None))]
    chart = changes(rows, 0.15, "c")
    for picture in (drawn, chart):
        width = float(re.findall(r'viewBox="0 0 (\d+)', picture)[0])
        places = [float(value) for value in re.findall(r' (?:x|x1|x2|cx)="([-\d.]+)"', picture)]
        assert min(places) >= 0.0
        assert max(places) <= width
        assert all(float(value) >= 0.0 for value in re.findall(r' width="([-\d.]+)"', picture))
    assert chart.count("<circle") == 2
    assert (bars([], "c"), changes([], None, "c")) == ("", "")


def test_one_record_goes_to_the_log_and_reads_back(found: Evidence) -> None:
    async def scene() -> None:
        async with memory_log() as log:
            await post(log, found, 3)
            await post(log, found, 3)
            ends = await log.end_offsets([TopicPartition(EVIDENCE.name, number) for number in range(3)])
            assert sorted(ends.values()) == [0, 0, 2]
            where = next(place for place, end in ends.items() if end)
            async with log.reader({where: 0}) as reader:
                first, second = await reader.get(max_records=2)
            assert first.value == second.value == encode(found)
            assert dict(first.headers)["ce_id"] == dict(second.headers)["ce_id"]
            assert first.key == found.deployment.encode()
            assert decode(EVIDENCE.name, first.value or b"").record == found

    asyncio.run(scene())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TWINCAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TWINCAST_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_writes_what_was_asked_for(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: elsewhere / f"out.{name}" for name in ("html", "markdown", "json")}
    arguments = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert main(["evidence", str(PUBLISHED), *arguments, "--broker"]) == 0
    told = capsys.readouterr()
    assert "grade C" in told.out
    assert "Hypothesis: " in told.out
    assert "sent to" in told.err
    assert json.loads(files["json"].read_bytes())["grade"] == "C"
    assert files["html"].read_text().startswith("<!doctype html>")
    assert files["markdown"].read_text().startswith("# Prefix cache")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.toml"], "missing.toml"),
        ([str(PUBLISHED), "other"], "leave other out"),
        (["alone"], "needs something to be compared with"),
        ([str(EXAMPLES / "recordings" / "steady"), str(EXAMPLES / "recordings" / "nowhere")], "nowhere"),
        ([*[str(EXAMPLES / "recordings" / "prefix_on")] * 2, "--base-window", "900:990"], "no request of prefix_on"),
        ([*[str(EXAMPLES / "recordings" / "prefix_on")] * 2, "--base-window", "soon"], "FROM:TO"),
        ([*[str(EXAMPLES / "recordings" / "prefix_on")] * 2, "--block", "0"], "block must"),
        ([str(PUBLISHED), "--html", "no/such/folder/x.html"], "no folder"),
    ],
)
def test_wrong_input_ends_as_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(["evidence", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_trace_beside_a_recording_is_refused(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = elsewhere / "t.json"
    trace.write_text('{"traceEvents": []}')
    assert main(["evidence", str(trace), str(EXAMPLES / "recordings" / "steady")]) == 2
    assert "compare two of a kind" in capsys.readouterr().err
    assert main(["evidence", str(trace), str(trace)]) == 2
    assert "holds no kernels" in capsys.readouterr().err
