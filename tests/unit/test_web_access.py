"""Who may see the page: this machine, or whoever brings the token."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from made_page import made_log, page_settings

from pipelines.cli import main
from pipelines.errors import ConfigError
from pipelines.web.access import HEADERS, Address, address_of
from pipelines.web.fleet import Fleet
from pipelines.web.server import Page, serving

TOKEN = "correct-horse-battery"


@pytest.mark.parametrize("text", ["8080", "127.0.0.1:0", "localhost:8080", "[::1]:8080", "127.5.5.5:1"])
def test_loopback_needs_no_token(text: str) -> None:
    assert address_of(text, "").loopback


@pytest.mark.parametrize("text", ["0.0.0.0:8080", "[::]:8080", "10.0.0.1:80", "twincast.example:80"])
def test_any_other_address_needs_one(text: str) -> None:
    with pytest.raises(ConfigError, match="TWINCAST_WEB_TOKEN"):
        address_of(text, "")
    assert not address_of(text, TOKEN).loopback


@pytest.mark.parametrize("token", ["short", "with space in the token", "tokenñtokenñtokenñ", "a" * 15])
def test_a_token_that_guards_nothing_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        address_of("8080", token)


@pytest.mark.parametrize("text", ["", "web", "70000", "1.2.3.4", "::1:80"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="PORT"):
        address_of(text, TOKEN)


@pytest.mark.parametrize("option", ["--web", "--metrics", "--otlp"])
def test_a_port_that_is_taken_is_told_in_one_line_before_anything_starts(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TWINCAST_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("TWINCAST_BOOTSTRAP", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["up", option, str(taken.getsockname()[1])]) == 2
    error = capsys.readouterr().err
    assert "starting" not in error
    assert "Traceback" not in error
    (line,) = [each for each in error.splitlines() if "cannot be served" in each]
    assert line.endswith("choose another port")


def test_the_token_is_not_in_what_an_address_says_of_itself() -> None:
    assert TOKEN not in repr(address_of("8080", TOKEN))


def asked(address: Address, *requests: tuple[str, Mapping[str, str]]) -> list[aiohttp.ClientResponse]:
    """Answers of a page without data; redirects are not followed, cookies not kept."""

    async def act() -> list[aiohttp.ClientResponse]:
        from pipelines.web.asking import Asker

        page = Page(Fleet(), Asker(), page_settings(), address, made_log().name)
        async with (
            serving(page, address) as port,
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
        ):
            found = []
            for path, headers in requests:
                async with session.get(
                    f"http://127.0.0.1:{port}{path}",
                    headers={"Host": f"127.0.0.1:{port}"} | headers,
                    allow_redirects=False,
                ) as answer:
                    await answer.read()
                    found.append(answer)
            return found

    return asyncio.run(act())


def test_a_name_that_points_here_is_not_this_machine() -> None:
    here = Address("127.0.0.1", 0)
    answers = asked(
        here,
        ("/api/fleet", {}),
        ("/api/fleet", {"Host": "localhost:1"}),
        ("/api/fleet", {"Host": "evil.example"}),
        ("/api/fleet", {"Origin": "http://evil.example"}),
        ("/", {"Host": "evil.example"}),
    )
    assert [answer.status for answer in answers] == [200, 200, 403, 403, 403]


def test_with_a_token_everything_asks_for_it() -> None:
    guarded = Address("127.0.0.1", 0, TOKEN)
    paths = ("/", "/static/app.js", "/api/fleet", "/api/events")
    assert [answer.status for answer in asked(guarded, *((path, {}) for path in paths))] == [401] * 4
    wrong = {"Authorization": f"Bearer {TOKEN}x"}
    right = {"Authorization": f"Bearer {TOKEN}"}
    other_site = right | {"Origin": "http://evil.example"}
    answers = asked(guarded, ("/api/fleet", wrong), ("/api/fleet", right), ("/api/fleet", other_site))
    assert [answer.status for answer in answers] == [401, 200, 403]


def test_a_browser_gets_the_token_as_a_cookie_that_no_script_and_no_other_site_sees() -> None:
    guarded = Address("127.0.0.1", 0, TOKEN)
    first, wrong = asked(guarded, (f"/?token={TOKEN}", {}), ("/?token=wrong", {}))
    assert (first.status, first.headers["Location"]) == (303, "/")
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert wrong.status == 401
    again = asked(guarded, ("/api/fleet", {"Cookie": cookie.split(";")[0]}))[0]
    assert again.status == 200


def test_no_path_leads_out_of_the_page() -> None:
    paths = (
        "/static/../access.py",
        "/static/%2e%2e/access.py",
        "/static//etc/passwd",
        "/static/vendor",
        "/static/nothing.js",
        "/etc/passwd",
    )
    assert {answer.status for answer in asked(Address("127.0.0.1", 0), *((path, {}) for path in paths))} == {404}


def test_every_answer_lets_the_browser_load_from_here_alone() -> None:
    answers = asked(Address("127.0.0.1", 0), ("/", {}), ("/static/app.js", {}), ("/api/fleet", {}), ("/static/no", {}))
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
