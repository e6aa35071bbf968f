"""Laws of the core where requests are told only at their end (levels S0 and S1); `test_core_laws` holds the others."""

import dataclasses
from typing import Any

import msgspec
import pytest
from synthetic import START_US, service
from test_core_laws import SETTINGS, digest_simulation, drive, forecasts_by_as_of, messages_of, values

from schemas.changes import Tick
from schemas.codec import encode
from schemas.engines import EngineConfig
from schemas.requests import PrefillChunk, RequestArrived, RequestFinished
from schemas.steps import EngineStats, StepBatch
from schemas.topics import FORECASTS, SCORES
from twin.core import Core
from twin.effects import Emit, Simulate
from twin.intake import Message
from twin.job import SimulationJob
from twin.simulate import run

pytestmark = pytest.mark.slow
ENDS_SETTINGS = dataclasses.replace(SETTINGS, steps_expected=False)
SECONDS = 90.0
ALL = service(SECONDS)
CONFIGS: list[Any] = [record for record in ALL if isinstance(record, EngineConfig)]
ENDS: list[Any] = [record for record in ALL if isinstance(record, RequestFinished)]
LAST = Tick(deployment="d", at_us=START_US + int(SECONDS * 1e6) + 20_000_000)
STREAM = messages_of([*CONFIGS, *ENDS, LAST])


def counted(at_s: float) -> EngineStats:
    """What the engine's metrics tell at a moment."""
    at_us = START_US + round(at_s * 1e6)
    arrived = [r for r in ALL if isinstance(r, RequestArrived) and r.at_us <= at_us]
    ended = {r.request_id for r in ENDS if r.at_us <= at_us}
    inside = sum(r.request_id not in ended for r in arrived)
    return EngineStats(deployment="d", engine="0", at_us=at_us, running=inside, waiting=0, kv_used_ratio=0.1)


STATS: list[Any] = [counted(at_s) for at_s in range(5, int(SECONDS), 5)]


def by_time(records: list[Any]) -> list[Any]:
    return sorted(records, key=lambda r: r.steps[-1].at_us if isinstance(r, StepBatch) else r.at_us)


def jobs_of(messages: list[Message]) -> list[SimulationJob]:
    """Every fine job that the core asks for."""
    core, jobs = Core("d", ENDS_SETTINGS), []
    for message in messages:
        effects = core.on_message(message)
        while asked := [effect.job for effect in effects if isinstance(effect, Simulate)]:
            jobs += [job for job in asked if job.phase == "fine"]
            effects = [more for job in asked for more in core.on_simulated(digest_simulation(job))]
    return jobs


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Core, list[Emit]]:
    return drive(Core("d", ENDS_SETTINGS), STREAM)


def test_ends_alone_make_forecasts_that_are_scored(undisturbed: tuple[Core, list[Emit]]) -> None:
    core, emitted = undisturbed
    forecasts = [effect.record for effect in emitted if effect.topic is FORECASTS]
    assert len(forecasts) >= 2 * (SECONDS // ENDS_SETTINGS.period_s - 2)
    assert {forecast.input_level for forecast in forecasts} == {"S0"}
    assert {forecast.authority for forecast in forecasts} == {"advisory"}
    assert core.state.steps_learned > 2_000
    assert any(effect.topic is SCORES for effect in emitted)


def test_costs_come_out_as_those_of_the_service(undisturbed: tuple[Core, list[Emit]]) -> None:
    """Its steps take 20.1 ms, whatever they hold."""
    room = undisturbed[0].state.rooms["0"]
    cost = room.model.freeze(8)
    assert cost.decode.decodes_ps(4) / 1e9 + cost.decode.decode_context_token_ps * 800 / 1e9 == pytest.approx(
        20.1, rel=0.1
    )


def test_a_crash_anywhere_changes_nothing(undisturbed: tuple[Core, list[Emit]]) -> None:
    def crash(core: Core, number: int) -> Core:
        if number % 41 or core.awaiting:
            return core
        wire = encode(core.snapshot())
        return Core.restore(msgspec.json.decode(wire, type=type(core.snapshot())), ENDS_SETTINGS)

    core, emitted = drive(Core("d", ENDS_SETTINGS), STREAM, after_each=crash)
    assert values(emitted) == values(undisturbed[1])
    assert core.state_hash() == undisturbed[0].state_hash()


def test_what_ends_after_as_of_changes_no_forecast_before(undisturbed: tuple[Core, list[Emit]]) -> None:
    """A request that ends later may have come long before: nothing of it is known until then."""
    cut_us = START_US + 61_000_000
    altered = [
        record
        if record.at_us <= cut_us
        else msgspec.structs.replace(
            record,
            at_us=record.at_us + 1_000_007,
            arrived_us=record.arrived_us - 3_000_000,
            isl_tokens=record.isl_tokens * 3,
            osl_tokens=record.osl_tokens + 5,
        )
        for record in ENDS
    ]
    _, emitted = drive(Core("d", ENDS_SETTINGS), messages_of([*CONFIGS, *altered, LAST]))
    before = {key: value for key, value in forecasts_by_as_of(undisturbed[1]).items() if key[0] <= cut_us}
    got = forecasts_by_as_of(emitted)
    assert len(before) >= 20
    assert {key: got[key] for key in before} == before
    later = [key for key in forecasts_by_as_of(undisturbed[1]) if key[0] > cut_us]
    assert any(got.get(key) != forecasts_by_as_of(undisturbed[1])[key] for key in later)


def test_without_a_configuration_limits_are_assumed_and_said_to_be() -> None:
    _, emitted = drive(Core("d", ENDS_SETTINGS), messages_of([*ENDS, LAST]))
    forecasts = [effect.record for effect in emitted if effect.topic is FORECASTS]
    assert len(forecasts) > 20
    assert all("engine configuration not told: limits assumed" in f.credibility.reasons for f in forecasts)


def test_loads_of_kv_that_fill_the_latency_are_a_reason_for_doubt() -> None:
    """A load as long as the whole request, so that the share does not hang on how long requests take here."""
    loaded = [
        msgspec.structs.replace(
            record,
            chunks=(PrefillChunk(chunk=0, first_token=0, tokens=8, kv_load_us=record.at_us - record.arrived_us),),
        )
        for record in ENDS
    ]
    _, emitted = drive(Core("d", ENDS_SETTINGS), messages_of([*CONFIGS, *loaded, LAST]))
    last = [effect.record for effect in emitted if effect.topic is FORECASTS][-1]
    assert "transfer-heavy (100% of latency)" in last.credibility.reasons


def test_an_engine_that_tells_its_name_late_takes_over_what_was_served_without() -> None:
    nameless = [msgspec.structs.replace(record, engine="") for record in ENDS]
    late = [msgspec.structs.replace(config, at_us=START_US + 60_000_000) for config in CONFIGS]
    core, emitted = drive(Core("d", ENDS_SETTINGS), messages_of(by_time([*nameless, *late, LAST])))
    assert list(core.state.rooms) == ["0"]
    assert core.state.steps_learned > 2_000
    reasons = [effect.record.credibility.reasons for effect in emitted if effect.topic is FORECASTS]
    assumed = ["engine configuration not told: limits assumed" in each for each in reasons]
    assert assumed == sorted(assumed, reverse=True)
    assert assumed[0]
    assert not assumed[-1]


def test_counts_of_the_engine_pin_who_is_in_it() -> None:
    plain, told = (jobs_of(messages_of(by_time([*CONFIGS, *ENDS, *more, LAST]))) for more in ([], STATS))
    assert all(job.engines[0].presence is not None and job.engines[0].presence.counts is None for job in plain)
    later = [job.engines[0].presence for job in told if job.as_of_us > START_US + 20_000_000]
    assert later
    assert all(presence is not None and presence.counts is not None for presence in later)
    for job in told:
        counts = job.engines[0].presence and job.engines[0].presence.counts
        if counts:
            stats = next(s for s in reversed(STATS) if s.at_us <= job.as_of_us)
            assert counts.running <= stats.running


def test_arrivals_without_steps_are_who_is_in_the_engine() -> None:
    arrivals = [record for record in ALL if isinstance(record, RequestArrived)]
    jobs = jobs_of(messages_of(by_time([*CONFIGS, *ENDS, *arrivals, LAST])))
    for job in jobs[3:]:
        presence = job.engines[0].presence
        assert presence is not None
        inside = [a for a in arrivals if a.at_us <= job.as_of_us]
        ended = {e.request_id for e in ENDS if e.at_us <= job.as_of_us}
        assert len(presence.told_age_s) == sum(a.request_id not in ended for a in inside)
        assert presence.expected.sum() == 0.0


def test_steps_that_begin_later_end_all_guessing() -> None:
    begin_us = START_US + 60_000_000
    richer = [
        record
        for record in ALL
        if not isinstance(record, StepBatch | RequestArrived)
        or (record.steps[0].start_us if isinstance(record, StepBatch) else record.at_us) > begin_us
    ]
    jobs = jobs_of(messages_of(by_time([*richer, LAST])))
    guessed = [job.engines[0].presence is not None for job in jobs]
    assert guessed == sorted(guessed, reverse=True)
    assert guessed[0]
    assert not guessed[-1]


def test_two_engines_share_the_unseen_by_what_they_served() -> None:
    moved = [msgspec.structs.replace(record, engine=str(int(n % 4 == 0))) for n, record in enumerate(ENDS)]
    configs = [*CONFIGS, *(msgspec.structs.replace(config, engine="1") for config in CONFIGS)]
    job = jobs_of(messages_of([*configs, *moved, LAST]))[12]
    expected = [float(setup.presence.expected.sum()) for setup in job.engines if setup.presence is not None]
    assert len(expected) == 2
    assert expected[1] / sum(expected) == pytest.approx(0.25, abs=0.1)


def test_who_is_drawn_is_served_beside_who_comes() -> None:
    job = dataclasses.replace(jobs_of(STREAM)[12].at_phase("coarse"), horizons_s=(10.0,), arrivals_beyond_s=5.0)
    empty = dataclasses.replace(job, engines=tuple(dataclasses.replace(e, presence=None) for e in job.engines))
    with_them, without = (run(each).scenario().horizons[0].output_tokens_per_s for each in (job, empty))
    assert with_them.mean() > without.mean()
