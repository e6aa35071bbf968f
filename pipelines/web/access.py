"""Who may see the page: this machine, or whoever brings the token. Serves nothing.

Laws: an address beyond this machine needs a token of at least 16 characters; without a token only requests that name
this machine are answered, so that no other site's script can read the page through a name that points here; the token
is compared in constant time, and stands in no log and no page.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web

from pipelines.errors import ConfigError
from pipelines.otlp_port import host_and_port

TOKEN_VARIABLE = "TWINCAST_WEB_TOKEN"
LEAST_TOKEN = 16
COOKIE = "twincast_token"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to serve, and the token that is asked for (empty: none)."""

    host: str
    port: int
    token: str = field(default="", repr=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self.host)

    def url(self, port: int) -> str:
        """What to open, without the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}/"


def address_of(text: str, token: str) -> Address:
    """The address in PORT or HOST:PORT. Raises ConfigError for one beyond this machine without a token.

    >>> address_of("8080", "").loopback, address_of("0.0.0.0:8080", "a" * 16).loopback
    (True, False)
    """
    try:
        host, port = host_and_port(text)
    except ConfigError:
        raise ConfigError(f"web must be PORT or HOST:PORT such as 8080, got {text!r}; correct it") from None
    if token and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(f"{TOKEN_VARIABLE} must be at least {LEAST_TOKEN} letters, digits or signs; choose another")
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"a page at {host} can be reached from other machines; set {TOKEN_VARIABLE} to a secret of at least "
            f"{LEAST_TOKEN} characters, or leave the host out"
        )
    return Address(host, port, token)


def token_in(environ: Mapping[str, str]) -> str:
    """The token that the environment names, empty for none."""
    return environ.get(TOKEN_VARIABLE, "")


def refusal(address: Address, request: web.Request) -> web.Response | None:
    """Why this request is not answered; None where it is."""
    if not address.token:
        if _names_this_machine(request.host) and _same_origin(request):
            return None
        return web.Response(status=403, text="this page is for this machine only\n")
    if not _same_origin(request):
        return web.Response(status=403, text="not from another site\n")
    if _matches(address.token, _token_of(request)):
        return None
    return web.Response(
        status=401,
        text="open /?token=... once in a browser, or send Authorization: Bearer ...\n",
        headers={"WWW-Authenticate": "Bearer"},
    )


def sign_in(address: Address, request: web.Request) -> web.Response | None:
    """A browser that brings the token in the address gets it as a cookie, and an address without it."""
    given = request.query.get("token")
    if not address.token or given is None or request.path != "/" or not _matches(address.token, given):
        return None
    answer = web.Response(status=303, headers={"Location": "/"})
    answer.set_cookie(COOKIE, given, httponly=True, samesite="Strict", secure=request.secure, path="/")
    return answer


def _token_of(request: web.Request) -> str:
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")


def _matches(token: str, given: str) -> bool:
    return hmac.compare_digest(token.encode(), given.encode(errors="replace"))


def _same_origin(request: web.Request) -> bool:
    """A browser names the page that asks in requests that change or read across sites."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


def _names_this_machine(host: str) -> bool:
    return _is_loopback(urlsplit(f"//{host}").hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
