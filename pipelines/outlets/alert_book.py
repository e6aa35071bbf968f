"""Which alerts are open and what is still to be told of them. Sends nothing and knows no clock.

Laws: a transition is to be told until it was told; an alert that fires is told again at least every `RESEND_US` while
it fires; what was told and is over is forgotten, so that the book is no larger than what is open or untold.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.alerts import Alert

RESEND_US = 60_000_000
"""An Alertmanager forgets an alert that nobody repeats."""


@dataclass(slots=True)
class _Entry:
    """One alert as it stands. `fired_us` is event time, `told_us` processing time."""

    alert: Alert
    fired_us: int | None
    untold: bool
    told_us: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """An alert to tell of: firing since `fired_us`, or over."""

    alert: Alert
    fired_us: int

    @property
    def over(self) -> bool:
        """Whether it has resolved."""
        return self.alert.state == "resolved"


class AlertBook:
    """Alerts by id. Alerts that are only suspected are nobody's page, and are not told."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, alert: Alert, *, told: bool = False) -> None:
        """Fold a transition; `told` marks one that was told before a restart. A repetition changes nothing."""
        known = self._entries.get(alert.alert_id)
        if known is not None and known.alert == alert:
            return
        fired_us = known.fired_us if known is not None else None
        if alert.state == "firing" and fired_us is None:
            fired_us = alert.at_us
        if alert.state == "resolved" and (fired_us is None or told):
            self._entries.pop(alert.alert_id, None)  # nobody was told that it fired, or everybody that it is over
            return
        news = alert.state != "suspected" and not told
        self._entries[alert.alert_id] = _Entry(alert, fired_us, news, 0)

    def due(self, now_us: int) -> list[Standing]:
        """What is to be told at `now_us` (processing time), oldest first."""
        return [
            Standing(entry.alert, entry.fired_us)
            for entry in self._entries.values()
            if entry.fired_us is not None
            and (entry.untold or (entry.alert.state == "firing" and now_us - entry.told_us >= RESEND_US))
        ]

    @property
    def untold(self) -> int:
        """How many alerts have a transition that was not told."""
        return sum(entry.untold for entry in self._entries.values())

    def told(self, standings: Iterable[Standing], now_us: int) -> None:
        """Everybody has been told of these, as they stood."""
        for standing in standings:
            entry = self._entries.get(standing.alert.alert_id)
            if entry is None or entry.alert != standing.alert:
                continue  # it has moved on meanwhile, and that is to be told too
            if standing.over:
                del self._entries[standing.alert.alert_id]
            else:
                entry.untold, entry.told_us = False, now_us
