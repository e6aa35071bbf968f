"""The step tap for vLLM against a scheduler made here: what it publishes, and that the engine never notices it."""

import asyncio
import importlib
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipelines.ingest.importing import import_files
from pipelines.ingest.recording import read_recording
from schemas.codec import decode
from schemas.requests import RequestAborted, RequestArrived, RequestFinished
from schemas.steps import StepBatch
from schemas.topics import ENGINES, REQUESTS, STEPS

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm"


@pytest.fixture(scope="module")
def tap() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield {name: importlib.import_module(f"twincast_vllm.{name}") for name in ("observer", "publisher", "plugin")}
    finally:
        sys.path.remove(str(EXAMPLE))


def request(name: str, isl_tokens: int) -> Any:
    return SimpleNamespace(
        request_id=f"cmpl-{name}-0-0123abcd", arrival_time=time.time(), num_prompt_tokens=isl_tokens, priority=0,
        session_id=None, num_output_tokens=0, num_preemptions=0, status=SimpleNamespace(name="RUNNING"), computed=0,
        prefill=0,
    )  # fmt: skip


def scheduler_class() -> type[Any]:
    """A scheduler with vLLM's calls: 30 tokens a step, one request prefilled after the other."""

    class Scheduler:
        def __init__(self) -> None:
            model = SimpleNamespace(served_model_name="tiny", model="/models/tiny", max_model_len=4096)
            parallel = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_rank=0)
            self.vllm_config = SimpleNamespace(model_config=model, parallel_config=parallel)
            self.scheduler_config = SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=30, policy="fcfs")
            self.cache_config = SimpleNamespace(enable_prefix_caching=True)
            self.block_size = 16
            pool = SimpleNamespace(num_gpu_blocks=100, get_num_free_blocks=lambda: 90)
            self.kv_cache_manager = SimpleNamespace(block_pool=pool)
            self.requests: dict[str, Any] = {}

        def get_request_counts(self) -> tuple[int, int]:
            return len(self.requests), 0

        def add_request(self, one: Any) -> None:
            self.requests[one.request_id] = one

        def schedule(self) -> Any:
            budget, new, cached, tokens = 30, [], [], {}
            for one in self.requests.values():
                many = min(budget, 1 if one.computed >= one.num_prompt_tokens else one.num_prompt_tokens - one.computed)
                if many:
                    tokens[one.request_id] = many
                    entry = SimpleNamespace(req_id=one.request_id, num_computed_tokens=one.computed)
                    (cached if one.computed else new).append(entry)
                    one.computed += many
                    budget -= many
            return SimpleNamespace(
                num_scheduled_tokens=tokens, scheduled_new_reqs=new, preempted_req_ids=None,
                scheduled_spec_decode_tokens={}, total_num_scheduled_tokens=sum(tokens.values()),
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=[entry.req_id for entry in cached], resumed_req_ids=set(),
                    num_computed_tokens=[entry.num_computed_tokens for entry in cached],
                ),
            )  # fmt: skip

        def update_from_output(self, output: Any, _: Any) -> str:
            for name in output.num_scheduled_tokens:
                one = self.requests[name]
                if one.computed >= one.num_prompt_tokens:
                    one.num_output_tokens += 1
                if one.num_output_tokens == 3:
                    one.status = SimpleNamespace(name="FINISHED_LENGTH_CAPPED")
                    self._free_request(one)
            return "outputs"

        def _free_request(self, one: Any) -> None:
            self.requests = {name: kept for name, kept in self.requests.items() if kept is not one}

    return Scheduler


def drive(scheduler: Any, steps: int) -> list[Any]:
    found = []
    for _ in range(steps):
        output = scheduler.schedule()
        time.sleep(0.002)
        found.append(scheduler.update_from_output(output, None))
    return found


def test_what_a_tapped_engine_does_reads_back_as_a_recording(
    tap: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINCAST_TAP", f"file://{tmp_path / 'tap.jsonl'}")
    hooked = scheduler_class()
    tap["plugin"].hook(hooked)
    tap["plugin"].hook(hooked)
    scheduler = hooked()
    scheduler.add_request(request("a", 40))
    scheduler.add_request(request("b", 5))
    scheduler.add_request(request("gone", 9))
    gone = next(one for one in scheduler.requests.values() if "gone" in one.request_id)
    gone.status = SimpleNamespace(name="FINISHED_ABORTED")
    scheduler._free_request(gone)
    assert drive(scheduler, 6) == ["outputs"] * 6
    scheduler._twincast.publisher.stop()
    report = import_files("native", [tmp_path / "tap.jsonl"], out=tmp_path / "out")
    assert report.files[0].refused == {}
    recording = read_recording(tmp_path / "out")
    (engine,) = recording.engines
    assert (engine.deployment, engine.kv_blocks, engine.max_num_batched_tokens) == ("tiny", 100, 30)
    assert [r.request_id for r in recording.requests if isinstance(r, RequestArrived)] == ["a", "b", "gone"]
    assert [r.request_id for r in recording.requests if isinstance(r, RequestAborted)] == ["gone"]
    ends = {r.request_id: r for r in recording.requests if isinstance(r, RequestFinished)}
    assert {name: end.osl_tokens for name, end in ends.items()} == {"a": 3, "b": 3}
    chunks = [(chunk.first_token, chunk.tokens, chunk.hit_tokens, chunk.miss_tokens) for chunk in ends["a"].chunks]
    assert chunks == [(0, 30, 0, 30), (30, 10, None, 10)]
    stamps = (
        ends["a"].engine_queued_us,
        ends["a"].engine_scheduled_us,
        ends["a"].engine_first_token_us,
        ends["a"].at_us,
    )
    assert list(stamps) == sorted(stamp for stamp in stamps if stamp is not None)
    steps = [step for batch in recording.step_batches for step in batch.steps]
    assert [step.step for step in steps] == list(range(6))
    first, second = steps[0], steps[1]
    assert (first.prefill_requests, first.prefill_tokens, first.prefill_attention_pairs) == (1, 30, 30 * 31 // 2)
    assert [(row.request_id, row.kind, row.tokens) for row in second.rows] == [("a", "chunk", 10), ("b", "first", 5)]
    assert all(earlier.at_us <= later.start_us for earlier, later in pairwise(steps))
    assert first.kv_used_blocks == 9
    assert sum(step.finished_requests for step in steps) == 2


def test_an_error_in_the_tap_never_reaches_the_engine(
    tap: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINCAST_TAP", f"file://{tmp_path / 'tap.jsonl'}")
    calls = 0

    def broken(*_: Any) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("tap")

    monkeypatch.setattr(tap["observer"].EngineObserver, "on_scheduled", broken)
    hooked = scheduler_class()
    tap["plugin"].hook(hooked)
    scheduler = hooked()
    scheduler.add_request(request("a", 900))
    assert drive(scheduler, 30) == ["outputs"] * 30
    assert calls == tap["plugin"].MAX_ERRORS
    scheduler._twincast.publisher.stop()


class Broker:
    """A sink that is away for its first tries."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.got: list[Any] = []

    async def open(self) -> None:
        self.away -= 1
        if self.away >= 0:
            raise ConnectionError("away")

    async def send(self, messages: list[Any]) -> None:
        self.got += messages

    async def close(self) -> None:
        return


def step(number: int) -> dict[str, Any]:
    return {"step": number, "start_us": 1_796_052_001_000_000 + number, "duration_us": 5}


def envelope(steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"record": "steps", "deployment": "d", "engine": "0", "steps": steps}


def test_a_broker_that_comes_back_gets_what_was_queued_in_few_messages(
    tap: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap["publisher"], "RETRY_S", 0.02)
    broker = Broker(away=3)
    publisher = tap["publisher"].Publisher(broker, envelope)
    publisher.start()
    for number in range(130):
        publisher.put(STEPS.name, "d", step(number))
    deadline = time.monotonic() + 2.0
    while len(broker.got) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    publisher.stop()
    records = [decode(topic, value).record for topic, _, value in broker.got]
    assert [len(record.steps) for record in records if isinstance(record, StepBatch)] == [64, 64, 2]
    assert publisher.failures == 3
    assert publisher.dropped == 0


def test_a_dead_broker_costs_a_put_nothing_and_memory_stays_bounded(tap: dict[str, ModuleType]) -> None:
    publisher = tap["publisher"].Publisher(Broker(away=10**9), envelope, max_queued=100)
    started = time.process_time()
    for number in range(10_000):
        publisher.put(STEPS.name, "d", step(number))
    assert (time.process_time() - started) / 10_000 < 0.000_080
    assert publisher.dropped == 9_900
    assert isinstance(publisher._queue, deque)
    assert len(publisher._queue) == 100


def test_arrivals_do_not_wait_for_company(tap: dict[str, ModuleType]) -> None:
    publisher = tap["publisher"].Publisher(Broker(away=0), envelope)
    publisher.put(REQUESTS.name, "d", {"event": "arrived"})
    publisher.put(STEPS.name, "d", step(1))
    assert [topic for topic, _, _ in publisher._messages(flush=False)] == [REQUESTS.name]
    assert [topic for topic, _, _ in publisher._messages(flush=True)] == [STEPS.name]


def test_the_tap_names_our_topics(tap: dict[str, ModuleType]) -> None:
    observer = tap["observer"]
    assert [t.name for t in (REQUESTS, STEPS, ENGINES)] == [observer.REQUESTS, observer.STEPS, observer.ENGINES]


def test_a_kafka_sink_keeps_a_deployment_in_one_partition(
    tap: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, int]] = []

    class Producer:
        def __init__(self, **_: Any) -> None: ...

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        async def partitions_for(self, _: str) -> set[int]:
            return set(range(6))

        async def send(self, topic: str, *, value: bytes, key: bytes, partition: int) -> Any:
            json.loads(value)
            sent.append((topic, partition))
            return asyncio.sleep(0)

    monkeypatch.setattr("aiokafka.AIOKafkaProducer", Producer)
    sink = tap["publisher"].KafkaSink("x:9092", "tiny")

    async def run() -> None:
        await sink.open()
        await sink.send([(STEPS.name, "tiny", b"{}"), (ENGINES.name, "tiny/0", b"{}"), (REQUESTS.name, "tiny", b"{}")])
        await sink.close()

    asyncio.run(run())
    from pipelines.partitions import partition_of

    assert {partition for _, partition in sent} == {partition_of("tiny", 6)}
