"""Alerts to an Alertmanager, by its API v2. Keeps nothing and tries once: who calls it tries again.

Law: an alert and its end carry the same labels, so that Alertmanager knows one by the other.
References: POST /api/v2/alerts, github.com/prometheus/alertmanager, api/v2/openapi.yaml.
"""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

import aiohttp

from pipelines.outlets.alert_book import RESEND_US, Standing
from pipelines.outlets.outlet_settings import safe_url

log = logging.getLogger("twincast.alertmanager")

TIMEOUT_S = 5.0
ENDS_AFTER_US = 4 * RESEND_US
"""A firing alert that is repeated no more, since this program is gone, ends by itself."""
NAMES = {
    "slo_risk": "TwincastSloRisk",
    "cost_drift": "TwincastCostDrift",
    "traffic_drift": "TwincastTrafficDrift",
    "forecast_drift": "TwincastForecastDrift",
}
PAGES = ("slo_risk",)
"""What wakes somebody; the others are for working hours."""


class SinkDownError(Exception):
    """The alerts were not taken, and may be later."""


def payload(standing: Standing, now_us: int) -> dict[str, Any]:
    """One alert as Alertmanager takes it. `now_us` is processing time."""
    alert = standing.alert
    labels = {
        "alertname": NAMES[alert.kind],
        "deployment": alert.deployment,
        "alert_id": alert.alert_id,
        "severity": "page" if alert.kind in PAGES else "ticket",
    }
    if alert.engine:
        labels["engine"] = alert.engine
    notes = {"summary": alert.cause, "description": alert.evidence, "since": _time(alert.onset_us)}
    if alert.lead_s is not None:
        notes["lead"] = f"{alert.lead_s:.0f} s"
    if alert.effect_ratio is not None:
        notes["effect"] = f"x{alert.effect_ratio:.2f}"
    ends_us = max(alert.at_us, standing.fired_us) if standing.over else now_us + ENDS_AFTER_US
    return {
        "labels": labels,
        "annotations": {name: text for name, text in notes.items() if text},
        "startsAt": _time(standing.fired_us),
        "endsAt": _time(ends_us),
    }


class Alertmanager:
    """A client of one Alertmanager; use it with `async with`. `url` is its base, such as http://127.0.0.1:9093."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._session: aiohttp.ClientSession | None = None
        self.refused = 0
        """Alerts that it called malformed."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def tell(self, standings: Sequence[Standing], now_us: int) -> None:
        """Return when it has taken them. Raises SinkDownError when it has not, for whatever reason may pass.

        One that it calls malformed would be so for ever: it is logged whole and counted, and holds up no other.
        """
        status = await self._post([payload(standing, now_us) for standing in standings])
        if status != 400:
            return
        for standing in standings:
            body = payload(standing, now_us)
            if len(standings) == 1 or await self._post([body]) == 400:
                self.refused += 1
                log.error("%s refuses this alert: %s", safe_url(self._url), json.dumps(body))

    async def _post(self, body: list[dict[str, Any]]) -> int:
        """The status, 200 or 400. Raises SinkDownError for every other."""
        if self._session is None:
            raise RuntimeError("an Alertmanager client is used within `async with`")
        try:
            async with self._session.post(self._url, json=body) as answer:
                if answer.status in (200, 400):
                    return answer.status
                raise SinkDownError(f"{safe_url(self._url)} answers {answer.status}; correct the URL or wait for it")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = type(error).__name__  # its text may hold the URL, and that a password
            raise SinkDownError(f"{safe_url(self._url)} does not answer ({reason}); start it") from None


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
