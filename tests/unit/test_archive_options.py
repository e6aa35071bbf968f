"""Options of record, replay and incident that contradict each other or the archive: one line, exit code 2."""

import asyncio
from pathlib import Path

import pytest
from made_archives import START_MS, plain_log, recorded

from pipelines.archive.moments import moment_us
from pipelines.cli import main
from pipelines.errors import ConfigError
from pipelines.log import LogRecord
from schemas.codec import encode
from schemas.requests import RequestFinished
from schemas.topics import REQUESTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten requests, a second each."""
    records = [LogRecord(REQUESTS.name, 0, i, START_MS + 1000 * i, b"d", encode(_finished(i)), ()) for i in range(10)]
    made = tmp_path_factory.mktemp("options") / "a"
    recorded(asyncio.run(plain_log(records)), made, REQUESTS.name)
    return made


def _finished(number: int) -> RequestFinished:
    at_us = 1000 * (START_MS + 1000 * number)
    return RequestFinished(
        deployment="d",
        request_id=f"r{number}",
        at_us=at_us,
        arrived_us=at_us - 500_000,
        isl_tokens=10,
        osl_tokens=2,
        first_token_us=at_us - 100_000,
    )


@pytest.mark.parametrize(
    "options",
    [
        ["--namespace", "x"],
        ["--bootstrap", "127.0.0.1:1"],
        ["--keep-header", "a"],
        ["--drop-header", "a"],
        ["--publish", "--namespace", ""],
    ],
    ids=" ".join,
)
def test_what_is_about_writing_is_refused_where_it_can_mean_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main(["replay", str(folder), *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--publish" in told or "--namespace must be" in told


def test_an_incident_that_begins_behind_the_end_says_where_that_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["incident", str(folder), "--from", "9000s"]) == 2
    told = capsys.readouterr().err
    assert "lies behind the end of a" in told
    assert told.count("\n") == 1


def test_a_record_that_ends_before_it_begins_is_refused_before_anything_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["record", "--from", "-1m", "--to", "-2m", "--out", str(tmp_path / "a"), "--bootstrap", "127.0.0.1:1"]
    asked[1:5] = ["--from=-1m", "--to=-2m"]
    assert main(asked) == 2
    assert "--to must lie after --from" in capsys.readouterr().err


def test_a_span_from_a_moment_that_is_not_known_says_which_spans_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"-10m, back from now, or a time"):
        moment_us("90s", "--from", now_us=10**15)
    with pytest.raises(ConfigError, match=r"90s, from the start, or a time"):
        moment_us("-90s", "--from", start_us=10**15)
