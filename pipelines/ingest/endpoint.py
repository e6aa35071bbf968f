"""A metrics endpoint and whose it is, as people write it. Fetches nothing.

Law: what is written names a deployment and an address of HTTP, or is refused.
"""

import re
from dataclasses import dataclass

from pipelines.errors import ConfigError

_FORM = re.compile(r"(?P<deployment>[^=/\s]+)(/(?P<engine>[^=/\s]+))?=(?P<url>https?://\S+)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A metrics page of one server, and the names its engine goes by."""

    url: str
    deployment: str
    engine: str = "0"

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"metrics endpoint {self.url!r} must start with http:// or https://")


def endpoint_of(text: str) -> Endpoint:
    """The endpoint in DEPLOYMENT[/ENGINE]=URL. Raises ConfigError.

    >>> endpoint_of("chat/1=http://10.0.0.7:8000/metrics").engine
    '1'
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"scrape must be DEPLOYMENT[/ENGINE]=URL such as chat=http://127.0.0.1:8000/metrics, got {text!r}; "
            "correct it"
        )
    return Endpoint(found["url"], found["deployment"], found["engine"] or "0")
