"""What holds for every input format: it is told by its beginning, rows never vanish, refusals name row and field."""

import gzip
from pathlib import Path

import pytest
from made_inputs import AIBRIX, AZURE, BURST_1, FPM, MOONCAKE, RAG, SAMPLES, SERVING, SPAN, checked

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.recording import read_recording
from pipelines.ingest.registry import FORMATS
from pipelines.ingest.report_text import report_lines
from pipelines.ingest.rows import read_head


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_told_by_its_beginning_and_by_no_other(tmp_path: Path, name: str) -> None:
    file, text = SAMPLES[name]
    path = tmp_path / file
    path.write_bytes(text.encode())
    assert [known.name for known in FORMATS.values() if known.matches(read_head(path))] == [name]


@pytest.mark.parametrize("name", SAMPLES)
def test_an_import_reads_back_what_was_accepted(tmp_path: Path, name: str) -> None:
    file, text = SAMPLES[name]
    (tmp_path / file).write_bytes(text.encode())
    report = import_files(None, [tmp_path / file], out=tmp_path / "out")
    assert report.out is not None
    counts = read_recording(report.out).counts
    told = report.files[0].records
    assert {kind: many for kind, many in counts.items() if kind not in ("step", "steps")} == {
        kind: many for kind, many in told.items() if kind != "steps"
    }


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["azure", "mooncake", "aibrix"])
def test_line_ends_marks_and_packing_change_nothing(tmp_path: Path, name: str, ending: str, packed: bool) -> None:
    file, text = SAMPLES[name]
    plain = tmp_path / "plain"
    other = tmp_path / "other"
    plain.mkdir()
    other.mkdir()
    (plain / file).write_bytes(text.encode())
    data = b"\xef\xbb\xbf" + ending.join(text.splitlines()).encode()
    (other / file).write_bytes(gzip.compress(data) if packed else data)
    one, two = (import_files(None, [folder / file], out=folder / "out") for folder in (plain, other))
    assert one.files[0].rows_in == two.files[0].rows_in
    assert read_recording(plain / "out").events == read_recording(other / "out").events


@pytest.mark.parametrize(
    ("file", "text", "reason", "field"),
    [
        ("a.csv", AZURE.replace(",374,", ",-1,"), "out_of_range", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",many,"), "bad_type", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",NaN,"), "non_finite", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",,"), "missing_field", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,", ",37.5,"), "bad_type", "ContextTokens"),
        ("a.csv", AZURE.replace(",374,44", ",374"), "columns", ""),
        ("a.csv", AZURE.replace("18:15:46", "18:75:46"), "bad_type", "TIMESTAMP"),
        ("m.jsonl", MOONCAKE.replace("1030", "true"), "bad_type", "input_length"),
        ("m.jsonl", MOONCAKE.replace("1030", '"1030"'), "bad_type", "input_length"),
        ("m.jsonl", MOONCAKE.replace("3000", "99999999999999999999"), "int_out_of_range", "timestamp"),
        ("m.jsonl", MOONCAKE.replace("[0, 1, 2]", "[0, true]"), "bad_type", "hash_ids"),
        ("m.jsonl", MOONCAKE + "{oops\n", "not_json", ""),
        ("m.jsonl", MOONCAKE + '{"timestamp": NaN}\n', "non_finite", "timestamp"),
        ("m.jsonl", MOONCAKE + '{"timestamp": 1}\n', "missing_field", "input_length"),
        ("m.jsonl", MOONCAKE + "5\n", "bad_type", ""),
        ("r.jsonl", RAG.replace('"82"', '"soon"'), "bad_type", "timestamp"),
        ("x.csv", AIBRIX.replace("2.5,1.25", "-2.5,1.25"), "negative_duration", "ttft"),
        ("x.csv", AIBRIX.replace("1747440159.25", "1747440159250"), "timestamp_unit", "launch_time"),
        ("requests.jsonl", SERVING.replace("500.7", "400.7"), "negative_duration", "first_token_ts"),
        ("fpm.jsonl", FPM.replace('"version": 1', '"version": 9'), "schema_version", "version"),
        ("otel.jsonl", SPAN.replace('"llm_request"', '"Load model"'), "no_request", "name"),
        ("n.jsonl", SAMPLES["native"][1].replace("1796052001000000", "1796052001"), "timestamp_unit", "$.at_us"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_by_name_and_the_others_stay(
    tmp_path: Path, file: str, text: str, reason: str, field: str
) -> None:
    report = checked(tmp_path, file, text)
    (one,) = report.files
    assert reason in one.refused
    example = next(example for example in one.examples if example.reason == reason)
    assert example.field == field
    assert example.row >= 1
    header = 1 if file.endswith(".csv") else 0
    assert one.rows_in == len([line for line in text.splitlines() if line.strip()]) - header


def test_invalid_utf8_is_a_row_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(AZURE.encode() + b"\r\n2023-11-16 18:15:51.0,\xff\xfe,9\r\n2023-11-16 18:15:52.0,7,9\r\n")
    report = import_files(None, [path], check=True)
    assert report.files[0].refused == {"invalid_utf8": 1}
    assert report.files[0].rows_out == 3


def test_time_running_backwards_is_told_with_its_row(tmp_path: Path) -> None:
    rows = "".join(MOONCAKE.replace("3000", str(t)) for t in (1000, 5000, 2000, 6000))
    (file,) = checked(tmp_path, "m.jsonl", rows).files
    assert file.rows_out == 4
    assert any("first row 3" in oddity for oddity in file.oddities)


def test_a_file_of_no_known_format_is_refused_row_by_row(tmp_path: Path) -> None:
    (file,) = checked(tmp_path, "x.txt", "one\ntwo\n").files
    assert (file.format, file.refused) == ("", {"unknown_format": 2})
    (empty,) = checked(tmp_path, "empty.txt", "").files
    assert empty.refused == {"empty": 1}


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [("nope", ["a.csv"], "unknown"), ("azure", ["missing.csv"], "missing"), ("mooncake", [], "no files"),
     ("azure", ["b.csv"], "no column"), ("recording", ["a.csv"], "folder")],
)  # fmt: skip
def test_what_cannot_be_imported_is_one_clear_line(tmp_path: Path, name: str, files: list[str], words: str) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "b.csv").write_text(BURST_1)
    with pytest.raises(ConfigError, match=words):
        import_files(name, [tmp_path / file for file in files], check=True)


def test_checking_writes_nothing_and_writing_needs_a_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    import_files(None, [tmp_path / "a.csv"], out=tmp_path / "out", check=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="no place"):
        import_files(None, [tmp_path / "a.csv"])


def test_a_recording_is_a_format_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    import_files(None, [tmp_path / "a.csv"], out=tmp_path / "one")
    report = import_files(None, [tmp_path / "one"], out=tmp_path / "two")
    assert report.files[0].format == "recording"
    assert read_recording(tmp_path / "two").events == read_recording(tmp_path / "one").events


def test_a_report_reads_as_text_and_hides_no_refusal(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE + "\n2023-11-16 18:15:51.0,-4,9\n")
    text = "\n".join(report_lines(import_files(None, [tmp_path / "a.csv"], out=tmp_path / "out")))
    assert "3 rows in, 2 out (2 arrived, 2 finished)" in text
    assert "a.csv row 4 field ContextTokens: out_of_range" in text
    assert "azure: 2 requests in 4.3 s" in text
    assert f"written: {tmp_path / 'out'}" in text
