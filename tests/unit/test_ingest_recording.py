"""Laws of recordings, on a small folder made here and, where they lie beside the project, on the recorded vLLM."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import ConfigError
from pipelines.ingest.recording import Event, Level, read_recording, write_recording
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRejected
from schemas.steps import EngineStats, StepBatch

RECORDINGS = Path(__file__).parents[3] / "shared" / "recordings"
FOLDERS = sorted(path.parent for path in RECORDINGS.glob("*/meta.json"))
T0_UNIX = 1_796_052_001.4161725
LEVELS: tuple[Level, ...] = ("S0", "S1", "S2", "S3")


def request_line(i: int, **changes: Any) -> dict[str, Any]:
    line = {
        "i": i, "rid": f"r{i}", "inst": 0, "kind": "normal", "n_prompt": 70, "n_out": 3, "status": 200, "n_tok": 3,
        "t_arr": 0.1 * i, "t_first": 0.1 * i + 0.05, "t_last": 0.1 * i + 0.09, "t_done": 0.1 * i + 0.091,
        "eng_queued": 0.1 * i + 0.001, "eng_sched": 0.1 * i + 0.002, "eng_first": 0.1 * i + 0.04,
        "eng_last": 0.1 * i + 0.08, "cached_tok": 0, "preempt": 0, "pool": 1, "shared": 40,
    }  # fmt: skip
    return line | changes


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    line = {
        "step": step, "t0": 0.01 * step, "t1": 0.01 * step + 0.008, "sched_ms": 0.2, "exec_ms": 7.0, "upd_ms": 0.1,
        "wait": 0, "run": 2, "pre_reqs": 1, "pre_tok": 30, "pre_attn": 1665, "dec_reqs": 1, "dec_ctx": 71, "hit_tok": 0,
        "kv_free": 150, "done": 0, "preempted": [], "batch": [[0, "p", 30, 40], [1, "d", 1, 70]],
    }  # fmt: skip
    return line | changes


def lab_folder(path: Path, requests: list[dict[str, Any]], steps: list[dict[str, Any]]) -> Path:
    core = {"num_gpu_blocks": 160, "block_size": 32, "max_num_seqs": 24, "max_num_batched_tokens": 256}
    meta = {
        "name": "made", "t0_unix": T0_UNIX, "engine": "vLLM", "engine_core": [core, core],
        "engine_args": ["--served-model-name", "tiny", "--max-num-queued-reqs", "12", "--enforce-eager"],
    }  # fmt: skip
    page = {
        "t": 5.0,
        "port": 8100,
        "lines": [
            'vllm:num_requests_running{engine="0"} 3.0',
            'vllm:num_requests_waiting{engine="0"} 1.0',
            'vllm:kv_cache_usage_perc{engine="0"} 0.5',
        ],
    }
    path.mkdir(parents=True)
    (path / "meta.json").write_text(json.dumps(meta))
    for name, lines in (("requests", requests), ("steps", steps), ("prom", [page])):
        data = "".join(json.dumps(line) + "\n" for line in lines)
        (path / f"{name}.jsonl.gz").write_bytes(gzip.compress(data.encode()))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    refused = {"t_first": None, "t_last": None, "eng_queued": None, "eng_sched": None, "eng_first": None}
    refused |= {"eng_last": None, "cached_tok": None, "preempt": None, "n_tok": 0}
    requests = [
        request_line(0),
        request_line(1),
        request_line(2, **(refused | {"status": 503})),
        request_line(3, **(refused | {"t_first": 0.305, "t_last": 0.305})),
    ]
    return lab_folder(tmp_path / "lab", requests, [step_line(n, inst=n % 2) for n in range(200)])


def arrived(events: tuple[Event, ...]) -> list[RequestArrived]:
    return [event.record for event in events if isinstance(event.record, RequestArrived)]


def test_every_request_arrives_once_and_ends_once(folder: Path) -> None:
    recording = read_recording(folder)
    ends = [record for record in recording.requests if not isinstance(record, RequestArrived)]
    assert Counter(r.request_id for r in arrived(recording.events)) == Counter({f"r{i}": 1 for i in range(4)})
    assert Counter(record.request_id for record in ends) == Counter({f"r{i}": 1 for i in range(4)})


def test_refusals_and_failures_give_no_latency(folder: Path) -> None:
    by_id = {r.request_id: r for r in read_recording(folder).requests if not isinstance(r, RequestArrived)}
    assert isinstance(by_id["r2"], RequestRejected)
    assert by_id["r2"].http_status == 503
    assert isinstance(by_id["r3"], RequestAborted)
    assert by_id["r3"].first_token_us is None


def test_events_come_in_order_of_event_time(folder: Path) -> None:
    times = [event.at_us for event in read_recording(folder)]
    assert times == sorted(times)


def test_seconds_become_microseconds_once(folder: Path) -> None:
    first = next(r for r in read_recording(folder).requests if isinstance(r, RequestFinished))
    t0_us = round(T0_UNIX * 1e6)
    assert (first.arrived_us - t0_us, first.at_us - t0_us) == (0, 90_000)
    assert first.engine_scheduled_us == t0_us + 2_000


def test_arrivals_tell_the_prompt_and_nothing_of_the_future(folder: Path) -> None:
    before = arrived(read_recording(folder).events)
    other = lab_folder(
        folder.parent / "other", [request_line(i, n_tok=99, n_out=99, t_last=9.0 + i) for i in range(4)], []
    )
    assert arrived(read_recording(other).events) == before


def test_prompts_of_one_pool_share_the_blocks_of_their_common_prefix(folder: Path) -> None:
    one, two, *_ = arrived(read_recording(folder).events)
    assert len(one.block_hashes) == 70 // 32
    assert one.block_hashes[0] == two.block_hashes[0]
    assert one.block_hashes[1] != two.block_hashes[1]


def test_batches_are_bounded_and_hold_every_step_of_their_engine_in_order(folder: Path) -> None:
    batches = read_recording(folder).step_batches
    for batch in batches:
        assert len(batch.steps) <= 64
        assert batch.steps[-1].at_us - batch.steps[0].start_us <= 250_000
    for engine in ("0", "1"):
        steps = [step.step for batch in batches if batch.engine == engine for step in batch.steps]
        assert steps == list(range(int(engine), 200, 2))


def test_steps_count_prefill_context_and_used_blocks(folder: Path) -> None:
    step = read_recording(folder).step_batches[0].steps[0]
    assert (step.prefill_context_tokens, step.prefill_attention_pairs, step.decode_context_tokens) == (40, 1665, 71)
    assert step.kv_used_blocks == 160 - 1 - 150
    assert [(row.request_id, row.kind) for row in step.rows] == [("r0", "chunk"), ("r1", "decode")]


def test_engine_settings_come_from_core_and_flags(folder: Path) -> None:
    engines = read_recording(folder).engines
    assert [engine.engine for engine in engines] == ["0", "1"]
    assert (engines[0].deployment, engines[0].max_queued_requests, engines[0].kv_blocks) == ("tiny", 12, 160)


def test_a_lower_level_tells_less(folder: Path) -> None:
    s0, s1, s2, s3 = (read_recording(folder, level) for level in LEVELS)
    assert not any(isinstance(event.record, RequestArrived | StepBatch | EngineStats) for event in s0)
    assert all(r.engine_queued_us is None for r in s0.requests if isinstance(r, RequestFinished))
    stats = [event.record for event in s1 if isinstance(event.record, EngineStats)]
    assert [(record.running, record.waiting, record.kv_used_ratio) for record in stats] == [(3, 1, 0.5)]
    assert not s1.step_batches
    assert s2.step_batches
    assert not any(step.rows for batch in s2.step_batches for step in batch.steps)
    assert any(step.rows for batch in s3.step_batches for step in batch.steps)


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_written_reads_back_the_same(folder: Path, tmp_path: Path, level: Level) -> None:
    recording = read_recording(folder, level)
    first = write_recording(tmp_path / "one", recording, "made", "test")
    assert read_recording(first, level).events == recording.events
    second = write_recording(tmp_path / "two", reversed(recording.events), "made", "test")
    for file in first.iterdir():
        assert (second / file.name).read_bytes() == file.read_bytes()


def test_a_written_recording_reduces_like_its_source(folder: Path, tmp_path: Path) -> None:
    written = write_recording(tmp_path / "full", read_recording(folder), "made", "test")
    for level in ("S0", "S2"):
        assert read_recording(written, level).events == read_recording(folder, level).events


def test_writing_into_a_full_folder_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        write_recording(folder, [], "made", "test")


def _drop_column(folder: Path, name: str, column: str) -> None:
    path = folder / name
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    del lines[1][column]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


def _truncate(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "requests.jsonl.gz").unlink(), ("requests.jsonl.gz", "missing")),
        (lambda f: (f / "meta.json").unlink(), ("meta.json", "missing")),
        (lambda f: (f / "meta.json").write_text("{"), ("meta.json", "not JSON")),
        (lambda f: (f / "meta.json").write_text("[]"), ("meta.json", "list")),
        (lambda f: (f / "meta.json").write_text("{}"), ("meta.json", "t0_unix")),
        (lambda f: _drop_column(f, "requests.jsonl.gz", "t_arr"), ("requests.jsonl.gz line 2", "t_arr")),
        (lambda f: _drop_column(f, "steps.jsonl.gz", "dec_ctx"), ("steps.jsonl.gz line 2", "dec_ctx")),
        (lambda f: _truncate(f, "steps.jsonl.gz"), ("steps.jsonl.gz", "truncated")),
        (lambda f: (f / "steps.jsonl.gz").write_bytes(b"\xff\xfe\n"), ("steps.jsonl.gz line 1",)),
    ],
)
def test_damage_is_named_in_one_line(folder: Path, damage: Any, words: tuple[str, ...]) -> None:
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        read_recording(folder)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_recording_with_fewer_records_than_it_counts_is_refused(folder: Path, tmp_path: Path) -> None:
    # A file of nothing, or cut between two compressed stretches, reads without complaint.
    for keep in (0, 1):
        written = write_recording(tmp_path / f"own{keep}", read_recording(folder), "made", "test")
        file = written / "requests.jsonl.gz"
        lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
        file.write_bytes(gzip.compress(b"".join(lines[:keep])) if keep else b"")
        with pytest.raises(ConfigError, match=r"holds \d records '\w+' and meta.json counts \d"):
            read_recording(written)


def test_an_unknown_level_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="S9"):
        read_recording(folder, "S9")  # type: ignore[arg-type]


@pytest.mark.skipif(not FOLDERS, reason="the recorded vLLM folders do not lie beside the project")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_recorded_requests_are_conserved_and_causal(folder: Path) -> None:
    recording = read_recording(folder)
    counts = recording.counts
    declared = json.loads((folder / "meta.json").read_text())["counts"]
    assert counts["arrived"] == declared["requests"]
    assert sum(counts.get(kind, 0) for kind in ("finished", "rejected", "aborted")) == declared["requests"]
    assert counts["step"] == declared["steps"]
    for record in recording.requests:
        if isinstance(record, RequestFinished):
            stamps = [record.arrived_us, record.engine_queued_us, record.engine_scheduled_us]
            stamps += [record.engine_first_token_us, record.first_token_us, record.at_us]
            known = [stamp for stamp in stamps if stamp is not None]
            assert known == sorted(known)
