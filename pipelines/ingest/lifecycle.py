"""A request of a trace or result file as its life-cycle records. Does not read files.

Laws: a request arrives once and ends once; without tokens or after an error its end is an abort and gives no latency;
where the source tells no end, the end is not timed (`timed=False`) and equals the arrival.
"""

from dataclasses import dataclass

from pipelines.ingest.times import RowError
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRecord

MAX_ID = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a row tells of one request. Durations are microseconds from arrival; None where the row does not tell."""

    deployment: str
    request_id: str
    arrived_us: int
    isl_tokens: int
    osl_tokens: int
    ttft_us: int | None = None
    e2e_us: int | None = None
    engine: str = ""
    traffic_class: str = ""
    session_id: str = ""
    block_hashes: tuple[int, ...] = ()
    hash_block_tokens: int = 0
    error: str = ""
    queued_us: int | None = None
    scheduled_us: int | None = None
    engine_first_us: int | None = None
    engine_last_us: int | None = None
    cached_tokens: int | None = None


def life_records(life: Life, *, arrives: bool = True) -> tuple[RequestRecord, ...]:
    """The arrival (if it is known when) and the end. Raises RowError if they contradict each other."""
    if not 0 < len(life.request_id) <= MAX_ID or not 0 < len(life.deployment) <= MAX_ID:
        raise RowError("request_id", "out_of_range", f"names must have 1 to {MAX_ID} characters")
    end = _end(life)
    if not arrives:
        return (end,)
    arrived = RequestArrived(
        deployment=life.deployment,
        request_id=life.request_id,
        at_us=life.arrived_us,
        engine=life.engine,
        traffic_class=life.traffic_class,
        isl_tokens=life.isl_tokens,
        session_id=life.session_id,
        block_hashes=life.block_hashes,
        hash_block_tokens=life.hash_block_tokens,
    )
    return (arrived, end)


def _end(life: Life) -> RequestRecord:
    if life.e2e_us is not None and life.ttft_us is not None and life.ttft_us > life.e2e_us:
        raise RowError("ttft", "negative_duration", f"first token {life.ttft_us - life.e2e_us} us after the last one")
    ended_us = life.arrived_us + (life.e2e_us or 0)
    if life.error or life.osl_tokens == 0:
        return RequestAborted(
            deployment=life.deployment,
            request_id=life.request_id,
            at_us=ended_us,
            engine=life.engine,
            traffic_class=life.traffic_class,
            arrived_us=life.arrived_us,
            isl_tokens=life.isl_tokens,
            osl_tokens=life.osl_tokens,
            reason=(life.error or "no_output")[:MAX_ID],
        )
    timed = life.e2e_us is not None and life.e2e_us > 0
    return RequestFinished(
        deployment=life.deployment,
        request_id=life.request_id,
        at_us=ended_us,
        engine=life.engine,
        traffic_class=life.traffic_class,
        arrived_us=life.arrived_us,
        isl_tokens=life.isl_tokens,
        osl_tokens=life.osl_tokens,
        first_token_us=None if life.ttft_us is None or not timed else life.arrived_us + life.ttft_us,
        engine_queued_us=life.queued_us,
        engine_scheduled_us=life.scheduled_us,
        engine_first_token_us=life.engine_first_us,
        engine_last_token_us=life.engine_last_us,
        cached_tokens=life.cached_tokens,
        block_hashes=life.block_hashes,
        hash_block_tokens=life.hash_block_tokens,
        timed=timed,
    )
