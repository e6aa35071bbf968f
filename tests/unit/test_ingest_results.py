"""Results of load generators and client logs: failures, units, two clocks, and what is told twice."""

import json
from pathlib import Path

from made_inputs import AIBRIX, AIPERF, LLMPERF, REPLAY, SERVING, checked, imported, only

from pipelines.ingest.rows import RELATIVE_T0_US
from schemas.requests import RequestArrived, RequestFinished


def test_a_row_whose_times_contradict_is_refused(tmp_path: Path) -> None:
    report = checked(tmp_path, "x.csv", AIBRIX.replace("1747440163.0", "1747440190.0"))
    assert report.files[0].refused == {"contradiction": 1}
    assert report.files[0].examples[0].field == "finish_time"


def test_failures_give_no_latency_however_fine_their_numbers_look(tmp_path: Path) -> None:
    report = checked(tmp_path, "l.json", LLMPERF)
    (statistics,) = report.statistics
    assert (statistics.failures, statistics.ttft_s.count if statistics.ttft_s else 0) == (1, 1)
    assert statistics.rate_per_s is None


def test_aiperf_units_cancellation_and_warm_up(tmp_path: Path) -> None:
    finished = only(imported(tmp_path, "profile_export.jsonl", AIPERF), RequestFinished)
    assert finished.at_us - finished.arrived_us == 1_200_000
    assert finished.first_token_us - finished.arrived_us == 120_000
    row = json.loads(AIPERF)
    row["metadata"]["was_cancelled"] = True
    warm = json.loads(AIPERF)
    warm["metadata"]["benchmark_phase"] = "warmup"
    unit = json.loads(AIPERF)
    unit["metadata"]["x_request_id"] = "x2"
    unit["metrics"]["request_latency"]["unit"] = "fortnights"
    text = "\n".join(map(json.dumps, (row, warm, unit)))
    (file,) = checked(tmp_path, "p.jsonl", text).files
    assert file.records == {"aborted": 1, "arrived": 1}
    assert file.refused == {"unknown_unit": 1, "warmup": 1}


def test_two_clocks_are_aligned_by_all_rows_and_the_wait_survives(tmp_path: Path) -> None:
    records = imported(tmp_path, "requests.jsonl", SERVING)
    ends = [record for record in records if isinstance(record, RequestFinished)]
    waits = [end.engine_queued_us - end.arrived_us for end in ends if end.engine_queued_us]
    assert waits == [0, 200_000]


def test_characters_are_not_taken_for_tokens(tmp_path: Path) -> None:
    records = imported(tmp_path, "detail_log.json", REPLAY)
    (arrived,) = records
    assert isinstance(arrived, RequestArrived)
    assert (arrived.isl_tokens, arrived.at_us) == (472, RELATIVE_T0_US + 1_000_000_000)


def test_a_request_told_twice_counts_once_and_told_in_two_ways_not_at_all(tmp_path: Path) -> None:
    line = AIPERF + "\n"
    other = AIPERF.replace('"value": 128', '"value": 129') + "\n"
    fine = AIPERF.replace('"x1"', '"x2"') + "\n"
    assert checked(tmp_path, "a.jsonl", line + line + fine).files[0].refused == {"duplicate": 1}
    conflict = checked(tmp_path, "b.jsonl", line + other + line + fine).files[0]
    assert conflict.refused == {"id_conflict": 3}
    assert conflict.records == {"arrived": 1, "finished": 1}
