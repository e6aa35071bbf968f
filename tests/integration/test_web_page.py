"""The page in a real browser: every view drawn, light and dark, by keyboard, stale when it is, asking nobody else.

Screenshots are left where TWINCAST_SCREENSHOTS says, if it says.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import Tab, browsing, find_chromium
from made_page import fill, made_log, named, page_settings, story

from pipelines.local.embedded import LocalLog
from pipelines.web.access import Address
from pipelines.web.serve import RunningPage, running_page
from schemas.topics import FORECASTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; install it, or name it by TWINCAST_CHROMIUM"),
]

UNTIL_S = 185.0
INKED = """(() => [...document.querySelectorAll('.chart canvas')].map((canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 0) seen.add(data.slice(at, at + 3).join());
  return seen.size;
}))()"""
"""How many colours each chart has."""
HERE = """(({ activeElement }) => (activeElement.getAttribute('aria-label') ?? '').split(/[:.]/)[0])(document)"""
"""The beginning of the name of what has the focus."""


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    named_place = os.environ.get("TWINCAST_SCREENSHOTS")
    place = Path(named_place) if named_place else tmp_path
    place.mkdir(parents=True, exist_ok=True)
    return place


@asynccontextmanager
async def served() -> AsyncIterator[tuple[RunningPage, LocalLog]]:
    """The page of four deployments, one of them well into its overload."""
    told = story(UNTIL_S)
    async with made_log() as log:
        for name, until_s in (("chat", 95.0), ("search", 60.0), ("batch", 30.0)):
            await fill(log, named((each for each in told if each.at_s <= until_s), name))
        await fill(log, told)
        async with running_page(log, page_settings(), Address("127.0.0.1", 0), log.name) as page:
            await asyncio.wait_for(page.feed.caught_up.wait(), 20.0)
            yield page, log


def looked_at(
    act: Callable[[Tab, RunningPage, LocalLog], Awaitable[None]], *, dark: bool = False, width: int = 1440
) -> Tab:
    """Open a browser on the page, do something, and look at what it complained of and whom it asked."""

    async def look() -> Tab:
        async with served() as (page, log), browsing(width, 900, dark=dark) as tab:
            await act(tab, page, log)
            assert tab.problems == []
            assert {urlsplit(url).netloc for url in tab.asked} == {urlsplit(page.url).netloc}
            return tab

    return asyncio.run(look())


async def still_new(log: LocalLog) -> None:
    """Write the newest forecast again, made now."""
    await fill(log, [each for each in story(UNTIL_S) if each.message.topic == FORECASTS.name][-1:])


def is_picture(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 30_000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_fleet_shows_every_deployment_the_most_endangered_first(shots: Path, dark: bool) -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(page.url)
        await tab.until("document.querySelectorAll('.fleet tbody tr').length === 4")
        names = await tab.run("[...document.querySelectorAll('.fleet tbody th')].map((cell) => cell.innerText)")
        assert names[0] == "tiny"
        assert sorted(names) == ["batch", "chat", "search", "tiny"]
        words = await tab.run("document.querySelector('.fleet tbody tr').innerText")
        for shown in ("TTFT P95", "of 0.5 s", "over", "advisory", "slo risk", "proposed"):
            assert shown in words
        assert await tab.run("document.querySelectorAll('.spark .line').length") == 4
        assert is_picture(await tab.screenshot(shots / f"fleet-{'dark' if dark else 'light'}.png"))

    looked_at(act, dark=dark)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_deployment_shows_all_its_charts_and_panels(shots: Path, dark: bool) -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(f"{page.url}#/d/tiny")
        await tab.until("document.querySelectorAll('.chart canvas').length >= 6")
        await tab.run("document.querySelector('.whatif').scrollIntoView()")
        await tab.until("document.querySelectorAll('.chart canvas').length === 7", 30.0)
        await asyncio.sleep(0.3)
        assert min(await tab.run(INKED)) >= 8
        words = await tab.run("document.getElementById('main').innerText")
        for shown in (
            "Breach risk",
            "interval as forecast",
            "Queue",
            "KV blocks in use",
            "Utilisation",
            "mixed steps",
            "ceiling",
            "engine 0",
            "Inside 90 %",
            "before it began, in the median",
            "slo risk",
            "deploy",
            "Scale out",
            "without",
            "advisory",
            "few rounds scored",
            "as it is",
        ):
            assert shown in words, shown
        background = await tab.run("getComputedStyle(document.body.parentElement).backgroundColor")
        assert (background == "rgb(14, 19, 25)") == dark
        await tab.run("scrollTo(0, 0)")
        scheme = "dark" if dark else "light"
        assert is_picture(await tab.screenshot(shots / f"deployment-top-{scheme}.png"))
        assert is_picture(await tab.screenshot(shots / f"deployment-{scheme}.png", whole=True))

    looked_at(act, dark=dark)


def test_a_narrow_window_needs_no_sideways_scrolling(shots: Path) -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(f"{page.url}#/d/tiny")
        await tab.until("document.querySelectorAll('.chart canvas').length >= 6")
        assert await tab.run("document.documentElement.scrollWidth <= innerWidth")
        assert is_picture(await tab.screenshot(shots / "deployment-narrow.png", whole=True))

    looked_at(act, width=390)


def test_moving_a_slider_is_answered_and_as_it_is_goes_back(shots: Path) -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(f"{page.url}#/d/tiny")
        await tab.until("document.querySelectorAll('.slider').length === 4")
        await tab.run("document.querySelector('.whatif').scrollIntoView()")
        await tab.until("document.querySelector('.answer').innerText.includes('answered in')", 30.0)
        await tab.run("document.querySelectorAll('.slider input')[1].focus()")
        await tab.press("ArrowRight", 39)
        await tab.until("document.querySelector('.answer').innerText.includes('of 2 engines')", 30.0)
        assert await tab.run("document.querySelectorAll('.slider output')[1].innerText") == "2"
        changes = await tab.run("[...document.querySelectorAll('.answer .better')].length")
        assert changes >= 2
        assert is_picture(await tab.screenshot(shots / "whatif.png"))
        await tab.run("document.querySelector('.sliders button').click()")
        await tab.until("document.querySelector('.answer').innerText.includes('of 1 engine,')", 30.0)
        assert await tab.run("document.querySelectorAll('.answer .better, .answer .worse').length") == 0

    looked_at(act)


def test_everything_is_reached_by_keyboard() -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(page.url)
        await tab.until("document.querySelectorAll('.fleet tbody tr').length === 4")
        for _ in range(12):
            await tab.press("Tab", 9)
            if await tab.run("document.activeElement.innerText") == "tiny":
                break
        await tab.press("Enter", 13)
        await tab.until("document.querySelectorAll('.chart canvas').length >= 6")
        assert await tab.run("document.activeElement.id") == "main"
        reached = set()
        for _ in range(40):
            await tab.press("Tab", 9)
            reached.add(await tab.run(HERE))
        assert {"TTFT", "TPOT", "E2E", "Queue", "KV blocks in use", "Utilisation"} <= reached
        assert {"Arrival rate", "Engines", "Prefix cache hit ratio"} <= reached
        await tab.run("document.querySelector('.chart').focus()")
        await tab.press("ArrowLeft", 37)
        told = await tab.run("document.querySelector('.chart output').innerText")
        assert "forecast" in told or "happened" in told
        await tab.run("[...document.querySelectorAll('.choice')].at(-1).querySelector('input').focus()")
        await tab.press("ArrowRight", 39)
        assert await tab.run("document.activeElement.value") == "60"

    looked_at(act)


def test_what_is_stale_is_never_shown_as_fresh(shots: Path) -> None:
    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(f"{page.url}#/d/tiny")
        await tab.until("document.querySelectorAll('.chart canvas').length >= 6")
        await still_new(log)
        fresh = (
            "document.getElementById('banner').hidden && !document.querySelector('.grid').classList.contains('stale')"
        )
        await tab.until(fresh)
        page.fleet.link.up, page.fleet.link.detail = False, "no answer"
        await tab.until("document.getElementById('banner').innerText.includes('does not answer')")
        assert await tab.run("getComputedStyle(document.querySelector('.grid')).filter.includes('grayscale')")
        assert await tab.run("document.getElementById('link').dataset.state") == "down"
        assert is_picture(await tab.screenshot(shots / "stale.png"))
        page.fleet.link.up = True
        await still_new(log)
        await tab.until(fresh)
        view = page.fleet.views["tiny"]
        view.made_us = {phase: made_us - 60_000_000 for phase, made_us in view.made_us.items()}
        view.revisions["forecast"] += 1
        view.board.newest_us += 1
        await tab.until("document.getElementById('banner').innerText.includes('the newest forecast is')")
        await tab.open(page.url)
        await tab.until("document.querySelector('.fleet tbody tr.stale')?.innerText.includes('tiny')")

    looked_at(act)


def test_when_the_pages_server_is_gone_it_says_so_and_comes_back_by_itself() -> None:
    async def act() -> list[str]:
        async with made_log() as log, browsing() as tab:
            await fill(log, story(UNTIL_S))
            async with running_page(log, page_settings(), Address("127.0.0.1", 0), log.name) as page:
                port = urlsplit(page.url).port or 0
                await tab.open(f"{page.url}#/d/tiny")
                await tab.until("document.querySelectorAll('.chart canvas').length >= 6")
                tab.problems.clear()
            await tab.until("document.getElementById('banner').innerText.includes('no word from')")
            assert await tab.run("document.querySelector('.grid').classList.contains('stale')")
            async with running_page(log, page_settings(), Address("127.0.0.1", port), log.name):
                await tab.until("!document.getElementById('banner').innerText.includes('no word from')", 30.0)
                assert min(await tab.run(INKED)) >= 8
            return [
                problem
                for problem in tab.problems
                if "ERR_CONNECTION_REFUSED" not in problem and "ERR_INCOMPLETE" not in problem
            ]

    assert asyncio.run(act()) == []


def test_an_axis_has_few_places_whatever_its_ends_are() -> None:
    asked = """(async () => {
      const { decades } = await import('/static/charts.js');
      let most = 0;
      for (let at = 0; at < 20000; at += 1) {
        const low = 10 ** (Math.random() * 12 - 6);
        const high = low * 10 ** (Math.random() * 8);
        const places = decades(low, high);
        if (!places.every((place, n) => place >= low && place <= high && !(place <= places[n - 1]))) return [low, high];
        most = Math.max(most, places.length);
      }
      return [most, decades(0, 1).length, decades(NaN, 1).length, decades(1, Infinity).length, decades(3, 3).length];
    })()"""

    async def act(tab: Tab, page: RunningPage, log: LocalLog) -> None:
        await tab.open(page.url)
        await tab.until("document.readyState === 'complete'")
        most, *nothing = await tab.run(asked)
        assert 4 <= most <= 10
        assert nothing == [0, 0, 0, 0]

    looked_at(act)


def test_names_from_the_wire_are_text_and_nothing_else() -> None:
    hostile = '<img src=x onerror="window.hit=1">/../?#&\' 名'

    async def act() -> None:
        told = [each for each in story(UNTIL_S) if each.at_s <= 30.0]
        async with made_log() as log, browsing() as tab:
            await fill(log, named(told, hostile))
            async with running_page(log, page_settings(), Address("127.0.0.1", 0), log.name) as page:
                await tab.open(page.url)
                await tab.until("!!document.querySelector('.fleet tbody a')")
                await tab.run("document.querySelector('.fleet tbody a').click()")
                await tab.until("document.querySelectorAll('.chart canvas').length >= 4")
                assert await tab.run("document.querySelector('h1').innerText") == hostile
                assert await tab.run("window.hit") is None
                assert tab.problems == []

    asyncio.run(act())
