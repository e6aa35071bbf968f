"""All that is known of one engine of a deployment: configuration, costs learned, requests in it. Simulates nothing.

Law: steps are learned in blocks whose bounds follow from event time alone, so that a replay learns the same bytes.
"""

from hashlib import blake2b
from typing import Any

import msgspec

from schemas.engines import EngineConfig
from schemas.steps import Step
from twin.cost.block import StepBlock
from twin.cost.model import Learned, StepCostModel
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup
from twin.live import LiveEngine, LiveRequest
from twin.recent_prefixes import RecentPrefixes
from twin.step_errors import StepErrors

PS_PER_US = 1_000_000
BLOCK_STEPS = 1_024
UNKNOWN_OSL_TOKENS = 1


class EngineRoom:
    """One engine. `config` is None until its record came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: EngineConfig | None = None
        self.live = LiveEngine()
        self.prefixes = RecentPrefixes()
        self.model = StepCostModel()
        self.errors = StepErrors()
        self.has_rows = False
        self.steps_seen = 0
        self._unlearned: list[Step] = []
        self._previous: Step | None = None

    def on_config(self, config: EngineConfig) -> bool:
        """Take a configuration; True if the engine is another one now (its fingerprint changed)."""
        changed = self.config is not None and self.config.fingerprint != config.fingerprint
        self.config = config
        return changed

    def leave(self, request_id: str) -> bool:
        """A request ended; True if it was here. Its prompt's blocks stay in the prefix cache until others need them."""
        request = self.live.leave(request_id)
        if request is not None and request.block_hashes and request.scheduled_us is not None:
            self.prefixes.add(request.block_hashes, self.live.hash_block_tokens)
        return request is not None

    def on_step(self, step: Step) -> list[tuple[StepBlock, Learned]]:
        """Fold a step; learn when a block is full. Returns what was learned."""
        self.live.apply_step(step)
        self.has_rows = self.has_rows or bool(step.rows)
        self.steps_seen += 1
        self._unlearned.append(msgspec.structs.replace(step, rows=(), preempted=()))
        return self.learn() if len(self._unlearned) >= BLOCK_STEPS else []

    def learn(self) -> list[tuple[StepBlock, Learned]]:
        """Learn what has come since the last time."""
        if not self._unlearned:
            return []
        block = StepBlock.from_steps(self._unlearned, previous=self._previous)
        self._previous = self._unlearned[-1]
        self._unlearned = []
        learned = self.model.learn_block(block)
        self.errors.on_block(block, learned)
        return [(block, learned)]

    def setup(self, as_of_us: int, *, available_from_s: float = 0.0) -> EngineSetup | None:
        """The engine as a simulation starts it; None while its configuration is unknown or it is gone."""
        if self.config is None or self.config.removed:
            return None
        size, own_size = self.live.hash_block_tokens, self.config.block_size_tokens
        if not size or (size % own_size and own_size % size):
            size = 0  # no hashes, or of blocks that do not fit into the engine's
        return EngineSetup(
            name=self.name,
            config=self.config,
            cost=self.model.freeze(self.config.max_num_seqs),
            noise=self.model.noise(),
            state=EngineState(
                running=tuple(_carried(r, as_of_us, running=True, hashed=size > 0) for r in self.live.running.values()),
                waiting=tuple(
                    _carried(r, as_of_us, running=False, hashed=size > 0) for r in self.live.waiting.values()
                ),
                cached_hashes=self.prefixes.newest(self.config.kv_blocks) if size else (),
                hash_block_tokens=size,
            ),
            available_from_s=available_from_s,
        )

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "config": None if self.config is None else msgspec.to_builtins(self.config),
            "live": self.live.snapshot(),
            "prefixes": self.prefixes.snapshot(),
            "model": self.model.snapshot(),
            "errors": self.errors.snapshot(),
            "has_rows": self.has_rows,
            "steps_seen": self.steps_seen,
            "unlearned": [msgspec.to_builtins(step) for step in self._unlearned],
            "previous": None if self._previous is None else msgspec.to_builtins(self._previous),
        }

    @classmethod
    def restore(cls, data: dict[str, Any]) -> "EngineRoom":
        """The room of a snapshot."""
        room = cls(data["name"])
        room.config = None if data["config"] is None else msgspec.convert(data["config"], EngineConfig)
        room.live.restore(data["live"])
        room.prefixes.restore(data["prefixes"])
        room.model = StepCostModel.restore(data["model"])
        room.errors = StepErrors.restore(data["errors"])
        room.has_rows, room.steps_seen = data["has_rows"], data["steps_seen"]
        room._unlearned = [msgspec.convert(item, Step) for item in data["unlearned"]]
        room._previous = None if data["previous"] is None else msgspec.convert(data["previous"], Step)
        return room


def costs_hash(rooms: list[EngineRoom]) -> str:
    """16 hex digits of blake2b over all learned costs as they would be frozen now."""
    digest = blake2b(digest_size=8)
    for room in rooms:
        if room.config is not None:
            digest.update(repr(room.model.freeze(room.config.max_num_seqs)).encode())
    return digest.hexdigest()


def _carried(request: LiveRequest, as_of_us: int, *, running: bool, hashed: bool) -> CarriedRequest:
    def ps(at_us: int | None) -> int | None:
        return None if at_us is None else min(at_us - as_of_us, 0) * PS_PER_US

    known = request.isl_tokens + request.generated_tokens
    return CarriedRequest(
        isl_tokens=max(request.isl_tokens, 1),
        osl_tokens=request.generated_tokens + UNKNOWN_OSL_TOKENS,
        arrival_ps=min(request.arrived_us - as_of_us, 0) * PS_PER_US,
        computed_tokens=min(request.computed_tokens, known - 1) if running else 0,
        generated_tokens=request.generated_tokens,
        scheduled_ps=ps(request.scheduled_us),
        first_token_ps=ps(request.first_token_us),
        preemptions=request.preemptions,
        priority=request.priority,
        block_hashes=request.block_hashes if hashed else (),
    )
