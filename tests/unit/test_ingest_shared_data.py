"""Real public files and real spans, where they lie beside the project: rows accounted for, published figures met."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pipelines.ingest.importing import import_files
from pipelines.ingest.inputs_table import DOCUMENT, NOT_DATA, document_with, formats_of, table_of
from pipelines.ingest.join import SpanJoiner
from pipelines.ingest.kernel_trace import read_profile
from pipelines.ingest.otlp import Span
from pipelines.ingest.recording import read_recording
from pipelines.ingest.rows import Source
from pipelines.ingest.span_mapping import Rule, SpanMapping
from pipelines.ingest.traffic_statistics import TrafficStatistics
from schemas.requests import RequestFinished

SHARED = Path(__file__).parents[3] / "shared"
DATA = SHARED / "data"
RECORDINGS = sorted(path.parent for path in (SHARED / "recordings").glob("*/otel.jsonl.gz"))

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public files do not lie beside the project")


def statistics(pattern: str) -> TrafficStatistics:
    (path,) = DATA.glob(pattern)
    (found,) = import_files(None, [path], check=True).statistics
    return found


def manifest_rows() -> dict[str, int]:
    lines = (DATA / "MANIFEST.tsv").read_text().splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    return {row[0]: int(row[2]) for row in cells if row[2]}


@pytest.mark.slow
def test_every_file_is_imported_or_refused_and_every_row_is_counted() -> None:
    declared = manifest_rows()
    for path in sorted(DATA.rglob("*")):
        if not path.is_file() or path.name in NOT_DATA:
            continue
        (report,) = import_files(None, [path], check=True, source=Source(limit_s=600.0)).files
        assert report.rows_in >= 1, path
        assert report.format or report.refused, path
        for example in report.examples:
            assert example.reason, path
            assert example.detail, path
        name = str(path.relative_to(DATA))
        if name in declared and declared[name] > 0:
            blank_last_line = 1 if name.startswith("ragpulse/") and not name.endswith("days1-4.jsonl") else 0
            assert report.rows_in == declared[name] - blank_last_line, path


@pytest.mark.slow
def test_the_table_of_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert document_with(text, formats_of(), table_of(DATA)) == text, "run python -m pipelines.ingest.inputs_table"


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("azure_llm_2023/*code*", 5740),
        ("mooncake/*", 5719),
        ("ragpulse/0_*", 4354),
        ("vllm_runs_llmservingsim/*/vllm/requests.jsonl", 300),
        ("aibrix_v0.3.0_multi_round_qa/ps_stack_output_4.1.csv", 455),
        ("llmperf_leaderboard/bedrock_70b.json", 150),
    ],
)
def test_whole_files_come_in(pattern: str, rows: int) -> None:
    (path,) = DATA.glob(pattern)
    (report,) = import_files(None, [path], check=True).files
    assert (report.rows_out, report.refused) == (rows, {})


def test_figures_of_the_azure_trace_come_out_as_counted_independently() -> None:
    (path,) = DATA.glob("azure_llm_2023/*conv*")
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    seconds = np.array([np.datetime64(row[0][:26].replace(" ", "T"), "us").astype(np.int64) / 1e6 for row in rows])
    found = statistics("azure_llm_2023/*conv*")
    gaps = np.diff(seconds)
    assert found.rate_per_s == pytest.approx(len(rows) / (seconds[-1] - seconds[0]), rel=1e-6)
    assert found.gap_cv == pytest.approx(float(gaps.std() / gaps.mean()), rel=1e-3)
    assert found.peak_per_minute == max(Counter(((seconds - seconds[0]) // 60.0).tolist()).values())
    assert found.isl_tokens is not None
    assert found.isl_tokens.quantiles[0] == np.median([int(row[1]) for row in rows])


def test_published_latencies_of_the_recorded_run_come_out() -> None:
    found = statistics("vllm_runs_llmservingsim/*/vllm/requests.jsonl")
    assert found.engine_ttft_s is not None
    assert found.engine_e2e_s is not None
    assert found.tpot_s is not None
    published_ttft_ms = (65456.6, 60110.9, 121121.7, 122739.2, 137356.3)
    for value, published in zip(
        (found.engine_ttft_s.mean, *found.engine_ttft_s.quantiles), published_ttft_ms, strict=True
    ):
        assert value * 1e3 == pytest.approx(published, abs=0.06)
    for value, published in zip(
        (found.tpot_s.mean, *found.tpot_s.quantiles), (32.4, 30.8, 38.1, 48.1, 56.0), strict=True
    ):
        assert value * 1e3 == pytest.approx(published, abs=0.06)
    published_e2e_ms = (86578.3, 83413.3, 141600.9, 148977.6, 153627.5)
    for value, published in zip(
        (found.engine_e2e_s.mean, *found.engine_e2e_s.quantiles), published_e2e_ms, strict=True
    ):
        assert value * 1e3 == pytest.approx(published, abs=0.06)


def test_published_oddities_are_found() -> None:
    assert statistics("mooncake/*").tick_us == 3_000_000
    replicate = statistics("llmperf_leaderboard/replicate_70b.json").ttft_s
    assert replicate is not None
    assert (round(replicate.quantiles[0], 1), round(replicate.quantiles[3], 1)) == (1.2, 63.6)
    assert statistics("llmperf_leaderboard/bedrock_70b.json").failures == 49
    code = statistics("azure_llm_2023/*code*").gap_cv
    assert code is not None
    assert code > 10.0
    (rag,) = import_files(None, list(DATA.glob("ragpulse/0_*")), check=True).files
    assert any(oddity.startswith("1 rows arrive earlier") for oddity in rag.oddities)


@pytest.mark.slow
def test_drawn_clients_have_the_rates_of_their_windows() -> None:
    for path in DATA.glob("servegen/*/*/*-trace.csv"):
        windows = [line.split(",") for line in path.read_text().splitlines()[:3]]
        (found,) = import_files(None, [path], check=True, source=Source(limit_s=1800.0)).statistics
        assert found.requests / 1800.0 == pytest.approx(np.mean([float(row[1]) for row in windows]), rel=0.15)


def test_kernel_traces_of_steps_are_classed_whole() -> None:
    for name, events, device_us in (("decode_full", 434, 10_718), ("prefilldecode_piecewise", 423, 156_086)):
        (path,) = DATA.glob(f"kernel_traces/*{name}*")
        profile = read_profile(path)
        (step,) = profile.steps
        assert (step.events, profile.outside_events, profile.unknown_names) == (events, 0, {})
        assert sum(step.class_us.values()) == pytest.approx(device_us, rel=1e-3)
        assert step.shape is not None
        assert step.class_us["attention"] > 0.0
    assert (step.shape.prefill_tokens, step.shape.decode_requests, step.prefill_context_tokens) == (8155, 37, 275)


def spans_of(folder: Path) -> list[Span]:
    found = []
    with gzip.open(folder / "otel.jsonl.gz") as file:
        for line in file:
            row = json.loads(line)
            parent = row.get("parent_span_id") or ""
            times = (row["start_ns"], row["end_ns"], False)
            found.append(
                Span(
                    row["name"],
                    row["trace_id"],
                    row["span_id"],
                    parent,
                    *times,
                    row["attrs"],
                    row["resource"],
                    row["scope"],
                )
            )
    return found


MAPPING = SpanMapping(
    tuple(Rule((("service.name", f"vllm-{8100 + place}"),), "tiny", str(place)) for place in range(2))
)


def told_and_true(folder: Path) -> list[tuple[RequestFinished, RequestFinished]]:
    """Every finished request as its span tells it, and as it was recorded."""
    recorded = {r.request_id: r for r in read_recording(folder, "S1").requests if isinstance(r, RequestFinished)}
    spanned = {record.request_id: record for record in SpanJoiner(MAPPING).add(spans_of(folder)).records}
    assert set(spanned) == set(recorded)
    return [(told, truth) for name, truth in recorded.items() if isinstance(told := spanned[name], RequestFinished)]


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_spans_give_the_same_requests_as_the_recording(folder: Path) -> None:
    pairs = told_and_true(folder)
    assert len(pairs) > 1000
    for told, truth in pairs:
        assert (told.deployment, told.engine) == (truth.deployment, truth.engine)
        assert (told.isl_tokens, told.osl_tokens) == (truth.isl_tokens, truth.osl_tokens)
        for mine, its in zip(durations_us(told), durations_us(truth), strict=True):
            assert abs(mine - its) <= 200


@pytest.mark.slow
def test_spans_place_their_stamps_where_they_were() -> None:
    off_us = [
        abs(mine - its)
        for folder in RECORDINGS
        for told, truth in told_and_true(folder)
        for mine, its in zip(stamps_us(told), stamps_us(truth), strict=True)
    ]
    assert float(np.quantile(off_us, 0.99)) <= 5_000


def stamps_us(record: RequestFinished) -> list[int]:
    stamps = [record.arrived_us, record.first_token_us, record.at_us, record.engine_queued_us]
    stamps += [record.engine_scheduled_us, record.engine_first_token_us, record.engine_last_token_us]
    assert None not in stamps
    return [stamp for stamp in stamps if stamp is not None]


def durations_us(record: RequestFinished) -> list[int]:
    _, _, _, queued, scheduled, first, last = stamps_us(record)
    return [scheduled - queued, first - scheduled, last - first]
