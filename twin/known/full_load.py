"""What engines do when all requests wait at once: the ceiling, and latencies with a full batch. Knows no rates.

Few requests are repeated until the batch can be seen full. Law: the ceiling does not depend on when the requests were
recorded to arrive, only on their order and sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from twin.engine.cluster_types import KvLink
from twin.engine.types import EngineChoice, Status
from twin.known.chips import ChipUse, chip_use
from twin.known.requests import KnownRequests
from twin.known.run import KnownEngine, KnownRun, run_known
from twin.metrics import FloatArray, IntArray, latencies

FILLING_SHARE = 0.1
"""So many of the requests end before the measuring begins: the batch is full and mixed by then."""
ROUNDS = 30
"""Requests per place in the batches, at least."""
MOST_REQUESTS = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class FullLoad:
    """Measured while the batch was full: requests and output tokens per second; TPOT (float64[m]) of m requests.

    `tpot_s` is NaN for a request of one token.
    """

    requests_per_s: float
    output_tokens_per_s: float
    tpot_s: FloatArray
    preemptions: int
    chips: ChipUse
    run: KnownRun

    @property
    def tokens_per_min_per_chip(self) -> float:
        """Output tokens per minute and device."""
        return self.output_tokens_per_s * 60.0 / self.chips.chips


def full_load(
    engines: Sequence[KnownEngine],
    requests: KnownRequests,
    *,
    link: KvLink | None = None,
    simulator: EngineChoice = "auto",
) -> FullLoad:
    """Serve all requests, in their order, as fast as can be; several engines take turns.

    Limits of the queue are lifted. Raises ValueError as `run_known`.
    """
    plain = [replace(engine, config=_patient(engine)) for engine in engines]
    places = sum(engine.config.max_num_seqs for engine in engines)
    many = repeated(requests, -(-min(ROUNDS * places, MOST_REQUESTS) // len(requests)))
    run = run_known(plain, many, routing="round_robin", arrived_s=np.zeros(len(many)), link=link, simulator=simulator)
    start_s, end_s = _full_span_s(run)
    inside = (run.last_s > start_s) & (run.last_s <= end_s)
    found = latencies(
        arrived_s=np.zeros(len(many)), first_token_s=run.first_s, last_token_s=run.last_s, osl_tokens=many.osl_tokens
    )
    return FullLoad(
        requests_per_s=float(np.count_nonzero(inside)) / (end_s - start_s),
        output_tokens_per_s=float(run.generated_tokens[inside].sum()) / (end_s - start_s),
        tpot_s=found.tpot_s[inside],
        preemptions=int(run.preemptions.sum()),
        chips=chip_use(run, many.isl_tokens),
        run=run,
    )


def repeated(requests: KnownRequests, times: int) -> KnownRequests:
    """The requests `times` over, one round after the other. Blocks that only one request has are new in every round."""
    if times <= 1:
        return requests
    old = requests.arrivals
    n = len(requests)
    values, inverse, counts = np.unique(old.hash_values, return_inverse=True, return_counts=True)
    own = counts[inverse] == 1 if values.size else np.zeros(0, np.bool_)
    rounds = [np.where(own, _renamed(old.hash_values, turn), old.hash_values) for turn in range(times)]
    lengths = np.tile(np.diff(old.hash_offsets), times)
    return KnownRequests(
        t0_us=requests.t0_us,
        ids=requests.ids * times,
        engine=requests.engine * times,
        arrivals=replace(
            old,
            offsets=np.array([0, n * times], np.int64),
            arrived_s=np.tile(old.arrived_s, times),
            isl_tokens=np.tile(old.isl_tokens, times),
            osl_tokens=np.tile(old.osl_tokens, times),
            priority=np.tile(old.priority, times),
            traffic_class=np.tile(old.traffic_class, times),
            hash_offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            hash_values=np.concatenate(rounds),
        ),
        **{
            name: np.tile(getattr(requests, name), times)
            for name in (
                "end",
                "first_s",
                "last_s",
                "queued_s",
                "engine_first_s",
                "engine_last_s",
                "preemptions",
                "cached_tokens",
            )
        },
    )


def _renamed(values: IntArray, turn: int) -> IntArray:
    """Other names, the same in every run; the first round keeps its own."""
    if not turn:
        return values
    named: IntArray = (values.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(turn)).view(np.int64)
    return named


def _patient(engine: KnownEngine) -> EngineConfig:
    return msgspec.structs.replace(engine.config, max_queued_requests=None)


def _full_span_s(run: KnownRun) -> tuple[float, float]:
    """From when the batches have filled to when the first engine has nobody left to admit.

    Of prefill and decode engines only one kind may be full, so there it is the time between early and late ends.
    """
    ended = np.sort(run.last_s[run.status == Status.FINISHED])
    start_s = float(ended[int(FILLING_SHARE * ended.size)])
    if any(engine.config.role != "both" for engine in run.engines):
        end_s = float(ended[int((1.0 - FILLING_SHARE) * (ended.size - 1))])
    else:
        end_s = min(float(np.nanmax(run.scheduled_s[run.engine == place])) for place in range(len(run.engines)))
    return (start_s, end_s) if end_s > start_s else (0.0, float(ended[-1]))
