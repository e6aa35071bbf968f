"""The client for schedulers: newest only, never stale as fresh, and it goes on after an outage."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from made_forecasts import START_US, US_PER_S, forecast, responses
from made_records import records_of

from pipelines.client import LiveClock, Reading, ReplayClock, ResponseSurface, StaleForecastError, Subscriber
from pipelines.client.open_actions import OpenActions
from pipelines.local.embedded import memory_log
from pipelines.log import Log, LogUnavailableError, TopicSpec, UnknownTopicError
from pipelines.outputs import MADE_HEADER
from pipelines.partitions import partition_of
from schemas.actions import Action, Withdrawal
from schemas.changes import Change
from schemas.codec import decode, encode
from schemas.forecasts import Forecast
from schemas.topics import ACTIONS, CHANGES, FORECASTS

PARTITIONS = 2


class Hands:
    """A clock that is set by hand."""

    def __init__(self, at_us: int = START_US) -> None:
        self.at_us = at_us

    def __call__(self) -> int:
        return self.at_us


async def write(log: Log, *found: Forecast, made_us: int = 0) -> None:
    async with log.producer() as producer:
        for each in found:
            await producer.send(
                FORECASTS.name,
                key=each.deployment.encode(),
                value=encode(each),
                headers=((MADE_HEADER, str(made_us).encode()),),
                partition=partition_of(each.deployment, PARTITIONS),
            )


def run(test: Callable[[Log, Subscriber, Hands], Awaitable[None]], *before: Forecast) -> None:
    """`before` stands in the log when the subscriber starts."""

    async def main() -> None:
        hands = Hands()
        async with memory_log() as log:
            await log.create_topics(
                [TopicSpec(name=t, partitions=PARTITIONS) for t in (FORECASTS.name, ACTIONS.name, CHANGES.name)]
            )
            await write(log, *before)
            async with Subscriber(log, clock=LiveClock(now_us=hands)) as subscriber:
                await test(log, subscriber, hands)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_forecast_that_stood_in_the_log_is_known_at_once() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        reading = await subscriber.next(timeout_s=2.0)
        assert reading is not None
        assert reading.forecast == forecast(1)
        assert subscriber.newest("d") == reading

    run(test, forecast(0), forecast(1))


def test_a_slow_subscriber_gets_the_newest_only() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        for tick in range(50):
            await write(log, forecast(tick), forecast(tick, deployment="e"))
        hands.at_us = START_US + 49 * 5 * US_PER_S
        await until(lambda: all(subscriber.newest(d) is not None for d in "de"))
        found = [await subscriber.next(timeout_s=1.0) for _ in range(2)]
        assert {(r.forecast.deployment, r.forecast.tick) for r in found if r} == {("d", 49), ("e", 49)}
        assert subscriber.skipped == subscriber.received - 2 > 0
        assert await subscriber.next(timeout_s=0.01) is None

    run(test)


def test_a_stale_forecast_is_never_shown_as_fresh() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        await write(log, forecast(0))
        await until(lambda: subscriber.received == 1)
        hands.at_us = START_US + 10 * US_PER_S - 1
        reading = subscriber.newest("d")
        assert reading is not None
        hands.at_us += 1  # at its expiry, to the microsecond
        assert subscriber.newest("d") is None
        assert await subscriber.next(timeout_s=0.01) is None
        assert not reading.fresh
        for ask in (reading.require_fresh, reading.breach_probability, lambda: reading.horizon(120.0)):
            with pytest.raises(StaleForecastError, match=r"10.0 s old and was valid for 10 s; decide without it"):
                ask()
        with pytest.raises(StaleForecastError):
            subscriber.require("d")
        assert subscriber.deployments == ("d",)  # it is heard of, and that is all

    run(test)


def test_a_horizon_that_is_past_is_refused_though_the_forecast_is_not() -> None:
    hands = Hands(START_US + 31 * US_PER_S)
    reading = Reading(forecast(0, valid_s=100.0), clock=LiveClock(now_us=hands))
    with pytest.raises(StaleForecastError, match=r"its window of 30 s is past"):
        reading.horizon(30.0)
    assert reading.horizon(60.0).horizon_s == 60.0
    assert reading.breach_probability(within_s=60.0) == 0.2  # the horizon that is past does not count
    assert reading.breach_probability(within_s=30.0) is None
    with pytest.raises(LookupError, match="no horizon of 45 s"):
        reading.horizon(45.0)


def test_a_forecast_from_the_future_is_a_wrong_clock_and_not_fresh() -> None:
    reading = Reading(forecast(0), clock=LiveClock(now_us=Hands(START_US - 6 * US_PER_S)))
    assert "6.0 s ahead" in reading.why_stale()
    assert Reading(forecast(0), clock=LiveClock(now_us=Hands(START_US - 4 * US_PER_S))).fresh


def test_a_replayed_forecast_ages_from_its_making_at_the_replay_s_speed() -> None:
    hands = Hands(time.time_ns() // 1000)
    reading = Reading(forecast(0), made_us=hands.at_us, clock=ReplayClock(speed=4.0, now_us=hands))
    hands.at_us += 2 * US_PER_S
    assert reading.age_s == 8.0
    assert reading.fresh
    hands.at_us += US_PER_S // 2
    assert not reading.fresh
    with pytest.raises(ValueError, match="speed must be a finite number > 0, got nan"):
        ReplayClock(speed=float("nan"))


def test_older_and_repeated_forecasts_replace_nothing() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        await write(
            log, forecast(3, phase="coarse"), forecast(3), forecast(3), forecast(3, phase="coarse"), forecast(2)
        )
        await until(lambda: subscriber.received + subscriber.refused == 5)
        hands.at_us = START_US + 15 * US_PER_S
        reading = subscriber.newest("d")
        assert reading is not None
        assert (reading.forecast.tick, reading.forecast.phase) == (3, "fine")
        assert (subscriber.received, subscriber.refused) == (2, 3)

    run(test)


def test_event_time_that_runs_back_counts_once_what_was_known_is_stale() -> None:
    """As when a recording is played a second time."""

    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        await write(log, forecast(100), made_us=1)
        await until(lambda: subscriber.received == 1)
        hands.at_us = START_US + 500 * US_PER_S
        await write(log, forecast(0), made_us=2)
        await until(lambda: subscriber.refused == 1)
        hands.at_us = START_US + 600 * US_PER_S
        await write(log, forecast(1), made_us=3)
        await until(lambda: subscriber.received == 2)

    run(test)


def test_what_is_no_forecast_is_counted_and_stops_nothing() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        async with log.producer() as producer:
            await producer.send(FORECASTS.name, key=b"d", value=b"{", partition=0)
            await producer.send(FORECASTS.name, key=b"d", value=None, partition=0)
            headers = ((MADE_HEADER, b"soon"),)
            await producer.send(FORECASTS.name, key=b"d", value=encode(forecast(0)), headers=headers, partition=0)
        await write(log, forecast(1))
        hands.at_us = START_US + 5 * US_PER_S
        await until(lambda: subscriber.received == 1)
        assert subscriber.refused == 3
        assert subscriber.newest("d") is not None

    run(test)


def test_reading_goes_on_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        await write(log, forecast(0))
        await until(lambda: subscriber.received == 1)
        reader_of, away = log.reader, [True]

        def reader(positions: object) -> object:
            if away[0]:
                raise LogUnavailableError("no log answers; start it")
            return reader_of(positions)  # type: ignore[arg-type]

        monkeypatch.setattr(log, "reader", reader)
        monkeypatch.setattr("pipelines.client.subscriber.FIRST_RETRY_S", 0.01)
        subscriber._task.cancel()  # type: ignore[union-attr]
        subscriber._task = asyncio.create_task(subscriber._read())
        await until(lambda: bool(subscriber.trouble))
        assert subscriber.trouble == "no log answers; start it"
        await write(log, forecast(1))
        away[0] = False
        await until(lambda: subscriber.received == 2)
        assert subscriber.trouble == ""

    run(test)


def test_what_ended_the_reading_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        def broken(record: object) -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(subscriber, "_take", broken)
        await write(log, forecast(0))
        with pytest.raises(RuntimeError, match="a fault of ours"):
            await subscriber.next(timeout_s=5.0)

    run(test)


def test_a_log_without_the_topic_is_named() -> None:
    async def main() -> None:
        async with memory_log() as log, Subscriber(log, clock=LiveClock()):
            raise AssertionError("it must not start")

    with pytest.raises(UnknownTopicError, match=r"twincast.forecasts.v1; create it"):
        asyncio.run(main())


def test_a_change_reaches_the_deployment_s_partition() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        change = Change(deployment="d", at_us=START_US, kind="scale", engines_before=1, engines_after=2)
        await subscriber.report(change)
        from pipelines.log import TopicPartition

        place = TopicPartition(CHANGES.name, partition_of("d", PARTITIONS))
        async with log.reader({place: 0}) as reader:
            [record] = await reader.get()
        assert decode(CHANGES.name, record.value or b"").record == change

    run(test)


def test_the_surface_of_the_last_fine_forecast_serves_the_coarse_one_and_no_longer_than_it_is_fresh() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        for tick in range(4):
            await write(log, forecast(tick, responses=responses(0.9, 0.2, 0.05)))
        await write(log, forecast(4, phase="coarse", valid_s=60.0))
        await until(lambda: subscriber.received == 5)
        hands.at_us = START_US + 20 * US_PER_S
        reading = subscriber.newest("d")
        assert reading is not None
        assert reading.surface is not None
        assert reading.surface.engines_for(breach_probability_at_most=0.1) == 3
        assert reading.surface_of is not None
        assert reading.surface_of.surface_of is None  # no chain of all that ever was
        hands.at_us = START_US + 26 * US_PER_S
        assert reading.fresh
        assert reading.surface is None

    run(test)


def proposal(after_s: float = 0.0, *, name: str = "a1", state: str = "proposed", valid_s: float = 60.0) -> Action:
    [full, *_] = [record for record in records_of(Action) if isinstance(record, Action)]
    at_us = START_US + round(after_s * US_PER_S)
    return msgspec.structs.replace(
        full, deployment="d", action_id=name, state=state, at_us=at_us, opened_us=START_US,
        expires_us=at_us + round(valid_s * US_PER_S),
    )  # fmt: skip


def test_a_proposal_stands_until_it_is_taken_back_or_expires() -> None:
    hands = Hands()
    book = OpenActions(LiveClock(now_us=hands))
    book.take(proposal(name="a2"), 0)
    book.take(proposal(), 0)
    book.take(proposal(10.0, state="confirmed"), 0)
    book.take(proposal(5.0, state="resized"), 0)  # older than what is known
    assert [(a.action_id, a.state) for a in book.standing("d")] == [("a2", "proposed"), ("a1", "confirmed")]
    assert book.standing("e") == ()
    hands.at_us = START_US + 60 * US_PER_S
    assert [a.action_id for a in book.standing("d")] == ["a1"]
    back = Withdrawal(deployment="d", at_us=START_US + 10 * US_PER_S, action_id="a1", phase="coarse", reason="over")
    book.take(back, 0)
    book.take(proposal(10.0, state="confirmed"), 0)  # a redelivery after the withdrawal
    assert book.standing("d") == ()


def test_proposals_are_read_beside_forecasts() -> None:
    async def test(log: Log, subscriber: Subscriber, hands: Hands) -> None:
        async with log.producer() as producer:
            await producer.send(
                ACTIONS.name, key=b"d", value=encode(proposal()), partition=partition_of("d", PARTITIONS)
            )
        await until(lambda: len(subscriber.actions("d")) == 1)
        assert subscriber.newest("d") is None

    run(test)


@pytest.mark.parametrize(
    ("breaches", "limit", "answer"),
    [
        ((0.9, 0.2, 0.05, 0.0), 0.1, 3),
        ((0.9, 0.05, 0.2, 0.0), 0.1, 4),  # what holds at 2 must hold at 3 too
        ((0.9, 0.8, 0.7, 0.6), 0.1, None),
        ((0.0, 0.0), 0.1, 1),
        ((), 0.1, None),
    ],
)
def test_engines_for_holds_at_every_larger_count(breaches: tuple[float, ...], limit: float, answer: int | None) -> None:
    surface = ResponseSurface.of(reversed(responses(*breaches)))
    assert surface.engines_for(breach_probability_at_most=limit) == answer


def test_goodput_is_judged_by_its_lower_end() -> None:
    surface = ResponseSurface.of(responses(0.0, 0.0, 0.0))  # 5, 10, 15 requests/s, lower ends 4, 8, 12
    assert surface.engines_for(goodput_requests_per_s=8.0) == 2
    assert surface.engines_for(goodput_requests_per_s=9.0) == 3
    assert surface.engines_for(goodput_requests_per_s=13.0) is None
    point = surface.at(2)
    assert point is not None
    assert point.engines == 2
    assert surface.at(9) is None
    with pytest.raises(ValueError, match="needs breach_probability_at_most"):
        surface.engines_for()
    with pytest.raises(ValueError, match=r"must be 0 to 1, got 1\.5"):
        surface.engines_for(breach_probability_at_most=1.5)
    with pytest.raises(ValueError, match="must be a finite number >= 0, got nan"):
        surface.engines_for(goodput_requests_per_s=float("nan"))
