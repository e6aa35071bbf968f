"""`twincast import`: files become a recording that reads back, or are only reported; nothing is half-written."""

import json
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.ingest.recording import read_recording

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TRACE = HEADER + "".join(f"2023-11-16 18:15:{10 + i:02}.0000000,{100 + i},{5 + i}\n" for i in range(20))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


@pytest.mark.parametrize("how", [[], ["azure"], ["--format", "azure"]])
def test_a_trace_becomes_a_recording_whether_or_not_its_format_is_named(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    named, flags = (how, []) if how == ["azure"] else ([], how)
    out = tmp_path / "out"
    assert main(["import", *named, str(trace), *flags, "--out", str(out)]) == 0
    recording = read_recording(out)
    assert recording.counts == {"arrived": 20, "finished": 20}
    told = capsys.readouterr()
    assert "20 rows in, 20 out" in told.out
    assert str(out) in told.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "trace.csv"]


def test_a_check_reports_and_writes_nothing(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(TRACE + "NaN,5,5\n", encoding="utf-8")
    assert main(["import", str(trace), "--check"]) == 0
    told = capsys.readouterr().out
    assert "21 rows in, 20 out" in told
    assert "row 22 field TIMESTAMP" in told
    assert list(tmp_path.iterdir()) == [trace]


def test_the_report_is_also_there_as_json(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(trace), "--check", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"][0]["rows_out"] == 20
    assert found["statistics"][0]["requests"] == 20
    assert found["out"] is None


def test_an_imported_recording_imports_again_to_the_same_records(trace: Path, tmp_path: Path) -> None:
    assert main(["import", str(trace), "--out", str(tmp_path / "a")]) == 0
    assert main(["import", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    one, two = (read_recording(tmp_path / name).events for name in "ab")
    assert one == two


def test_declared_names_zones_and_starts_are_used(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    how = ["--deployment", "chat", "--zone", "Europe/Berlin", "--t0", "2026-01-31T08:00:00Z"]
    assert main(["import", str(trace), "--out", str(out), *how]) == 0
    recording = read_recording(out)
    assert recording.deployment == "chat"
    assert recording.t0_us == 1_700_154_910_000_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{trace}"], "--out DIR"),
        (["{trace}", "--check", "--out", "{out}"], "--check writes nothing"),
        (["azure", "--check"], "no file named"),
        (["{absent}", "--check"], "is missing"),
        (["burstgpt", "{trace}", "--check"], "no column"),
        (["{trace}", "--out", "{full}"], "is not empty"),
        (["{trace}", "--out", "{trace}"], "is a file"),
        (["{trace}", "--out", "{out}", "--zone", "Mars/Base"], "Mars/Base"),
        (["{trace}", "--out", "{out}", "--t0", "yesterday"], "--t0 must be an ISO time"),
        (["{trace}", "--out", "{out}", "--limit", "-1"], "the limit must be"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept.txt").write_text("kept", encoding="utf-8")
    places = {"trace": trace, "out": tmp_path / "out", "absent": tmp_path / "absent.csv", "full": full}
    before = sorted(tmp_path.rglob("*"))
    assert main(["import", *(word.format(**places) for word in arguments)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert said in told.err
    assert sorted(tmp_path.rglob("*")) == before


def test_files_without_one_usable_row_are_reported_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + "NaN,5,5\n", encoding="utf-8")
    assert main(["import", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert "1 rows in, 0 out" in told.out
    assert "nothing was written" in told.err
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_half_way_leaves_no_folder(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        if path.name == "meta.json":
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    assert main(["import", str(trace), "--out", str(tmp_path / "out")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [trace]
