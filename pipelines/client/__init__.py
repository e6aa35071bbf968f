"""For schedulers: the newest forecast of every deployment, with its age. Simulates and decides nothing.

    async with subscribe("127.0.0.1:9092") as forecasts:
        while True:
            reading = await forecasts.next(timeout_s=10.0)
            ...

Law: what is past its time is never given out as fresh.
"""

from pipelines.client.ages import Clock, LiveClock, ReplayClock
from pipelines.client.reading import Reading, StaleForecastError
from pipelines.client.response_surface import ResponseSurface
from pipelines.client.subscriber import Subscriber, subscribe

__all__ = [
    "Clock",
    "LiveClock",
    "Reading",
    "ReplayClock",
    "ResponseSurface",
    "StaleForecastError",
    "Subscriber",
    "subscribe",
]
