"""An archive read as a recording: the recording's own events, each once, and what cannot be read told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_archives import SLO, START_MS, made_recording, plain_log, recorded, send

from pipelines.archive.archived_recording import read_archived
from pipelines.archive.capture import Wanted, record
from pipelines.cli import main
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording, read_recording, write_recording
from pipelines.local.embedded import memory_log
from pipelines.log import LogRecord
from pipelines.outputs import Outgoing
from pipelines.playback import messages_of
from pipelines.provision import create
from schemas.topics import REQUESTS, STEPS, TOPICS

MADE = made_recording(40.0)


def archived(folder: Path, messages: Sequence[Outgoing], partitions: int = 4) -> Path:
    async def act() -> None:
        log = memory_log()
        await create(log, partitions, keep_for_ever=True)
        await send(log, messages, partitions)
        await record(log, folder, Wanted(topics=tuple(TOPICS)))

    asyncio.run(act())
    return folder


def told(recording: Recording) -> list[object]:
    return [event.record for event in recording]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recording(tmp_path_factory.mktemp("own") / "r", MADE.events, "synthetic", "test")


def test_the_archive_of_a_recording_is_that_recording(own: Path, tmp_path: Path) -> None:
    expected = read_recording(own)
    found = read_archived(archived(tmp_path / "a", list(messages_of(expected, (SLO,)))))
    assert told(found) == told(expected)
    assert found.t0_us == expected.t0_us
    assert told(read_archived(own)) == told(expected)


def test_what_the_log_holds_twice_counts_once(own: Path, tmp_path: Path) -> None:
    expected = read_recording(own)
    sent = list(messages_of(expected, (SLO,)))
    again = [each for each in sent if each.topic in (REQUESTS.name, STEPS.name)]
    found = read_archived(archived(tmp_path / "a", sorted([*sent, *again], key=lambda each: each.at_us)))
    assert told(found) == told(expected)


@pytest.mark.parametrize("level", ["S0", "S1", "S2"])
def test_levels_see_what_they_see_of_a_recording(own: Path, tmp_path: Path, level: str) -> None:
    folder = archived(tmp_path / "a", list(messages_of(read_recording(own), (SLO,))))
    assert told(read_archived(folder, level)) == told(read_recording(own, level))  # type: ignore[arg-type]


def test_what_cannot_be_read_is_left_out_and_counted(own: Path, tmp_path: Path) -> None:
    sent = list(messages_of(read_recording(own), (SLO,)))
    bad = Outgoing(REQUESTS.name, "d", b"d", b"{}", (), sent[-1].at_us)
    found = read_archived(archived(tmp_path / "a", [*sent, bad]))
    assert told(found) == told(read_recording(own))
    assert "without 1 " in found.source


def test_an_archive_without_input_ends_in_words(tmp_path: Path) -> None:
    records = [LogRecord(REQUESTS.name, 0, 0, START_MS, b"k", b"nonsense", ())]
    recorded(asyncio.run(plain_log(records)), tmp_path / "a", REQUESTS.name)
    with pytest.raises(ConfigError, match=r"no requests, steps or engines that can be read \(1 not_json\)"):
        read_archived(tmp_path / "a")


def test_commands_that_look_back_take_an_archive(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = archived(tmp_path / "a", list(messages_of(read_recording(own), (SLO,))))
    assert main(["evidence", str(folder), str(own), "--block", "5"]) == 0
    assert "No recommendation" in capsys.readouterr().out
