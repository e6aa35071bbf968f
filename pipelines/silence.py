"""When to write time as a record, for services that fell silent. Writes nothing and reads no clock.

A core knows time from its records alone; when none come of one source, its windows do not close and its forecasts stop.
The shell then says what time it is, as a record like any other, so that a replay hears it too. Only for services that
live now: the events of a recording lie in the past, and a tick of today would make all of them late.

Law: a tick never names a time at or before the watermark of its deployment, nor one within `MARGIN_US` of now.
"""

from dataclasses import dataclass, field

US_PER_S = 1_000_000
LIVE_LAG_US = 60 * US_PER_S
"""A service whose events reached us so soon after they happened lives now."""
MARGIN_US = 5 * US_PER_S
"""Events of the last moments may still be on their way to the log."""


def lives_now(at_us: int, now_us: int) -> bool:
    """Whether an event that reaches us now is of a service that lives now.

    >>> lives_now(100 * US_PER_S, 130 * US_PER_S), lives_now(100 * US_PER_S, 200 * US_PER_S)
    (True, False)
    """
    return abs(now_us - at_us) < LIVE_LAG_US


@dataclass(slots=True)
class _News:
    heard_us: int
    live: bool
    watermark_us: int
    since_us: int


@dataclass(slots=True)
class Silence:
    """What was heard of the deployments of one partition."""

    _news: dict[str, _News] = field(default_factory=dict)

    def observe(self, deployment: str, heard_us: int, watermark_us: int, now_us: int) -> None:
        """The newest event time heard of and the watermark, as of now."""
        news = self._news.get(deployment)
        if news is None:
            news = self._news[deployment] = _News(0, False, watermark_us, now_us)
        if heard_us > news.heard_us:
            news.heard_us, news.live = heard_us, lives_now(heard_us, now_us)
        if watermark_us > news.watermark_us:
            news.watermark_us, news.since_us = watermark_us, now_us

    def due_us(self, deployment: str, period_us: int, now_us: int, lateness_us: int = 0) -> int | None:
        """The time to tell a deployment whose watermark has stood for a period, if there is any to tell.

        `lateness_us` is how much later than others its records may come.
        """
        news = self._news.get(deployment)
        if news is None or not news.live or now_us - news.since_us < period_us:
            return None
        at_us = now_us - max(MARGIN_US, lateness_us)
        return at_us if at_us > news.watermark_us else None

    def forget(self, deployments: set[str]) -> None:
        """Keep only these."""
        self._news = {name: news for name, news in self._news.items() if name in deployments}
