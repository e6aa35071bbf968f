"""The README's first picture: what it says is what the run says, and it is an SVG that stands alone."""

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pipelines.errors import ConfigError
from pipelines.picture import BEGIN, END, FILE, Account, Latencies, block, first_above, picture, put_into
from pipelines.picture_svg import Band, Drawing, Mark, svg
from pipelines.samples import RAMP, STEADY, WARM

README = FILE.parent.parent / "README.md"
ACCOUNT = Account(
    foreseen_s=80.0, breached_s=120.0, reactive_s=121.0, windows=30, covered_ratio=0.9, pages=2, false_pages=1,
    quiet_minutes=6.0, quiet_pages=0,
)  # fmt: skip


def drawing(**more: object) -> Drawing:
    fields: dict[str, object] = {
        "title": "a < b", "caption": "c & d", "bands": (Band(30.0, 0.2, 0.1, 0.4), Band(40.0, 0.3, 0.1, 0.9)),
        "dots": ((30.0, 0.25),), "limit_s": 0.5, "span_s": 120.0,
        "marks": (Mark(50.0, "late", "breached"), Mark(20.0, "soon", "foreseen")),
    }  # fmt: skip
    return Drawing(**(fields | more))  # type: ignore[arg-type]


def test_equal_drawings_give_equal_bytes_and_well_formed_xml() -> None:
    text = svg(drawing())
    assert text == svg(drawing())
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert [root.findtext(f"{space}{tag}") for tag in ("title", "desc")] == ["a < b", "c & d"]
    assert len(root.findall(f"{space}polygon")) == 1
    assert not re.search(r"(href|src|url\()", text)  # it asks for nothing from outside


def test_a_gap_in_the_forecasts_is_a_gap_in_the_band() -> None:
    bands = (Band(30.0, 0.2, 0.1, 0.4), Band(40.0, 0.3, 0.1, 0.9), Band(90.0, 0.3, 0.1, 0.9), Band(99.0, 1, 0.1, 2))
    assert svg(drawing(bands=bands)).count("<polygon") == 2


def test_marks_stand_in_time_order_whatever_order_they_come_in() -> None:
    places = re.findall(r'class="mark (\w+)" x1="([\d.]+)"', svg(drawing()))
    assert [kind for kind, _ in places] == ["foreseen", "breached"]
    assert float(places[0][1]) < float(places[1][1])


def test_what_came_of_a_window_is_not_what_a_dashboard_shows_meanwhile() -> None:
    """Requests that arrive in a breach get their first tokens late, so the trailing window sees them late."""
    arrived_s = np.arange(0.0, 60.0)
    latencies = Latencies(arrived_s, arrived_s + np.where(arrived_s < 30.0, 0.1, 20.0))
    times_s = [float(at) for at in range(30, 60)]
    assert first_above([(at, latencies.of_window(at)) for at in times_s]) == 31.0
    assert first_above([(at, latencies.seen(at)) for at in times_s]) >= 50.0
    assert latencies.of_window(5.0) is None  # too few requests for a quantile
    with pytest.raises(ConfigError, match="never breaks its target"):
        first_above([(1.0, 0.1), (2.0, None)])


def test_the_block_replaces_what_stood_between_the_marks() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = put_into(text, "x.md", ACCOUNT)
    assert once == put_into(once, "x.md", ACCOUNT) == f"before\n{block(ACCOUNT)}\nafter\n"
    assert "41 s before an alarm on the trailing 30 s P95 (+121 s)" in once
    with pytest.raises(ConfigError, match=r"x\.md has no lines"):
        put_into("nothing", "x.md", ACCOUNT)


def test_the_readme_s_caption_is_the_picture_s() -> None:
    told = re.search(r"<desc[^>]*>(.*?)</desc>", FILE.read_text(encoding="utf-8"), flags=re.S)
    assert told is not None
    assert f"*{html.unescape(told[1])}*" in README.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_readme_s_figures_are_what_the_command_measures() -> None:
    """Within what another CPU may change."""
    if not Path(RAMP).exists():
        pytest.skip("no sample recordings here")
    account, drawn = picture(RAMP, STEADY, WARM)
    text = README.read_text(encoding="utf-8")

    def told(pattern: str) -> float:
        found = re.search(pattern, text)
        assert found is not None, pattern
        return float(found[1])

    assert account.foreseen_s == pytest.approx(told(r"foreseen at \+(\d+) s"), abs=10.0)
    assert account.reactive_s == pytest.approx(told(r"trailing 30 s P95 \(\+(\d+) s\)"), abs=2.0)
    assert 100 * account.covered_ratio == pytest.approx(told(r"it held (\d+)%"), abs=10.0)
    assert account.false_pages == told(r"False pages: (\d+) of")
    assert account.quiet_pages == told(r"here, (\d+) in \d+ minutes")
    assert account.foreseen_s < account.breached_s
    assert drawn.startswith("<svg")
