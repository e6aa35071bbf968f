"""Folders that a recorded vLLM wrote: seconds from a monotonic start, one JSON object per request and per step.

Turns `requests.jsonl.gz`, `steps.jsonl.gz`, `prom.jsonl.gz` and `meta.json` into wire records. Does not read the
spans (`otlp` does) and never uses a field before its event: what was planned but not yet known stays unsaid.

Law: every request line ends as exactly one of finished, rejected, aborted, and arrives exactly once.
"""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from pipelines.errors import ConfigError
from pipelines.ingest.engine_metrics import engine_stats
from pipelines.ingest.lines import read_lines
from pipelines.ingest.prometheus import parse_scrape
from pipelines.ingest.recording import Event, Level, batched_steps, event_of
from schemas.codec import non_finite_field
from schemas.engines import EngineConfig, Fingerprint
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRecord, RequestRejected
from schemas.steps import RowKind, Step, StepBatch, StepRow

_ROW_KINDS: dict[str, RowKind] = {"P": "first", "p": "chunk", "d": "decode", "R": "resumed"}
_HTTP_OK = 200
_FLAG_SETTINGS = {
    "--max-num-queued-reqs": "max_queued_requests",
    "--max-model-len": "max_model_len_tokens",
    "--tensor-parallel-size": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "--long-prefill-token-threshold": "long_prefill_threshold_tokens",
}

T = TypeVar("T")


class _EngineCore(Struct, frozen=True):
    num_gpu_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool = False
    chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    policy: str = "fcfs"


class _Meta(Struct, frozen=True):
    t0_unix: float
    engine_core: list[_EngineCore]
    engine_args: list[str]
    name: str = ""
    engine: str = ""
    engine_version: str = ""
    model_config: dict[str, object] = {}
    host: dict[str, object] = {}


class _Request(Struct, frozen=True):
    i: int
    rid: str
    inst: int
    n_prompt: int
    status: int
    n_tok: int
    t_arr: float
    t_first: float | None
    t_last: float | None
    t_done: float | None
    eng_queued: float | None
    eng_sched: float | None
    eng_first: float | None
    eng_last: float | None
    cached_tok: int | None
    preempt: int | None
    pool: int = -1
    shared: int = 0


class _Step(Struct, frozen=True):
    step: int
    t0: float
    t1: float
    sched_ms: float
    exec_ms: float
    upd_ms: float
    wait: int
    run: int
    pre_reqs: int
    pre_tok: int
    pre_attn: int
    dec_reqs: int
    dec_ctx: int
    hit_tok: int
    kv_free: int
    done: int
    preempted: list[int]
    batch: list[tuple[int, str, int, int]]
    inst: int = 0


class _Page(Struct, frozen=True):
    t: float
    port: int
    lines: list[str]


class _Clock:
    """Seconds since the recording's start to microseconds since the epoch; the only place that converts."""

    def __init__(self, t0_unix: float) -> None:
        self._t0_us = round(t0_unix * 1e6)

    def us(self, seconds: float) -> int:
        return self._t0_us + round(seconds * 1e6)

    def maybe_us(self, seconds: float | None) -> int | None:
        return None if seconds is None else self.us(seconds)


def read_lab_events(folder: Path, meta_json: bytes, level: Level) -> Iterator[Event]:
    """All events of the folder, unordered; files that `level` does not need are not opened.

    Raises ConfigError naming file, line and field if anything is missing or malformed.
    """
    meta = _decode(meta_json, _Meta, f"{folder / 'meta.json'}")
    deployment = _flags(meta.engine_args).get("--served-model-name") or folder.name
    clock = _Clock(meta.t0_unix)
    engines = _engine_configs(meta, deployment, clock)
    yield from map(event_of, engines)
    names: dict[int, str] = {}
    for number, line in read_lines(folder / "requests.jsonl.gz"):
        request = _decode(line, _Request, f"{folder / 'requests.jsonl.gz'} line {number}")
        names[request.i] = request.rid
        block_tokens = engines[min(request.inst, len(engines) - 1)].block_size_tokens
        for record in _request_events(request, deployment, block_tokens, clock):
            yield event_of(record)
    if level == "S1":
        yield from _stats_events(folder / "prom.jsonl.gz", deployment, clock)
    if level in ("S2", "S3"):
        yield from map(event_of, _step_batches(folder / "steps.jsonl.gz", deployment, names, engines, clock))


def _decode(data: bytes, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if name := non_finite_field(data):
            raise ConfigError(f"{where}: {name} is not a finite number; correct the line") from error
        raise ConfigError(
            f"{where}: {error}; expected the layout of a recorded vLLM, copy the recording again"
        ) from error


def _flags(arguments: list[str]) -> dict[str, str]:
    """Command-line flags to their values; a flag without a value maps to an empty string."""
    flags: dict[str, str] = {}
    for place, word in enumerate(arguments):
        if word.startswith("--"):
            following = arguments[place + 1] if place + 1 < len(arguments) else "--"
            flags[word] = "" if following.startswith("--") else following
    return flags


def _engine_configs(meta: _Meta, deployment: str, clock: _Clock) -> list[EngineConfig]:
    if not meta.engine_core:
        raise ConfigError(f"meta.json of {meta.name or deployment} lists no engine_core; expected one entry per engine")
    flags = _flags(meta.engine_args)
    settings = {field: int(flags[flag]) for flag, field in _FLAG_SETTINGS.items() if flags.get(flag, "").isdigit()}
    plain = {k: v for k, v in meta.model_config.items() if v is None or isinstance(v, str | int | float | bool)}
    fingerprint = Fingerprint(
        device=str(meta.host.get("cpu", "")),
        driver=str(meta.host.get("kernel", "")),
        image=meta.engine,
        engine_version=meta.engine_version,
        model=deployment,
        flags=tuple(meta.engine_args),
    )
    return [
        msgspec.convert(
            {
                "record": "engine",
                "deployment": deployment,
                "engine": str(place),
                "at_us": clock.us(0.0),
                "block_size_tokens": core.block_size,
                "kv_blocks": core.num_gpu_blocks,
                "max_num_seqs": core.max_num_seqs,
                "max_num_batched_tokens": core.max_num_batched_tokens,
                "enable_prefix_caching": core.enable_prefix_caching,
                "enable_chunked_prefill": core.chunked_prefill,
                "policy": core.policy,
                "async_scheduling": core.async_scheduling,
                "hardware": fingerprint.device,
                "model_config": plain,
                "fingerprint": fingerprint,
                **settings,
            },
            EngineConfig,
            from_attributes=True,
        )
        for place, core in enumerate(meta.engine_core)
    ]


def _request_events(line: _Request, deployment: str, block_tokens: int, clock: _Clock) -> Iterator[RequestRecord]:
    arrived_us = clock.us(line.t_arr)
    hashes = _block_hashes(line, block_tokens)
    engine = str(line.inst)
    yield RequestArrived(
        deployment=deployment,
        request_id=line.rid,
        at_us=arrived_us,
        engine=engine,
        isl_tokens=line.n_prompt,
        block_hashes=hashes,
        hash_block_tokens=block_tokens if hashes else 0,
    )
    ended = line.t_last if line.t_last is not None else line.t_done
    ended_us = arrived_us if ended is None else clock.us(ended)
    if line.status != _HTTP_OK:
        yield RequestRejected(
            deployment=deployment,
            request_id=line.rid,
            at_us=ended_us,
            engine=engine,
            arrived_us=arrived_us,
            isl_tokens=line.n_prompt,
            http_status=line.status,
        )
    elif line.n_tok == 0 or line.t_last is None:
        # The status line was sent before the request failed: its chunk times are those of an error text.
        yield RequestAborted(
            deployment=deployment,
            request_id=line.rid,
            at_us=ended_us,
            engine=engine,
            arrived_us=arrived_us,
            isl_tokens=line.n_prompt,
            reason="no_output",
        )
    else:
        yield RequestFinished(
            deployment=deployment,
            request_id=line.rid,
            at_us=ended_us,
            engine=engine,
            arrived_us=arrived_us,
            isl_tokens=line.n_prompt,
            osl_tokens=line.n_tok,
            first_token_us=clock.maybe_us(line.t_first),
            engine_queued_us=clock.maybe_us(line.eng_queued),
            engine_scheduled_us=clock.maybe_us(line.eng_sched),
            engine_first_token_us=clock.maybe_us(line.eng_first),
            engine_last_token_us=clock.maybe_us(line.eng_last),
            cached_tokens=line.cached_tok,
            preemptions=line.preempt,
            block_hashes=hashes,
            hash_block_tokens=block_tokens if hashes else 0,
        )


def _block_hashes(line: _Request, block_tokens: int) -> tuple[int, ...]:
    """Names of the prompt's full blocks: equal for requests that share a pool's prefix, unique beyond it."""
    if line.pool < 0:
        return ()
    shared_blocks = line.shared // block_tokens
    return tuple(
        _hash(f"pool {line.pool} {block}" if block < shared_blocks else f"{line.rid} {block}")
        for block in range(line.n_prompt // block_tokens)
    )


def _hash(text: str) -> int:
    """53 bits, so that readers with float numbers keep it exact."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 11


def _step_batches(
    file: Path, deployment: str, names: dict[int, str], engines: list[EngineConfig], clock: _Clock
) -> Iterator[StepBatch]:
    by_engine: dict[int, list[Step]] = {}
    for number, data in read_lines(file):
        where = f"{file} line {number}"
        line = _decode(data, _Step, where)
        if not 0 <= line.inst < len(engines):
            raise ConfigError(f"{where}: inst {line.inst} but meta.json lists {len(engines)} engines")
        by_engine.setdefault(line.inst, []).append(_step(line, names, engines[line.inst], clock, where))
    for inst, steps in sorted(by_engine.items()):
        yield from batched_steps(deployment, str(inst), steps)


def _step(line: _Step, names: dict[int, str], engine: EngineConfig, clock: _Clock, where: str) -> Step:
    try:
        rows = tuple(
            StepRow(names.get(i, f"i{i}"), _ROW_KINDS[kind], tokens, computed)
            for i, kind, tokens, computed in line.batch
        )
    except KeyError as error:
        raise ConfigError(f"{where}: batch kind {error} is unknown; expected one of {', '.join(_ROW_KINDS)}") from error
    start_us = clock.us(line.t0)
    return Step(
        step=line.step,
        start_us=start_us,
        duration_us=max(0, clock.us(line.t1) - start_us),
        prefill_requests=line.pre_reqs,
        prefill_tokens=line.pre_tok,
        prefill_context_tokens=sum(row.computed_tokens for row in rows if row.kind != "decode"),
        prefill_attention_pairs=line.pre_attn,
        decode_requests=line.dec_reqs,
        decode_context_tokens=line.dec_ctx,
        waiting=line.wait,
        running=line.run,
        kv_used_blocks=max(0, engine.kv_blocks - engine.reserved_blocks - line.kv_free),
        cached_tokens=line.hit_tok,
        preempted=tuple(names.get(i, f"i{i}") for i in line.preempted),
        finished_requests=line.done,
        schedule_us=round(line.sched_ms * 1000),
        execute_us=round(line.exec_ms * 1000),
        update_us=round(line.upd_ms * 1000),
        rows=rows,
    )


def _stats_events(file: Path, deployment: str, clock: _Clock) -> Iterator[Event]:
    ports: dict[int, int] = {}
    for number, data in read_lines(file):
        page = _decode(data, _Page, f"{file} line {number}")
        engine = str(ports.setdefault(page.port, len(ports)))
        for record in engine_stats(parse_scrape(page.lines).samples, deployment, engine, clock.us(page.t)):
            yield event_of(record)
