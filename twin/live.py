"""The live state of one engine's requests, folded from events and step rows: who waits, who runs, how far.

Does not know output lengths of unfinished requests, nor time beyond the last event. Laws: a request is in exactly one
of waiting and running; `computed_tokens` never exceeds known tokens; finishing or aborting removes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from schemas.requests import RequestArrived
from schemas.steps import Step, StepRow

MAX_LIVE_REQUESTS = 50_000
_SCHEDULED = attrgetter("decode_requests", "prefill_requests", "rows", "preempted")
_ONLY_DECODES = [0, (), ()]


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
        """Fold steps in order, the same as `apply_step` of each; decodes that follow each other go together."""
        for (decode_requests, *others), group in groupby(steps, _SCHEDULED):
            alike = list(group)
            for step in alike if others != _ONLY_DECODES else alike[:1]:
                self.apply_step(step)
            if others == _ONLY_DECODES and len(alike) > 1:
                self._decode_on(decode_requests, alike[1:])

    def _decode_on(self, decode_requests: int, steps: Sequence[Step]) -> None:
        """Fold steps that schedule what the step before them did: that many decodes and nothing else."""
        ready = [request for request in self.running.values() if _is_decoding(request)]
        for request in ready[:decode_requests]:
            request.computed_tokens += len(steps)
            request.generated_tokens += len(steps)
            if request.first_token_us is None:
                request.first_token_us = steps[0].at_us
        self.kv_used_blocks = steps[-1].kv_used_blocks
        self.last_step_end_us = max(self.last_step_end_us, max([step.at_us for step in steps]))

    def apply_step(self, step: Step) -> None:
        """Fold one step. Rows give the exact progress; counts alone give it first come, first served."""
        self.kv_used_blocks = step.kv_used_blocks
        self.last_step_end_us = max(self.last_step_end_us, step.at_us)
        for request_id in reversed(step.preempted):
            self._preempt(request_id)
        for row in step.rows if step.rows else self._rows_from_counts(step):
            self._advance(row, step)
        if step.rows and step.running is not None and len(step.rows) == step.running < len(self.running):
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

    def _advance(self, row: StepRow, step: Step) -> None:
        request = self.running.get(row.request_id)
        if request is None:
            request = self.waiting.pop(row.request_id, None)
            if request is None:
                return  # its arrival is unknown: the recording began in its middle
            self.running[row.request_id] = request
            if request.scheduled_us is None:
                request.scheduled_us = step.start_us
        request.computed_tokens = row.computed_tokens + row.tokens
        if request.computed_tokens >= request.isl_tokens + request.generated_tokens - (row.kind == "decode"):
            request.generated_tokens += 1
            if request.first_token_us is None:
                request.first_token_us = step.at_us

    def _rows_from_counts(self, step: Step) -> Iterable[StepRow]:
        """Rows as they must have been: decodes in order, then prefill tokens to running, then to waiting requests."""
        ready = [request for request in self.running.values() if _is_decoding(request)]
        behind = [request for request in self.running.values() if not _is_decoding(request)]
        while len(ready) < step.decode_requests and behind:  # its prefix was cached, which counts do not tell
            request = behind.pop(0)
            request.generated_tokens += 1  # its prefill ended in an earlier step, and that gave a token
            request.computed_tokens = _known_tokens(request) - 1
            ready.append(request)
        for request in ready[: step.decode_requests]:
            yield StepRow(request.request_id, "decode", 1, request.computed_tokens)
        tokens_left, cached_left = step.prefill_tokens, step.cached_tokens
        for request in (behind + list(self.waiting.values()))[: step.prefill_requests]:
            known = _known_tokens(request)
            is_new = request.request_id in self.waiting
            cached = min(cached_left, known - 1) if is_new else 0
            cached_left -= cached
            start = cached if is_new else request.computed_tokens
            tokens = min(tokens_left, known - start)
            tokens_left -= tokens
            yield StepRow(request.request_id, "first" if is_new else "chunk", tokens, start)

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
