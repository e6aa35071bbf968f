"""Life-cycle events of requests (`twincast.requests.v1`). `finished` alone suffices; `arrived` sharpens forecasts.

A field exists only from its event's time on: `arrived` carries the prompt, never the output length.
"""

from schemas.base import Count, DurationUs, EventTime, Name, Record, Tokens, Wire


class PrefillChunk(Wire, frozen=True, kw_only=True):
    """One prefill chunk of a request, where the engine tells: which tokens, what the KV cache gave, what it took."""

    sequence: Count = 0
    chunk: Count
    first_token: Tokens
    tokens: Tokens
    hit_tokens: Tokens | None = None
    miss_tokens: Tokens | None = None
    kv_lookup_us: DurationUs | None = None
    kv_load_us: DurationUs | None = None
    kv_write_us: DurationUs | None = None


class RequestEvent(Record, frozen=True, kw_only=True, tag_field="event"):
    """What all events share. `at_us` is the time of the event itself; `engine` is empty before routing."""

    deployment: Name
    request_id: Name
    at_us: EventTime
    engine: str = ""
    traffic_class: str = ""


class RequestArrived(RequestEvent, frozen=True, kw_only=True, tag="arrived"):
    """The request reached the frontend. `block_hashes` name its prompt's blocks of `hash_block_tokens` each."""

    isl_tokens: Tokens
    priority: int = 0
    session_id: str = ""
    block_hashes: tuple[int, ...] = ()
    hash_block_tokens: Count = 0


class RequestFinished(RequestEvent, frozen=True, kw_only=True, tag="finished"):
    """All tokens delivered; `at_us` is the last token as the client saw it.

    `arrived_us` to `first_token_us` is TTFT with queueing included. The four `engine_` stamps are the engine's own
    view: taken from its input queue, first scheduled, first and last token; None where the source does not tell.
    `timed` is False where the source tells lengths but not when the last token came (public traces): then `at_us`
    equals `arrived_us` and no latency may be taken from the record.
    """

    arrived_us: EventTime
    isl_tokens: Tokens
    osl_tokens: Tokens
    first_token_us: EventTime | None = None
    engine_queued_us: EventTime | None = None
    engine_scheduled_us: EventTime | None = None
    engine_first_token_us: EventTime | None = None
    engine_last_token_us: EventTime | None = None
    cached_tokens: Tokens | None = None
    preemptions: Count | None = None
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    hash_block_tokens: Count = 0
    chunks: tuple[PrefillChunk, ...] = ()
    timed: bool = True


class RequestRejected(RequestEvent, frozen=True, kw_only=True, tag="rejected"):
    """Refused by the gateway or a full queue: never admitted, no latency."""

    arrived_us: EventTime | None = None
    isl_tokens: Tokens | None = None
    http_status: Count | None = None
    reason: str = ""


class RequestAborted(RequestEvent, frozen=True, kw_only=True, tag="aborted"):
    """Ended before its last token: client gone, timeout, error. Its times are censored, not latencies."""

    arrived_us: EventTime | None = None
    isl_tokens: Tokens | None = None
    osl_tokens: Tokens = 0
    first_token_us: EventTime | None = None
    reason: str = ""


RequestRecord = RequestArrived | RequestFinished | RequestRejected | RequestAborted
