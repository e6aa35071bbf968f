"""Life-cycle events folded into one table of known requests, in order of arrival. Simulates nothing.

For looking back: ends are known. A request whose output length nobody told (refused, aborted, still open) gets one
drawn from those that finished, given how far it came. Laws: every request that arrived is one row; what was not told
is NaN or -1, never 0; the same events give the same table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from schemas.engines import EngineConfig
from schemas.requests import RequestAborted, RequestArrived, RequestFinished, RequestRecord, RequestRejected
from twin.metrics import FloatArray, IntArray
from twin.replicate import most_tokens
from twin.traffic.draw import Arrivals
from twin.traffic.lengths import OutputLengths
from twin.traffic.streams import Streams

US_PER_S = 1_000_000
NOT_TOLD = -1
SEED = 20_260_101

RequestEnd = RequestFinished | RequestRejected | RequestAborted


class End(IntEnum):
    """How a request was recorded to end. `OPEN`: not by the end of the recording."""

    FINISHED = 0
    REJECTED = 1
    ABORTED = 2
    OPEN = 3


@dataclass(frozen=True, slots=True, eq=False)
class KnownRequests:
    """n requests, rising by arrival; times are seconds from `t0_us`, NaN where not told; arrays of n.

    `osl_tokens` is the recorded length where `end` is FINISHED, else drawn. `first_s` and `last_s` are tokens at the
    client; `queued_s`, `engine_first_s`, `engine_last_s` the engine's own stamps. `preemptions` and `cached_tokens` are
    -1 where not told. `engine` names the engine that served each (empty: not told).
    """

    t0_us: int
    ids: tuple[str, ...]
    engine: tuple[str, ...]
    arrivals: Arrivals
    end: IntArray
    first_s: FloatArray
    last_s: FloatArray
    queued_s: FloatArray
    engine_first_s: FloatArray
    engine_last_s: FloatArray
    preemptions: IntArray
    cached_tokens: IntArray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def arrived_s(self) -> FloatArray:
        """Arrival at the frontend."""
        return self.arrivals.arrived_s

    @property
    def isl_tokens(self) -> IntArray:
        """Prompt lengths."""
        return self.arrivals.isl_tokens

    @property
    def osl_tokens(self) -> IntArray:
        """Output lengths."""
        return self.arrivals.osl_tokens

    @property
    def has_engine_stamps(self) -> bool:
        """Whether most finished requests tell when the engine queued them and gave the first and the last token."""
        stamps = self.queued_s + self.engine_first_s + self.engine_last_s
        done = self.end == End.FINISHED
        return bool(done.any() and np.isfinite(stamps[done]).mean() > 0.5)

    @property
    def has_client_times(self) -> bool:
        """Whether most finished requests tell when the client had the first and the last token."""
        done = self.end == End.FINISHED
        return bool(done.any() and np.isfinite(self.first_s[done] + self.last_s[done]).mean() > 0.5)


def known_requests(records: Iterable[RequestRecord], t0_us: int) -> KnownRequests:
    """The table of one deployment's events, in any order.

    Raises ValueError if there is no request, or none that finished and so tells an output length.
    """
    arrived, ended = _by_request(records)
    rows = sorted(_rows(arrived, ended), key=lambda row: row.arrived_us)
    if not rows:
        raise ValueError("there are no requests that tell when they arrived and how long their prompt is")
    end = np.array([_end_of(row.end) for row in rows], np.int64)
    if not (end == End.FINISHED).any():
        raise ValueError(f"none of {len(rows)} requests tells its osl_tokens: nothing finished")
    finished = [row.end if isinstance(row.end, RequestFinished) else None for row in rows]
    timed = [done if done is not None and done.timed else None for done in finished]
    return KnownRequests(
        t0_us=t0_us,
        ids=tuple(row.request_id for row in rows),
        engine=tuple(row.engine for row in rows),
        arrivals=_arrivals(rows, end, t0_us),
        end=end,
        first_s=_times(timed, "first_token_us", t0_us),
        last_s=_times(timed, "at_us", t0_us),
        queued_s=_times(timed, "engine_queued_us", t0_us),
        engine_first_s=_times(timed, "engine_first_token_us", t0_us),
        engine_last_s=_times(timed, "engine_last_token_us", t0_us),
        preemptions=_counts(finished, "preemptions"),
        cached_tokens=_counts(finished, "cached_tokens"),
    )


def require_fit(requests: KnownRequests, configs: Sequence[EngineConfig]) -> None:
    """Raise ValueError, naming request and field, if one of them could not be served by one of the engines.

    Or if engines do one half of the work and none does the other.
    """
    roles = {config.role for config in configs} - {"both"}
    if len(roles) == 1:
        one = next(config for config in configs if config.role in roles)
        other = "decode" if one.role == "prefill" else "prefill"
        raise ValueError(
            f"engine {one.engine!r} has role {one.role!r} and none has {other!r}; add one, or set role=both"
        )
    for config in configs:
        usable = config.kv_blocks - config.reserved_blocks
        if usable < 1:
            raise ValueError(
                f"engine {config.engine!r} has no usable KV block: kv_blocks {config.kv_blocks},"
                f" reserved_blocks {config.reserved_blocks}; raise kv_blocks"
            )
        # A drawn length is cut to what the engine can hold; a told one is not.
        osl_tokens = np.where(requests.end == End.FINISHED, requests.osl_tokens, 1)
        worst = int(np.argmax(requests.isl_tokens + osl_tokens))
        isl, osl = int(requests.isl_tokens[worst]), int(osl_tokens[worst])
        if isl + osl <= most_tokens(config):
            continue
        needed = -(-(isl + osl - 1) // config.block_size_tokens)
        who = f"request {requests.ids[worst]!r} (isl_tokens {isl}, osl_tokens {osl})"
        if needed > usable:
            raise ValueError(
                f"{who} needs {needed} KV blocks but engine {config.engine!r} has {usable};"
                " raise kv_blocks or leave the request out"
            )
        longest = config.max_model_len_tokens
        field = "max_model_len_tokens" if longest is not None and isl + osl > longest else "max_num_batched_tokens"
        raise ValueError(
            f"{who} is longer than {field} {getattr(config, field)} of engine {config.engine!r} allows; raise it"
        )


@dataclass(frozen=True, slots=True)
class _Row:
    request_id: str
    arrived_us: int
    isl_tokens: int
    priority: int
    engine: str
    hashes: tuple[int, ...]
    hash_block_tokens: int
    end: RequestEnd | None


def _by_request(records: Iterable[RequestRecord]) -> tuple[dict[str, RequestArrived], dict[str, RequestEnd]]:
    arrived: dict[str, RequestArrived] = {}
    ended: dict[str, RequestEnd] = {}
    for record in records:
        if isinstance(record, RequestArrived):
            arrived.setdefault(record.request_id, record)
        else:
            ended.setdefault(record.request_id, record)
    return arrived, ended


def _rows(arrived: dict[str, RequestArrived], ended: dict[str, RequestEnd]) -> Iterable[_Row]:
    for request_id in dict.fromkeys((*arrived, *ended)):
        start, end = arrived.get(request_id), ended.get(request_id)
        told = start if start is not None else end
        arrived_us = start.at_us if start is not None else getattr(end, "arrived_us", None)
        isl = getattr(told, "isl_tokens", None)
        if arrived_us is None or isl is None or told is None:
            continue  # only the end is told: nobody knows what was asked
        yield _Row(
            request_id=request_id,
            arrived_us=arrived_us,
            isl_tokens=max(isl, 1),
            priority=getattr(told, "priority", 0),
            engine=(end.engine if end is not None else "") or told.engine,
            hashes=getattr(told, "block_hashes", ()),
            hash_block_tokens=getattr(told, "hash_block_tokens", 0),
            end=end,
        )


def _end_of(end: RequestEnd | None) -> End:
    if end is None:
        return End.OPEN
    if isinstance(end, RequestFinished):
        return End.FINISHED
    return End.REJECTED if isinstance(end, RequestRejected) else End.ABORTED


def _arrivals(rows: Sequence[_Row], end: IntArray, t0_us: int) -> Arrivals:
    told = np.array([getattr(row.end, "osl_tokens", 0) for row in rows], np.int64)
    done = end == End.FINISHED
    osl = np.maximum(told, 1)
    if not done.all():
        uniform = Streams(SEED, "known requests", t0_us).generator("output lengths", 0).random(len(rows))
        drawn = OutputLengths.fit(osl, done).draw(np.where(done, 0, told), uniform)
        osl = np.where(done, osl, np.minimum(drawn, osl[done].max()))
    block = max((row.hash_block_tokens for row in rows), default=0)
    hashes = [row.hashes if row.hash_block_tokens == block else () for row in rows]
    return Arrivals.of_one(
        arrived_s=np.array([(row.arrived_us - t0_us) / US_PER_S for row in rows]),
        isl_tokens=np.array([row.isl_tokens for row in rows], np.int64),
        osl_tokens=osl,
        priority=np.array([row.priority for row in rows], np.int64),
        block_hashes=hashes if block else None,
        hash_block_tokens=block,
    )


def _times(finished: Sequence[RequestFinished | None], name: str, t0_us: int) -> FloatArray:
    """One stamp of each request, seconds; NaN where it is not told."""
    stamps_us = [None if done is None else getattr(done, name) for done in finished]
    return np.array([np.nan if stamp is None else (stamp - t0_us) / US_PER_S for stamp in stamps_us])


def _counts(finished: Sequence[RequestFinished | None], name: str) -> IntArray:
    values = [None if done is None else getattr(done, name) for done in finished]
    return np.array([NOT_TOLD if value is None else value for value in values], np.int64)
