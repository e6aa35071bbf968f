"""What engines write of themselves: step logs, metrics pages, forward-pass metrics, arrays and settings."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_inputs import FPM, PAGE, SAMPLES, SGLANG_PAGE, STEP_LOG, checked, imported, only

from pipelines.errors import ConfigError
from pipelines.ingest.importing import import_files
from pipelines.ingest.recording import read_recording
from pipelines.ingest.rows import RELATIVE_T0_US
from schemas.engines import EngineConfig
from schemas.steps import EngineStats, StepBatch


def test_step_lines_give_times_and_statistics_give_counts(tmp_path: Path) -> None:
    report = checked(tmp_path, "server_out.log", STEP_LOG)
    assert (report.files[0].rows_in, report.files[0].refused) == (4, {"not_a_record": 1})
    records = imported(tmp_path, "server_out.log", STEP_LOG)
    steps = [step for record in records if isinstance(record, StepBatch) for step in record.steps]
    assert [step.duration_us for step in steps] == [250_000, 100]
    stats = only(records, EngineStats)
    assert (stats.running, stats.waiting, stats.kv_used_ratio) == (3, 2, 0.125)
    assert abs(steps[0].start_us - (stats.at_us - 2_000_000)) < 1_000_000


def test_forward_pass_metrics_are_steps_and_heartbeats_are_not(tmp_path: Path) -> None:
    report = checked(tmp_path, "fpm.jsonl", FPM)
    assert report.files[0].refused == {"heartbeat": 1}
    (step,) = only(imported(tmp_path, "fpm.jsonl", FPM), StepBatch).steps
    assert (step.prefill_tokens, step.prefill_context_tokens, step.decode_context_tokens) == (96, 32, 128)
    assert (step.step, step.waiting, step.duration_us, step.at_us) == (7, 4, 10_000, 1_796_052_001_000_000)


def test_metrics_pages_of_both_engines_give_counts(tmp_path: Path) -> None:
    stats = only(imported(tmp_path, "page.txt", PAGE), EngineStats)
    assert (stats.running, stats.finished_requests_total) == (3, 5)
    other = tmp_path / "sgl"
    other.mkdir()
    stats = only(imported(other, "page.txt", SGLANG_PAGE), EngineStats)
    assert (stats.running, stats.waiting, stats.kv_used_ratio) == (4, 1, 0.25)


def test_a_clock_that_counts_from_boot_is_placed_at_the_start(tmp_path: Path) -> None:
    stats = only(imported(tmp_path, *SAMPLES["vllm_log"]), EngineStats)
    assert stats.at_us == RELATIVE_T0_US + 100_500_000


def test_arrays_become_counts_row_by_row(tmp_path: Path) -> None:
    np.save(tmp_path / "real_time.npy", np.array([0.0, 2.0]))
    np.save(tmp_path / "real_num_running.npy", np.array([1, 3]))
    np.save(tmp_path / "real_gpu_cache_usage_perc.npy", np.array([0.5, 7.0]))
    report = import_files(None, [tmp_path / "real_time.npy"], out=tmp_path / "out")
    assert report.files[0].rows_out == 2
    one, two = (event.record for event in read_recording(tmp_path / "out"))
    assert isinstance(one, EngineStats)
    assert isinstance(two, EngineStats)
    assert (one.kv_used_ratio, two.running, two.kv_used_ratio) == (0.5, 3, None)


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "time.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="no array of numbers"):
        import_files(None, [tmp_path / "time.npy"], check=True)


def test_settings_of_a_run_become_an_engine(tmp_path: Path) -> None:
    meta = {
        "model": "llama", "vllm_version": "0.19.0", "started_at": "2026-08-20T23:19:39.992496Z",
        "engine_kwargs": {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "tensor_parallel_size": 1},
        "kv_cache": {"num_gpu_blocks": 2588, "block_size": 16, "enable_prefix_caching": True},
    }  # fmt: skip
    engine = only(imported(tmp_path, "meta.json", json.dumps(meta, indent=1)), EngineConfig)
    assert (engine.kv_blocks, engine.block_size_tokens, engine.max_num_seqs) == (2588, 16, 256)
    del meta["kv_cache"]
    (tmp_path / "bad.json").write_text(json.dumps(meta))
    assert import_files("vllm_meta", [tmp_path / "bad.json"], check=True).files[0].refused == {"missing_field": 1}
