"""Settings of the outlets, checked where they are built. Reads no environment."""

import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipelines.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class OutletSettings:
    """Empty or None turns an outlet off.

    `metrics` is PORT or HOST:PORT where Prometheus scrapes, `alertmanager` the base URL of an Alertmanager,
    `alerts_file` a file that gets a line of JSON per transition of an alert. `replayed_speed` is for recordings of
    another day that are played at so many times their pace: forecasts then age from their making.
    """

    metrics: str = ""
    alertmanager: str = ""
    alerts_file: Path | None = None
    replayed_speed: float | None = None

    def __post_init__(self) -> None:
        if self.metrics:
            metrics_address(self.metrics)
        if self.alertmanager:
            parts = urlsplit(self.alertmanager)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ConfigError(
                    f"alertmanager must be a URL such as http://127.0.0.1:9093, got {safe_url(self.alertmanager)!r}; "
                    "correct it"
                )
        speed = self.replayed_speed
        if speed is not None and not (math.isfinite(speed) and speed > 0):
            raise ConfigError(f"replayed must be a finite number > 0, times event time, got {speed}; correct it")


def metrics_address(text: str) -> tuple[str, int]:
    """Host and port in `PORT` or `HOST:PORT`; loopback unless a host is named. Raises ConfigError.

    >>> metrics_address("9464"), metrics_address("0.0.0.0:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535 or (":" in host and not host.startswith("[")):
        raise ConfigError(f"metrics must be PORT or HOST:PORT such as 9464 or 0.0.0.0:9464, got {text!r}; correct it")
    return host.strip("[]") or "127.0.0.1", int(port)


def safe_url(url: str) -> str:
    """A URL without name and password, for texts that people read.

    >>> safe_url("http://me:secret@alerts:9093/x")
    'http://alerts:9093/x'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
