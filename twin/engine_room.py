"""All that is known of one engine of a deployment: configuration, costs learned, requests in it. Simulates nothing.

Law: steps are learned in blocks whose bounds follow from event time alone, so that a replay learns the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from schemas.engines import EngineConfig
from schemas.requests import RequestFinished
from schemas.steps import EngineStats, Step
from twin.bias import NO_FACTORS, Factors
from twin.cost.block import StepBlock
from twin.cost.frozen import FrozenStepCost, RoleCost
from twin.cost.model import Learned, StepCostModel
from twin.ends.effective_costs import EffectiveCosts, Taught
from twin.ends.presence import Presence
from twin.ends.unseen import counts_then, presence_of
from twin.engine.types import CarriedRequest, EngineState
from twin.job import EngineSetup
from twin.live import LiveEngine, LiveRequest
from twin.recent_prefixes import RecentPrefixes
from twin.step_errors import StepErrors

PS_PER_US = 1_000_000
BLOCK_STEPS = 1_024
UNKNOWN_OSL_TOKENS = 1
MAX_STATS_AGE_US = 30_000_000
_ROWS = attrgetter("rows")


class EngineRoom:
    """One engine. `config` is None until its record came, `ends` once a step record has.

    Without steps, finished requests teach the costs, and who is in the engine is drawn.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.config: EngineConfig | None = None
        self.live = LiveEngine()
        self.prefixes = RecentPrefixes()
        self.prior: FrozenStepCost | None = None
        self.model = StepCostModel()
        self.errors = StepErrors()
        self.ends: EffectiveCosts | None = None
        self.stats: EngineStats | None = None
        self.has_rows = False
        self.steps_seen = 0
        self._unlearned: list[Step] = []
        self._previous: Step | None = None

    def on_config(self, config: EngineConfig) -> bool:
        """Take a configuration; True if the engine is another one now (its fingerprint changed).

        Then learning begins anew, with the costs of the engine before as its prior.
        """
        changed = self.config is not None and self.config.fingerprint != config.fingerprint
        if changed:
            self.learn()  # what waits is of the engine before
            self._previous = None
            self.prior = self.model.freeze(config.max_num_seqs, with_gap=False)
            self.model = StepCostModel(prior=self.prior)
        self.config = config
        return changed

    def take_costs(self, data: Mapping[str, Any]) -> None:
        """Take over the costs, and what they were learned from, of a room's snapshot."""
        self.prior = None if data["prior"] is None else _cost(data["prior"])
        self.model = StepCostModel.restore(data["model"], prior=self.prior)

    def leave(self, request_id: str) -> bool:
        """A request ended; True if it was here. Its prompt's blocks stay in the prefix cache until others need them."""
        request = self.live.leave(request_id)
        if request is not None and request.block_hashes and request.scheduled_us is not None:
            self.prefixes.add(request.block_hashes, self.live.hash_block_tokens)
        return request is not None

    def on_step(self, step: Step) -> list[tuple[StepBlock, Learned]]:
        """`on_steps` of one."""
        return self.on_steps((step,))

    def on_steps(self, steps: Sequence[Step]) -> list[tuple[StepBlock, Learned]]:
        """Fold steps in order; learn when a block is full. Returns what was learned."""
        self.ends = None
        self.live.apply_steps(steps)
        self.has_rows = self.has_rows or any(map(_ROWS, steps))
        self.steps_seen += len(steps)
        found: list[tuple[StepBlock, Learned]] = []
        begin = 0
        while begin < len(steps):
            end = begin + BLOCK_STEPS - len(self._unlearned)
            part = steps[begin:end]
            self._unlearned += map(_without_names, part) if self.has_rows else part
            begin = end
            if len(self._unlearned) >= BLOCK_STEPS:
                found += self.learn()
        return found

    def on_finished(self, event: RequestFinished) -> None:
        """Take a request that this engine has served; of use only where no steps are recorded."""
        if self.steps_seen:
            return
        if self.ends is None:
            self.ends = EffectiveCosts(young=self.model.steps == 0)
        config = self.config or self.ends.limits.config(event.deployment, self.name, event.at_us)
        blocks = config.kv_blocks - config.reserved_blocks if config.enable_prefix_caching else 0
        self.ends.on_finished(event, blocks * config.block_size_tokens)
        if event.block_hashes:
            self.prefixes.add(event.block_hashes, event.hash_block_tokens)

    def learn_ends(self, as_of_us: int) -> list[Taught]:
        """Learn from finished requests what has become certain since the last time."""
        if self.ends is None:
            return []
        budget_tokens = None if self.config is None else self.config.max_num_batched_tokens
        self.model, taught = self.ends.learn(as_of_us, self.model, budget_tokens)
        return taught

    @property
    def ended(self) -> int:
        """Requests taken by `on_finished` that are still of use."""
        return 0 if self.ends is None else len(self.ends.log)

    def ended_since(self, at_us: int) -> int:
        """How many of these became known after `at_us`."""
        return 0 if self.ends is None else self.ends.log.known_since(at_us)

    @property
    def inside(self) -> int | None:
        """Requests in it when it last counted them; None where it does not."""
        if self.stats is None or self.stats.running is None or self.stats.waiting is None:
            return None
        return self.stats.running + self.stats.waiting

    @property
    def limits(self) -> EngineConfig | None:
        """The configuration, or the one to assume where it was not told; None where nothing is known."""
        if self.config is not None or self.ends is None or self.ends.done_us is None:
            return self.config
        return self.ends.limits.config(self.ends.deployment, self.name, self.ends.done_us)

    def learn(self) -> list[tuple[StepBlock, Learned]]:
        """Learn the steps that have come since the last time."""
        if not self._unlearned:
            return []
        block = StepBlock.from_steps(self._unlearned, previous=self._previous)
        self._previous = self._unlearned[-1]
        self._unlearned = []
        learned = self.model.learn_block(block)
        self.errors.on_block(block, learned)
        return [(block, learned)]

    def setup(
        self, as_of_us: int, *, unseen_per_s: float = 0.0, dispersion: float = 1.0, available_from_s: float = 0.0
    ) -> EngineSetup | None:
        """The engine as a simulation starts it; None while nothing is known of its limits, or when it is gone.

        `unseen_per_s` requests arrive that nobody tells of before their end; their counts have `dispersion` times the
        variance of a Poisson count.
        """
        config = self.limits
        if config is None or config.removed:
            return None
        size, own_size = self.live.hash_block_tokens or self.prefixes.block_tokens, config.block_size_tokens
        if not size or (size % own_size and own_size % size):
            size = 0  # no hashes, or of blocks that do not fit into the engine's
        return EngineSetup(
            name=self.name,
            config=config,
            cost=self.model.freeze(config.max_num_seqs),
            noise=self.model.noise(),
            state=EngineState(
                running=tuple(_carried(r, as_of_us, running=True, hashed=size > 0) for r in self.live.running.values()),
                waiting=tuple(
                    _carried(r, as_of_us, running=False, hashed=size > 0) for r in self.live.waiting.values()
                ),
                cached_hashes=self.prefixes.newest(config.kv_blocks) if size else (),
                hash_block_tokens=size,
            ),
            available_from_s=available_from_s,
            presence=self._presence(as_of_us, config, unseen_per_s, dispersion),
        )

    def _presence(self, as_of_us: int, config: EngineConfig, unseen_per_s: float, dispersion: float) -> Presence | None:
        if self.ends is None:
            return None
        table = self.ends.log.table()
        live = (*self.live.running.values(), *self.live.waiting.values())
        told = np.array([(r.arrived_us, r.isl_tokens) for r in live], np.int64).reshape(-1, 2)
        stats, counts = self.stats, None
        if stats is not None and as_of_us - stats.at_us <= MAX_STATS_AGE_US and not len(told):
            tokens = (config.kv_blocks - config.reserved_blocks) * config.block_size_tokens
            used_ratio = stats.kv_used_ratio if self.config is not None else None
            counts = counts_then(table, stats, as_of_us, None if used_ratio is None else used_ratio * tokens)
        return presence_of(table, as_of_us, self.ends.log.lag_us(), unseen_per_s, dispersion, told, counts)

    def snapshot(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "config": None if self.config is None else msgspec.to_builtins(self.config),
            "live": self.live.snapshot(),
            "prefixes": self.prefixes.snapshot(),
            "prior": None if self.prior is None else asdict(self.prior),
            "model": self.model.snapshot(),
            "errors": self.errors.snapshot(),
            "ends": None if self.ends is None else self.ends.snapshot(),
            "stats": None if self.stats is None else msgspec.to_builtins(self.stats),
            "has_rows": self.has_rows,
            "steps_seen": self.steps_seen,
            "unlearned": [msgspec.to_builtins(_without_names(step)) for step in self._unlearned],
            "previous": None if self._previous is None else msgspec.to_builtins(_without_names(self._previous)),
        }

    @classmethod
    def restore(cls, data: dict[str, Any]) -> "EngineRoom":
        """The room of a snapshot."""
        room = cls(data["name"])
        room.config = None if data["config"] is None else msgspec.convert(data["config"], EngineConfig)
        room.live.restore(data["live"])
        room.prefixes.restore(data["prefixes"])
        room.take_costs(data)
        room.errors = StepErrors.restore(data["errors"])
        room.ends = None if data["ends"] is None else EffectiveCosts.restore(data["ends"])
        room.stats = None if data["stats"] is None else msgspec.convert(data["stats"], EngineStats)
        room.has_rows, room.steps_seen = data["has_rows"], data["steps_seen"]
        room._unlearned = [msgspec.convert(item, Step) for item in data["unlearned"]]
        room._previous = None if data["previous"] is None else msgspec.convert(data["previous"], Step)
        return room


def _without_names(step: Step) -> Step:
    """The step as costs are learned from it: what it says of single requests is large, and not needed."""
    return msgspec.structs.replace(step, rows=(), preempted=()) if step.rows or step.preempted else step


def _cost(data: dict[str, Any]) -> FrozenStepCost:
    return FrozenStepCost(
        **{
            role: RoleCost(**{**fields, "decode_requests_ps": tuple(fields["decode_requests_ps"])})
            for role, fields in data.items()
        }
    )


def costs_hash(rooms: list[EngineRoom], factors: Factors = NO_FACTORS) -> str:
    """16 hex digits of blake2b over all learned costs as they would be frozen now, and their factors."""
    digest = blake2b(b"" if factors == NO_FACTORS else repr(factors).encode(), digest_size=8)
    for room in rooms:
        config = room.limits
        if config is not None:
            digest.update(repr(room.model.freeze(config.max_num_seqs)).encode())
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
