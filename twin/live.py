"""The live state of one engine's requests, folded from events and step rows: who waits, who runs, how far.

Does not know output lengths of unfinished requests, nor time beyond the last event. Laws: a request is in exactly one
of waiting and running; `computed_tokens` never exceeds known tokens; finishing or aborting removes it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

from schemas.requests import RequestArrived
from schemas.steps import Step, StepRow

MAX_LIVE_REQUESTS = 50_000
_SCHEDULED = attrgetter("prefill_requests", "rows", "preempted")
_DECODES_ALONE = (0, (), ())


@dataclass(slots=True)
class LiveRequest:
    """One unfinished request. `generated_tokens` exist already; `computed_tokens` have their KV in the cache."""

    request_id: str
    arrived_us: int
    isl_tokens: int
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    computed_tokens: int = 0
    generated_tokens: int = 0
    scheduled_us: int | None = None
    first_token_us: int | None = None
    preemptions: int = 0


class LiveEngine:
    """Waiting and running requests of one engine, in the scheduler's order, as of the last applied event."""

    def __init__(self) -> None:
        self.waiting: dict[str, LiveRequest] = {}
        self.running: dict[str, LiveRequest] = {}
        self.kv_used_blocks: int | None = None
        self.last_step_end_us = 0
        self.hash_block_tokens = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def arrive(self, event: RequestArrived) -> None:
        """Queue a request. Beyond the bound the oldest waiting one is forgotten: its end was lost."""
        if event.request_id in self.running or event.request_id in self.waiting:
            return
        if len(self.waiting) >= MAX_LIVE_REQUESTS:
            self.waiting.pop(next(iter(self.waiting)))
        if event.block_hashes and event.hash_block_tokens != self.hash_block_tokens:
            self._forget_hashes()  # blocks of another size have other names
            self.hash_block_tokens = event.hash_block_tokens
        self.waiting[event.request_id] = LiveRequest(
            request_id=event.request_id,
            arrived_us=event.at_us,
            isl_tokens=event.isl_tokens,
            priority=event.priority,
            block_hashes=event.block_hashes,
        )

    def _forget_hashes(self) -> None:
        for request in (*self.waiting.values(), *self.running.values()):
            request.block_hashes = ()

    def leave(self, request_id: str) -> LiveRequest | None:
        """Remove a request that ended; None if it was not here."""
        return self.running.pop(request_id, None) or self.waiting.pop(request_id, None)

    def apply_steps(self, steps: Sequence[Step]) -> None:
        """Fold steps in order. Rows give the exact progress; counts alone give it first come, first served."""
        scheduled = list(map(_SCHEDULED, steps))
        begin = 0
        while begin < len(steps):
            end = begin
            while end < len(steps) and scheduled[end] == _DECODES_ALONE:
                end += 1
            if end > begin:
                self._decode(steps[begin:end])
            else:
                end = begin + 1
                self._apply(steps[begin])
            begin = end
        self.kv_used_blocks = steps[-1].kv_used_blocks
        self.last_step_end_us = max(self.last_step_end_us, max([step.start_us + step.duration_us for step in steps]))

    def _apply(self, step: Step) -> None:
        for request_id in reversed(step.preempted):
            self._preempt(request_id)
        if not step.rows:
            self._decode((step,))
            if step.prefill_requests:
                self._prefill(step)
            return
        for row in step.rows:
            self._advance(row, step)
        if step.running is not None and len(step.rows) == step.running < len(self.running):
            scheduled = {row.request_id for row in step.rows}
            for request_id in [known for known in self.running if known not in scheduled]:
                del self.running[request_id]  # it finished in an earlier step; the client's word is still on its way

    def _preempt(self, request_id: str) -> None:
        request = self.running.pop(request_id, None)
        if request is None:
            return
        request.computed_tokens = 0
        request.preemptions += 1
        self.waiting = {request_id: request, **self.waiting}

    def _admit(self, request_id: str, step: Step) -> LiveRequest | None:
        """A waiting request that runs now; None if its arrival is unknown: the recording began in its middle."""
        request = self.waiting.pop(request_id, None)
        if request is not None:
            self.running[request_id] = request
            if request.scheduled_us is None:
                request.scheduled_us = step.start_us
        return request

    def _advance(self, row: StepRow, step: Step) -> None:
        request = self.running.get(row.request_id) or self._admit(row.request_id, step)
        if request is None:
            return
        request.computed_tokens = row.computed_tokens + row.tokens
        if request.computed_tokens >= request.isl_tokens + request.generated_tokens - (row.kind == "decode"):
            request.generated_tokens += 1
            if request.first_token_us is None:
                request.first_token_us = step.at_us

    def _decode(self, steps: Sequence[Step]) -> None:
        """Fold the decodes of steps known by counts: first come, first served; at once if enough are ready."""
        counts = [step.decode_requests for step in steps]
        most = max(counts)
        if not most:
            return
        ready = [request for request in self.running.values() if _is_decoding(request)]
        if len(ready) < most and len(ready) < len(self.running):
            if len(steps) > 1:
                for step in steps:
                    self._decode((step,))
                return
            self._make_ready(ready, most)
        rising = sorted(counts)
        for rank, request in enumerate(ready[:most]):
            tokens = len(counts) - (bisect_right(rising, rank) if rank >= rising[0] else 0)
            request.computed_tokens += tokens
            request.generated_tokens += tokens
            if request.first_token_us is None:
                request.first_token_us = next(step.at_us for step in steps if step.decode_requests > rank)

    def _make_ready(self, ready: list[LiveRequest], wanted: int) -> None:
        """Find more that decode: their prefixes were cached, which counts do not tell."""
        behind = [request for request in self.running.values() if not _is_decoding(request)]
        for request in behind[: wanted - len(ready)]:
            request.generated_tokens += 1  # its prefill ended in an earlier step, and that gave a token
            request.computed_tokens = _known_tokens(request) - 1
            ready.append(request)

    def _prefill(self, step: Step) -> None:
        """Fold the prefill of a step known by counts: tokens go to running, then to waiting requests."""
        tokens_left, cached_left = step.prefill_tokens, step.cached_tokens
        behind = [request for request in self.running.values() if not _is_decoding(request)]
        new = islice(self.waiting.values(), max(step.prefill_requests - len(behind), 0))
        for request in [*behind[: step.prefill_requests], *new]:
            known = _known_tokens(request)
            if request.request_id in self.waiting:
                self._admit(request.request_id, step)
                request.computed_tokens = min(cached_left, known - 1)
                cached_left -= request.computed_tokens
            tokens = min(tokens_left, known - request.computed_tokens)
            tokens_left -= tokens
            request.computed_tokens += tokens
            if request.computed_tokens >= known:
                request.generated_tokens += 1
                if request.first_token_us is None:
                    request.first_token_us = step.at_us

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "waiting": [asdict(request) for request in self.waiting.values()],
            "running": [asdict(request) for request in self.running.values()],
            "kv_used_blocks": self.kv_used_blocks,
            "last_step_end_us": self.last_step_end_us,
            "hash_block_tokens": self.hash_block_tokens,
        }

    def restore(self, data: dict[str, Any]) -> None:
        """Take over what `snapshot` gave."""
        self.waiting = {item["request_id"]: _request(item) for item in data["waiting"]}
        self.running = {item["request_id"]: _request(item) for item in data["running"]}
        self.kv_used_blocks = data["kv_used_blocks"]
        self.last_step_end_us = data["last_step_end_us"]
        self.hash_block_tokens = data["hash_block_tokens"]


def _known_tokens(request: LiveRequest) -> int:
    """Tokens whose KV a (re)started request must compute before it yields its next token."""
    return request.isl_tokens + request.generated_tokens


def _is_decoding(request: LiveRequest) -> bool:
    return request.generated_tokens > 0 and request.computed_tokens >= _known_tokens(request) - 1


def _request(item: dict[str, Any]) -> LiveRequest:
    return LiveRequest(**{**item, "block_hashes": tuple(item["block_hashes"])})
