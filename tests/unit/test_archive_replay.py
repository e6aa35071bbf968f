"""Replays of an archive: what the live run wrote, at every speed, as far as asked, and under other settings."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from made_archives import (
    PARTITIONS,
    QUICK,
    SLO,
    archive_of,
    live_run,
    log_of,
    made_recording,
    plain_log,
    recorded,
    send,
)

from pipelines.archive.agreement import Outputs, agreement
from pipelines.archive.capture import Wanted, record
from pipelines.archive.feeds import ArchiveFeed, Recorded, State, open_feed
from pipelines.archive.moments import Until, moment_us, until_of
from pipelines.archive.overrides import Overrides, parse_overrides
from pipelines.archive.replaying import Pace, Plan, Replay
from pipelines.archive.republish import KeptHeaders, republish, require_namespace
from pipelines.backtest import Backtest, finish
from pipelines.cli import main
from pipelines.errors import ConfigError
from pipelines.ingest.recording import write_recording
from pipelines.local.embedded import memory_log
from pipelines.log import LogRecord, TopicPartition, TopicSpec
from pipelines.outputs import MADE_HEADER, Outgoing
from pipelines.playback import as_incoming, messages_of
from pipelines.provision import create
from pipelines.runtime import Runtime
from schemas.changes import Skipped
from schemas.codec import decode, encode
from schemas.forecasts import Forecast
from schemas.topics import ALERTS, FORECASTS, OUTPUTS, SCORES, STATE, TICKS, TOPICS
from twin.insight import run_with_window as simulate

CONFIG = """[forecast]
coarse_replications = 1
fine_replications = 2
scenarios = ["baseline"]
period_s = 5.0
horizons_s = [10.0, 20.0]
insight = false
"""


@pytest.fixture(scope="module")
def run() -> Backtest:
    return live_run(made_recording(85.0))


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[Outgoing]:
    return replayed(folder)


@pytest.fixture(scope="module")
def folder(run: Backtest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive_of(run, tmp_path_factory.mktemp("archive") / "a")


def plan(**more: Any) -> Plan:
    return Plan(settings_of=lambda _: QUICK, **more)


def replayed(folder: Path, **more: Any) -> list[Outgoing]:
    replay = Replay(open_feed(folder), plan(**more), simulate)
    return [message for played in replay for message in played.outputs]


def forecasts(outputs: list[Outgoing]) -> list[Forecast]:
    return [decode(m.topic, m.value).record for m in outputs if m.topic == FORECASTS.name]


def test_a_replay_writes_what_the_live_run_wrote(run: Backtest, folder: Path) -> None:
    outputs = replayed(folder)
    assert outputs == run.outputs
    assert {message.topic for message in outputs} >= {FORECASTS.name, SCORES.name}
    found = Outputs()
    for message in outputs:
        found.add(message.topic, message.key, message.value)
    compared = agreement(open_feed(folder).outputs(), found)
    assert compared is not None
    assert compared.equal


@pytest.mark.parametrize("speed", [0.5, 1.0, 10.0])
def test_the_clock_runs_at_the_speed_and_changes_no_byte(folder: Path, plain: list[Outgoing], speed: float) -> None:
    now_s = 100.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now_s
        slept.append(seconds)
        now_s += seconds

    pace = Pace(speed, now_s=lambda: now_s, sleep=sleep)
    replay = Replay(open_feed(folder), plan(pace=pace), simulate)
    outputs = [message for played in replay for message in played.outputs]
    assert outputs == plain
    assert replay.first_us is not None
    assert replay.last_us is not None
    assert sum(slept) == pytest.approx((replay.last_us - replay.first_us) / 1e6 / speed)
    assert len(slept) > 100


def test_until_a_time_or_a_record_the_outputs_are_a_prefix(folder: Path, plain: list[Outgoing]) -> None:
    whole, feed = plain, open_feed(folder)
    for until in (until_of("60s", feed.start_us), until_of("twincast.requests.v1:1:200", feed.start_us)):
        part = replayed(folder, until=until)
        assert 0 < len(part) < len(whole)
        assert part == whole[: len(part)]
    assert replayed(folder, until=Until(at_us=feed.start_us)) == []


def test_skipped_phases_are_left_out_and_the_next_tick_comes(run: Backtest, tmp_path: Path) -> None:
    ticks = [f.as_of_us for f in run.forecasts if f.phase == "fine"]
    skips = [Skipped(deployment="d", at_us=at + 9_000_000, tick_us=at, phase=p) for at in ticks[3:5] for p in PHASES]
    skips += [Skipped(deployment="d", at_us=ticks[7] + 9_000_000, tick_us=ticks[7], phase="coarse")]
    extra = [Outgoing(TICKS.name, "d", b"d", encode(s), (), s.at_us) for s in skips]
    made = forecasts(replayed(archive_of(run, tmp_path / "a", extra=extra)))
    left_out = {(s.tick_us, s.phase) for s in skips}
    assert [(f.as_of_us, f.phase) for f in made] == [
        (f.as_of_us, f.phase) for f in run.forecasts if (f.as_of_us, f.phase) not in left_out
    ]


PHASES: tuple[Any, ...] = ("coarse", "fine")


def test_more_engines_make_forecasts_no_worse_and_leave_scores_of_what_happened_out(
    folder: Path, plain: list[Outgoing]
) -> None:
    two = replayed(folder, overrides=parse_overrides(["engines=2"]))
    assert [(f.as_of_us, f.phase) for f in forecasts(two)] == [(f.as_of_us, f.phase) for f in forecasts(plain)]
    one_s, two_s = (
        sum(e.value_s for f in forecasts(each) for e in f.scenarios[0].horizons[-1].latencies) for each in (plain, two)
    )
    assert two_s < one_s
    assert {message.topic for message in two} <= {FORECASTS.name, ALERTS.name}


def test_nothing_set_changes_nothing_and_a_target_replaces_the_recorded_one(folder: Path) -> None:
    same = Overrides()
    assert (same.core(QUICK), same.changes_engines, same.risk) == (QUICK, False, None)
    strict = forecasts(replayed(folder, overrides=parse_overrides(["slo=ttft_s:0.95:0.001"])))
    limits = {risk.limit_s for f in strict for h in f.scenarios[0].horizons for risk in h.slo_risks}
    assert limits == {0.001}
    assert strict[-1].scenarios[0].horizons[0].slo_risks[0].breach_probability > 0.9


def test_other_thresholds_give_other_alerts_and_the_same_forecasts(folder: Path) -> None:
    texts = ["slo=ttft_s:0.95:0.001", "risk.fire_after_s=1000", "risk.certain_ratio=0.9995"]
    loud, quiet = (replayed(folder, overrides=parse_overrides(each)) for each in (texts[:1], texts))
    risky = [m for m in loud if m.topic == ALERTS.name and decode(m.topic, m.value).record.kind == "slo_risk"]
    assert risky
    assert [m for m in quiet if m.topic != ALERTS.name] == [m for m in loud if m.topic != ALERTS.name]
    assert len([m for m in quiet if m.topic == ALERTS.name]) < len([m for m in loud if m.topic == ALERTS.name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine.kv_block=3", "unknown; did you mean engine.kv_blocks"),
        ("risk.fire_ration=0.5", "did you mean risk.fire_ratio"),
        ("period=3", "did you mean period_s"),
        ("engines=0", "whole number in 1"),
        ("engines", "needs key=value"),
        ("period_s=soon", "write it like 10.0"),
        ("period_s=nan", "finite"),
        ("slo=ttft:0.95:1", "metric must be one of"),
        ("engine.kv_blocks=0", "engine.kv_blocks"),
        ("risk.fire_ratio=0.1", "risk ratios need"),
    ],
)
def test_what_cannot_be_set_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_overrides([text])
    with pytest.raises(ConfigError, match="twice"):
        parse_overrides(["insight=false", "insight=true"])


def test_engines_that_cannot_serve_what_was_recorded_end_in_words(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set engine.kv_blocks=2"):
        replayed(folder, overrides=parse_overrides(["engine.kv_blocks=2"]))


def test_redeliveries_are_one_output_and_a_changed_one_differs(run: Backtest) -> None:
    outputs = Outputs()
    for message in run.outputs:
        outputs.add(message.topic, message.key, message.value)
    live = [Recorded(m.topic, m.key, m.value, m.headers) for m in run.outputs]
    again = agreement([*live[:5], *live[2:]], outputs)
    assert again is not None
    assert again.equal
    changed = agreement([live[0]._replace(value=live[0].value[:-1] + b" "), *live[1:]], outputs)
    assert changed is not None
    assert changed.differing == (live[0].topic,)
    assert agreement([], outputs) is None


def into_namespace(
    folder: Path, run: Backtest, kept: KeptHeaders, act: Callable[[Any], Any] | None = None
) -> tuple[dict[str, list[LogRecord]], dict[str, int]]:
    """Republish onto the log of the live run itself; records of the namespace by topic, and how the others grew."""

    async def work() -> Any:
        log = await log_of(run)
        names = list(await log.partition_counts([t.name for t in OUTPUTS] + INPUT_NAMES))
        places = [TopicPartition(name, p) for name in names for p in range(PARTITIONS)]
        before = await log.end_offsets(places)
        feed = open_feed(folder)
        played = iter(Replay(feed, plan(), simulate))
        await republish(log, "again", played, partitions=feed.partitions, label="a 123", kept=kept)
        after = await log.end_offsets(places)
        found: dict[str, list[LogRecord]] = {}
        for name in names:
            inner = [TopicPartition(f"again.{name}", p) for p in range(PARTITIONS)]
            ends = await log.end_offsets(inner)
            async with log.reader(dict.fromkeys(inner, 0)) as reader:
                while any(reader.position(place) < ends[place] for place in inner):
                    found.setdefault(name, []).extend(await reader.get(timeout_s=0.1))
        if act is not None:
            await act(log)
        return found, {str(place): after[place] - before[place] for place in places}

    result: tuple[dict[str, list[LogRecord]], dict[str, int]] = asyncio.run(work())
    return result


INPUT_NAMES = [f"twincast.{name}.v1" for name in ("requests", "steps", "engines", "slos", "changes", "ticks")]


def test_onto_a_log_it_writes_into_a_fresh_namespace_alone_and_keeps_every_record(run: Backtest, folder: Path) -> None:
    async def second(log: Any) -> None:
        with pytest.raises(ConfigError, match=r"not fresh, .* has again\."):
            await republish(log, "again", iter(()), partitions=PARTITIONS, label="x", kept=KeptHeaders())

    found, grown = into_namespace(folder, run, KeptHeaders(), second)
    assert set(grown.values()) == {0}
    archived = [each for _, each in open_archive_feed(folder).archive.records(INPUT_NAMES)]
    for name in INPUT_NAMES:
        mine = sorted((r.partition, r.offset, r.key, r.value, r.timestamp_ms) for r in found.get(name, []))
        theirs = sorted((r.partition, r.offset, r.key, r.value, r.timestamp_ms) for r in archived if r.topic == name)
        assert mine == theirs
    for topic in OUTPUTS:
        values = [r.value for r in found.get(topic.name, [])]
        assert values == [m.value for m in run.outputs if m.topic == topic.name]
        assert all(dict(r.headers)["twincast_replay"] == b"a 123" for r in found.get(topic.name, []))


def open_archive_feed(folder: Path) -> ArchiveFeed:
    feed = open_feed(folder)
    assert isinstance(feed, ArchiveFeed)
    return feed


def test_headers_are_kept_by_name() -> None:
    headers = (("a", b"1"), ("b", b"2"), ("a", b"3"))
    assert KeptHeaders().of(headers) == headers
    assert KeptHeaders(allow=frozenset({"a"})).of(headers) == (headers[0], headers[2])
    assert KeptHeaders(deny=frozenset({"a"})).of(headers) == (headers[1],)
    assert KeptHeaders(allow=frozenset({"a"}), deny=frozenset({"a"})).of(headers) == ()


def test_the_namespace_of_the_service_is_refused() -> None:
    for namespace, ours in (("", ""), ("prod", "prod"), ("prod", "prod.eu"), ("no blank", "")):
        with pytest.raises(ConfigError, match="--namespace"):
            require_namespace(namespace, ours)
    require_namespace("replay-1", "prod")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-11-30T00:00:10Z", 1_795_996_810),
        ("2026-11-30T01:00:10+01:00", 1_795_996_810),
        ("2026-11-30 00:00:10", 1_795_996_810),
        ("1795996810", 1_795_996_810),
        ("1795996810000", 1_795_996_810),
        ("90s", 1_090),
        ("+1.5m", 1_090),
        ("-10s", 4_990),
    ],
)
def test_times_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert moment_us(text, "--from", start_us=1_000_000_000, now_us=5_000_000_000) == seconds * 1_000_000


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "-5s", "5 s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no time"):
        moment_us(text, "--from", start_us=0)


def test_the_command_tells_of_equality_and_of_a_difference(
    run: Backtest, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "twincast.toml"
    config.write_text(CONFIG)
    assert main(["--config", str(config), "replay", str(folder), "--json", str(tmp_path / "r.json")]) == 0
    assert "equal to what the live run wrote" in capsys.readouterr().out
    account = json.loads((tmp_path / "r.json").read_bytes())
    assert account["equals_recorded"] is True
    assert account["outputs"][FORECASTS.name] == len(run.forecasts)
    config.write_text(CONFIG.replace("period_s = 5.0", "period_s = 6.0"))
    assert main(["--config", str(config), "replay", str(folder)]) == 1
    assert "NOT equal" in capsys.readouterr().out
    for wrong in (["--speed", "0"], ["--speed", "fast"], ["--set", "x=1"], ["--until", "never"], ["--slo", "x"]):
        assert main(["--config", str(config), "replay", str(folder), *wrong]) == 2
        assert capsys.readouterr().err.startswith("twincast: ")
    assert main(["replay", str(tmp_path)]) == 2


def test_until_a_place_that_is_not_played_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, words in (
        ("twincast.request.v1:0:3", "did you mean twincast.requests.v1?"),
        ("twincast.forecasts.v1:0:3", "no topic that is played"),
        ("twincast.requests.v1:4096:3", "has no partition 4096; expected 0 .. "),
    ):
        assert main(["replay", str(folder), "--until", place]) == 2
        assert words in capsys.readouterr().err


def test_a_recording_is_replayed_as_its_player_would_send_it(run: Backtest, tmp_path: Path) -> None:
    name = write_recording(tmp_path / "r", run.recording.events, "synthetic", "test")
    replay = Replay(open_feed(name, slos=(SLO,)), plan(), simulate)
    assert [message for played in replay for message in played.outputs] == run.outputs


def test_an_archive_that_no_core_can_read_ends_in_words(tmp_path: Path) -> None:
    rows = [LogRecord(name, 0, 0, 1_796_052_000_000, b"d", b"x", ()) for name in ("other", TICKS.name, ALERTS.name)]
    recorded(asyncio.run(plain_log(rows[:1])), tmp_path / "foreign", "other")
    with pytest.raises(ConfigError, match="holds no record of twincast"):
        open_feed(tmp_path / "foreign")

    async def uneven() -> None:
        log = await plain_log(rows[1:2], partitions=1)
        await log.create_topics([TopicSpec(name=ALERTS.name, partitions=3)])
        await record(log, tmp_path / "uneven", Wanted(topics=(TICKS.name, ALERTS.name)))

    asyncio.run(uneven())
    with pytest.raises(ConfigError, match=r"core topics have \[1, 3\] partitions"):
        open_feed(tmp_path / "uneven")
    with pytest.raises(ConfigError, match="neither an archive"):
        open_feed(tmp_path)


@pytest.mark.parametrize("command", ["replay", "incident"])
def test_a_cut_file_ends_as_one_line_and_exit_code_2(
    run: Backtest, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    part = next(archive_of(run, tmp_path / "a").glob("*requests*/*/*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    assert main([command, str(tmp_path / "a")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("twincast: ")
    assert told.count("\n") == 1
    assert "its manifest says" in told


def _made(messages: Iterable[Outgoing], at_us: int) -> list[Outgoing]:
    """As a worker writes them at this processing time."""
    stamp = (MADE_HEADER, str(at_us).encode())
    return [Outgoing(m.topic, m.deployment, m.key, m.value, (*m.headers, stamp), m.at_us) for m in messages]


@pytest.fixture(scope="module")
def second_half(run: Backtest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive that begins a little before a snapshot in the middle of a run; beside it, "late" begins after it."""
    sent = list(messages_of(run.recording, (SLO,)))
    runtime, written, middle = Runtime(lambda _: QUICK, PARTITIONS), [], len(sent) // 2
    for number, message in enumerate(as_incoming(sent, PARTITIONS)):
        written += _made(finish(runtime, runtime.handle(message), simulate), 10 * number)
        if number == middle:
            states = runtime.snapshots(message.partition) or []
            written += _made(states, 10 * number + 5)
    assert states

    async def act() -> None:
        log = memory_log()
        await create(log, PARTITIONS, keep_for_ever=True)
        await send(log, [*sent, *written])
        for name, begin in ((folder, middle - 30), (folder.parent / "late", middle + 60)):
            await record(log, name, Wanted(topics=tuple(TOPICS), from_ms=sent[begin].at_us // 1000))

    folder = tmp_path_factory.mktemp("half") / "a"
    asyncio.run(act())
    return folder


def test_an_archive_from_the_middle_of_a_run_goes_on_from_its_recorded_state(
    run: Backtest, plain: list[Outgoing], second_half: Path
) -> None:
    found = {}
    for cold in (False, True):
        feed = open_feed(second_half)
        replay, outputs, written = Replay(feed, plan(cold=cold), simulate), Outputs(), []
        for played in replay:
            for message in played.outputs:
                outputs.add(message.topic, message.key, message.value)
                written.append(message)
        compared = agreement(feed.outputs(), outputs, replay.states)
        assert compared is not None
        found[cold] = (written, compared.equal, [state.deployment for state in replay.states])
    assert found[False][1:] == (True, ["d"])
    assert found[True][1:] == (False, [])
    assert len(found[False][0]) > 20
    assert found[False][0] == plain[-len(found[False][0]) :]


def test_a_state_whose_input_is_not_all_there_is_not_used(second_half: Path) -> None:
    late = open_archive_feed(second_half.parent / "late")
    assert any(entry.records for entry in late.archive.manifest.of([STATE.name]))
    assert late.states() == ()
    assert [state.deployment for state in open_feed(second_half).states()] == ["d"]


def test_a_target_that_is_set_holds_from_a_recorded_state_too(second_half: Path) -> None:
    overrides = parse_overrides(["slo=e2e_s:0.5:3"])
    limits = {
        (risk.metric, risk.limit_s)
        for forecast in forecasts(replayed(second_half, overrides=overrides))
        for horizon in forecast.scenarios[0].horizons
        for risk in horizon.slo_risks
    }
    assert limits == {("e2e_s", 3.0)}


def test_a_state_that_cannot_be_taken_over_ends_in_words(second_half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = State("d", b"{}", 0)
    monkeypatch.setattr(ArchiveFeed, "states", lambda _: (broken,))
    with pytest.raises(ConfigError, match="replay it with --cold"):
        replayed(second_half)
