"""Laws of the core, on a synthetic service and a simulation that is a digest of its whole job.

Any difference in what a job holds changes every number of the forecast, so equal bytes mean equal knowledge.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Any

import msgspec
import numpy as np
import pytest
from synthetic import START_US, service

from schemas.actions import Action, Scale, Withdrawal
from schemas.changes import Change, Tick
from schemas.codec import Decoded, encode
from schemas.engines import EngineConfig
from schemas.requests import RequestArrived, RequestFinished
from schemas.scores import Replay, Score
from schemas.slos import SloTarget
from schemas.steps import EngineStats, StepBatch
from schemas.topics import ACTIONS, CHANGES, ENGINES, FORECASTS, REQUESTS, SCORES, STEPS, TICKS, Topic
from twin.advise.policy import Policy
from twin.closed_window import replay
from twin.core import Core, SnapshotError
from twin.effects import Effect, Emit, Simulate
from twin.intake import Message
from twin.job import Curves, HorizonResult, ScenarioResult, SimulationJob, SimulationResult, Tried
from twin.settings import CoreSettings
from twin.window_steps import WindowSteps

SETTINGS = CoreSettings(
    period_s=5.0,
    horizons_s=(10.0, 20.0),
    coarse_replications=2,
    fine_replications=3,
    slos=(SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5),),
    policy=Policy(release_after_s=20.0),
)
SECONDS = 130.0


def plain(value: Any) -> str:
    """Everything a value holds, as text; equal values give equal text."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({','.join(plain(getattr(value, f.name)) for f in dataclasses.fields(value))})"
    if isinstance(value, tuple | list):
        return f"[{','.join(plain(item) for item in value)}]"
    if isinstance(value, frozenset):
        return plain(sorted(value))
    return repr(value.snapshot() if isinstance(value, WindowSteps) else value)


def digest_simulation(job: SimulationJob) -> SimulationResult:
    """Numbers drawn from a digest of everything the job holds; a closed window is really replayed."""
    seed = int.from_bytes(blake2b(plain(job.at_phase("coarse")).encode(), digest_size=8).digest(), "big")
    rng = np.random.default_rng(seed)
    n = job.replications

    def one(low: float = 0.0) -> Any:
        return rng.random(n) + low

    def horizon(horizon_s: float) -> HorizonResult:
        latency = np.sort(rng.random((n, 3, 3)) + 0.05, axis=2)
        return HorizonResult(
            horizon_s=horizon_s,
            arrivals=rng.integers(1, 99, n),
            latency_s=latency,
            throughput_requests_per_s=one(),
            output_tokens_per_s=one(),
            success_ratio=one(),
            goodput_requests_per_s=one(),
            waiting_peak_requests=one(),
            kv_peak_ratio=one(),
            preemptions=one(),
            busy_ratio=one(),
            breached=rng.random((n, len(job.slos))) > 0.5,
        )

    def tried() -> tuple[Tried, ...]:
        count, calm = len(job.engines), 0.1 if job.tick // 8 % 2 else 1.0
        found = [horizon(60.0) for _ in range(3)]
        found = [dataclasses.replace(each, latency_s=each.latency_s * calm) for each in found]
        scales = [Scale(engines_before=count, engines_after=count + delta) for delta in (0, 1, 2)]
        return tuple(Tried(what, each, found[0]) for what, each in zip(scales, found, strict=True))

    curves = Curves(job.grid_s, *(rng.random((n, 4)) for _ in range(5)))
    scenarios = tuple(
        ScenarioResult(
            scenario=scenario.name,
            horizons=tuple(horizon(h) for h in job.horizons_s),
            curves=curves,
            requests_ratio=np.ones((n, len(job.engines))),
            engine_busy_ratio=rng.random((n, len(job.engines))),
        )
        for scenario in job.scenarios
    )
    return SimulationResult(
        deployment=job.deployment,
        as_of_us=job.as_of_us,
        tick=job.tick,
        phase=job.phase,
        replications=n,
        engine_names=tuple(engine.name for engine in job.engines),
        slos=job.slos,
        scenarios=scenarios,
        simulated_requests=n,
        engine="kernel",
        tried=() if job.trials is None else tried(),
        window=None if job.window is None else replay(job.window),
    )


def topic_of(record: Any) -> Topic:
    if isinstance(record, EngineConfig):
        return ENGINES
    if isinstance(record, StepBatch | EngineStats):
        return STEPS
    return {Tick: TICKS, Change: CHANGES}.get(type(record), REQUESTS)


def messages_of(records: list[Any]) -> list[Message]:
    offsets: dict[str, int] = {}
    messages = []
    for record in records:
        name = topic_of(record).name
        units = len(record.steps) if isinstance(record, StepBatch) else 1
        messages.append(Message(name, 0, offsets.get(name, 0), Decoded(record, units=units)))
        offsets[name] = offsets.get(name, 0) + 1
    return messages


RECORDS = service(SECONDS)
STREAM = messages_of([*RECORDS, Tick(deployment="d", at_us=START_US + int(SECONDS * 1e6) + 20_000_000)])


def drive(
    core: Core,
    messages: list[Message],
    after_each: Callable[[Core, int], Core] = lambda core, _: core,
    delay: Callable[[], int] = lambda: 0,
) -> tuple[Core, list[Emit]]:
    """Feed messages; a job's result comes back `delay()` messages later."""
    emitted: list[Emit] = []
    jobs: list[tuple[int, SimulationJob]] = []

    def take(effects: list[Effect], now: int) -> None:
        emitted.extend(effect for effect in effects if isinstance(effect, Emit))
        jobs.extend((now + delay(), effect.job) for effect in effects if isinstance(effect, Simulate))

    def finish(now: int) -> None:
        while due := [job for job in jobs if job[0] <= now]:
            jobs.remove(due[0])
            take(core.on_simulated(digest_simulation(due[0][1])), now)

    for number, message in enumerate(messages):
        take(core.on_message(message), number)
        finish(number)
        core = after_each(core, number)
    while jobs:
        finish(max(due for due, _ in jobs))
    return core, emitted


def values(emitted: list[Emit], topic: Topic | None = None) -> dict[str, list[bytes]]:
    out: dict[str, list[bytes]] = {}
    for effect in emitted:
        if topic is None or effect.topic is topic:
            out.setdefault(effect.topic.name, []).append(encode(effect.record))
    return out


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Core, list[Emit]]:
    return drive(Core("d", SETTINGS), STREAM)


def forecasts_by_as_of(emitted: list[Emit]) -> dict[tuple[int, str], dict[str, Any]]:
    """Forecasts without their lineage's offsets."""
    found = {}
    for effect in emitted:
        if effect.topic is FORECASTS:
            record = msgspec.to_builtins(effect.record)
            record["lineage"].pop("offsets", None)
            found[(record["as_of_us"], record["phase"])] = record
    return found


def test_it_forecasts_coarse_then_fine_and_scores_closed_windows(undisturbed: tuple[Core, list[Emit]]) -> None:
    _, emitted = undisturbed
    phases = [effect.record.phase for effect in emitted if effect.topic is FORECASTS]
    assert phases == ["coarse", "fine"] * (len(phases) // 2)
    assert len(phases) >= 2 * (SECONDS // SETTINGS.period_s - 1)
    scores = [effect.record for effect in emitted if isinstance(effect.record, Score)]
    assert {score.horizon_s for score in scores} == {10.0, 20.0}
    assert any(cell.persistence_loss_s is not None for score in scores for cell in score.cells)


def test_closed_windows_are_replayed_one_after_the_other(undisturbed: tuple[Core, list[Emit]]) -> None:
    records = [effect.record for effect in undisturbed[1]]
    told = [record for record in records if isinstance(record, Replay)]
    assert len(told) >= 2
    assert all(later.as_of_us - one.as_of_us == 20_000_000 for one, later in itertools.pairwise(told))
    fine = {as_of_us for as_of_us, phase in forecasts_by_as_of(undisturbed[1]) if phase == "fine"}
    scores = {(r.as_of_us, r.horizon_s): r for r in records if isinstance(r, Score) and r.phase == "fine"}
    for replayed in told:
        assert replayed.as_of_us in fine
        assert replayed.cause is not None
        scored = scores[replayed.as_of_us, replayed.window_s]
        assert replayed.members == scored.members
        seen = {(cell.metric, cell.quantile): cell.observed_s for cell in scored.cells}
        assert {(cell.metric, cell.quantile): cell.observed_s for cell in replayed.cells} == pytest.approx(seen)


def test_actions_are_proposed_and_withdrawn_in_pace_with_forecasts(undisturbed: tuple[Core, list[Emit]]) -> None:
    told = [effect.record for effect in undisturbed[1] if effect.topic is ACTIONS]
    assert {type(record) for record in told} == {Action, Withdrawal}
    made = set(forecasts_by_as_of(undisturbed[1]))
    assert {(record.at_us, record.phase) for record in told} <= made
    assert all(record.state == "proposed" for record in told if isinstance(record, Action) and record.phase == "coarse")


def test_without_targets_or_without_a_policy_nothing_is_proposed() -> None:
    for settings in (dataclasses.replace(SETTINGS, slos=()), dataclasses.replace(SETTINGS, policy=None)):
        _, emitted = drive(Core("d", settings), STREAM[: len(STREAM) // 3])
        assert any(effect.topic is FORECASTS for effect in emitted)
        assert not any(effect.topic is ACTIONS for effect in emitted)


def test_staggered_ticks_come_a_period_apart_where_the_name_says() -> None:
    settings = dataclasses.replace(SETTINGS, staggered=True)
    _, emitted = drive(Core("d", settings), STREAM[: len(STREAM) // 3])
    as_of_us = sorted({as_of for as_of, _ in forecasts_by_as_of(emitted)})
    assert len(as_of_us) > 3
    assert {at % settings.period_us for at in as_of_us} == {settings.tick_offset_us("d")}
    assert settings.tick_offset_us("d") > 0
    assert {later - at for at, later in itertools.pairwise(as_of_us)} == {settings.period_us}


@pytest.mark.parametrize("part", ["advisor", "replays", "outlook_widths"])
def test_a_core_restores_a_snapshot_of_before_there_was_a_part(part: str, undisturbed: tuple[Core, list[Emit]]) -> None:
    old = undisturbed[0].snapshot()
    state = {name: value for name, value in old.state.items() if name != part}
    digest = sha256(msgspec.json.encode(state)).hexdigest()
    core = Core.restore(msgspec.structs.replace(old, state=state, sha256=digest), SETTINGS)
    assert core.ticks == undisturbed[0].ticks


def test_units_balance_and_nothing_is_held_at_the_end(undisturbed: tuple[Core, list[Emit]]) -> None:
    core, _ = undisturbed
    counts = core.accounts.as_dict()
    units = sum(message.decoded.units for message in STREAM if message.decoded)
    assert counts["in"] == units == counts["applied"]


def test_how_long_a_simulation_takes_changes_nothing(undisturbed: tuple[Core, list[Emit]]) -> None:
    slow = random.Random(5)
    core, emitted = drive(Core("d", SETTINGS), STREAM, delay=lambda: slow.randint(0, 120))
    assert values(emitted) == values(undisturbed[1])
    assert core.state_hash() == undisturbed[0].state_hash()


def test_order_of_arrival_between_topics_changes_nothing(undisturbed: tuple[Core, list[Emit]]) -> None:
    """Requests and steps are read from different partitions; either may run ahead."""
    shuffle = random.Random(7)
    queues = {name: [m for m in STREAM if m.topic == name] for name in {m.topic for m in STREAM}}
    last = queues.pop(TICKS.name)
    mixed: list[Message] = queues.pop(ENGINES.name)
    while queues:
        name = shuffle.choice(sorted(queues))
        take = shuffle.randint(1, 30)
        mixed += queues[name][:take]
        queues[name] = queues[name][take:]
        if not queues[name]:
            del queues[name]
    core, emitted = drive(Core("d", SETTINGS), mixed + last)
    assert forecasts_by_as_of(emitted) == forecasts_by_as_of(undisturbed[1])
    assert values(emitted, SCORES) == values(undisturbed[1], SCORES)
    assert core.state_hash() == undisturbed[0].state_hash()


@pytest.mark.parametrize("every", [37, 101])
def test_crash_anywhere_then_resume_changes_nothing(every: int, undisturbed: tuple[Core, list[Emit]]) -> None:
    def crash(core: Core, number: int) -> Core:
        if number % every or core.awaiting:
            return core
        wire = encode(core.snapshot())
        return Core.restore(msgspec.json.decode(wire, type=type(core.snapshot())), SETTINGS)

    core, emitted = drive(Core("d", SETTINGS), STREAM, after_each=crash)
    assert values(emitted) == values(undisturbed[1])
    assert core.state_hash() == undisturbed[0].state_hash()
    assert core.accounts.as_dict() == undisturbed[0].accounts.as_dict()


def test_duplicates_change_no_output(undisturbed: tuple[Core, list[Emit]]) -> None:
    twice = messages_of([record for record in RECORDS for _ in range(2)])
    twice.append(STREAM[-1])
    core, emitted = drive(Core("d", SETTINGS), twice)
    assert forecasts_by_as_of(emitted) == forecasts_by_as_of(undisturbed[1])
    counts = core.accounts.as_dict()
    assert counts["applied"] == undisturbed[0].accounts.as_dict()["applied"]
    assert counts["duplicate"] == counts["in"] - counts["applied"]


def test_what_happens_after_as_of_changes_no_forecast_before(undisturbed: tuple[Core, list[Emit]]) -> None:
    """Everything later is altered: lengths, latencies, step times, requests dropped. And no length leaks early."""
    cut_us = START_US + 61_000_000
    altered = []
    for number, record in enumerate(RECORDS):
        last_us = record.steps[-1].at_us if isinstance(record, StepBatch) else record.at_us
        if last_us <= cut_us:
            altered.append(record)
        elif isinstance(record, StepBatch):
            steps = tuple(
                s if s.at_us <= cut_us else msgspec.structs.replace(s, duration_us=s.duration_us + 9, rows=())
                for s in record.steps
            )
            altered.append(msgspec.structs.replace(record, steps=steps))
        elif isinstance(record, RequestFinished):
            altered.append(msgspec.structs.replace(record, osl_tokens=record.osl_tokens * 3, at_us=record.at_us + 7))
        elif isinstance(record, RequestArrived) and number % 2:
            altered.append(msgspec.structs.replace(record, isl_tokens=record.isl_tokens * 5))
    _, emitted = drive(Core("d", SETTINGS), messages_of([*altered, STREAM[-1].decoded.record]))  # type: ignore[union-attr]
    before = {key: value for key, value in forecasts_by_as_of(undisturbed[1]).items() if key[0] <= cut_us}
    got = forecasts_by_as_of(emitted)
    assert len(before) >= 20
    assert {key: got[key] for key in before} == before
    later = [key for key in forecasts_by_as_of(undisturbed[1]) if key[0] > cut_us]
    assert any(got.get(key) != forecasts_by_as_of(undisturbed[1])[key] for key in later)


def test_a_change_in_the_window_marks_its_scores_intervened() -> None:
    change = Change(deployment="d", at_us=START_US + 30_500_000, kind="scale", engines_after=2)
    records = sorted([*RECORDS, change], key=lambda r: r.steps[-1].at_us if isinstance(r, StepBatch) else r.at_us)
    _, emitted = drive(Core("d", SETTINGS), messages_of([*records, STREAM[-1].decoded.record]))  # type: ignore[union-attr]
    scores = [effect.record for effect in emitted if isinstance(effect.record, Score)]
    held = {score.as_of_us: score.as_of_us < change.at_us <= score.as_of_us + score.horizon_s * 1e6 for score in scores}
    assert any(held.values())
    for score in scores:
        assert score.intervened == (score.as_of_us < change.at_us <= score.as_of_us + score.horizon_s * 1e6)


def test_a_corrupt_or_foreign_snapshot_is_refused(undisturbed: tuple[Core, list[Emit]]) -> None:
    snapshot = undisturbed[0].snapshot()
    snapshot.state["ticks"] += 1
    with pytest.raises(SnapshotError, match="corrupt"):
        Core.restore(snapshot, SETTINGS)
    newer = msgspec.structs.replace(undisturbed[0].snapshot(), format_version=99)
    with pytest.raises(SnapshotError, match="format 99"):
        Core.restore(newer, SETTINGS)


def test_a_warm_core_begins_with_what_was_learned_and_with_no_request(undisturbed: tuple[Core, list[Emit]]) -> None:
    warm = Core("other", SETTINGS)
    warm.adopt(undisturbed[0].snapshot())
    room = warm.state.room("0")
    assert room.model.snapshot() == undisturbed[0].state.rooms["0"].model.snapshot()
    assert len(room.live) == len(warm.state.observed) == warm.ticks == 0
    assert warm.authority.level == "advisory"
