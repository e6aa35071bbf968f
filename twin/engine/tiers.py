"""KV tiers behind an engine's own blocks (host memory, disk, a remote store): what they hold, how long loads take.

As vLLM's OffloadingConnector and LMCache do it: every full block of a request goes to every tier when its step ends,
those it started from included, so the least recently used is the oldest written, and goes when a tier is full. Writing
is hidden behind computing and costs nothing here; a tier is empty when the window starts. Decides nothing.
Law: a tier holds at most its capacity, and its loads come one after the other.

References: vLLM, vllm/v1/kv_offload/ and vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

import msgspec

from schemas.engines import EngineConfig, KvTier
from twin.cost.frozen import PS_PER_S
from twin.cost.prior import engine_graph
from twin.engine.request import Request
from twin.engine.types import LATEST_PS


class Tier:
    """Keys of blocks, least recently used first."""

    __slots__ = ("_keys", "block_ps", "capacity_blocks", "free_ps", "overlapped")

    def __init__(self, tier: KvTier, block_bytes: float) -> None:
        self.capacity_blocks = tier.capacity_blocks
        self.overlapped = tier.overlapped
        self.block_ps = round(block_bytes / tier.load_bytes_per_s * PS_PER_S)
        # When the loads that were asked for are through.
        self.free_ps = 0
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def keep(self, keys: Sequence[int]) -> None:
        """Write these, the first of them last, so that the tail of a prefix goes before its head."""
        for key in reversed(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self.capacity_blocks:
            self._keys.popitem(last=False)


class Tiers:
    """All tiers of an engine, fastest first as its record lists them."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tiers

    def find(self, keys: Iterable[int]) -> list[int]:
        """Where each block of the longest run from the first key on is: its tier."""
        found: list[int] = []
        for key in keys:
            at = next((i for i, tier in enumerate(self.tiers) if key in tier), -1)
            if at < 0:
                break
            found.append(at)
        return found

    def keep(self, keys: Sequence[int]) -> None:
        """Write these blocks to every tier."""
        for tier in self.tiers:
            tier.keep(keys)

    def overlapped(self, found: Sequence[int]) -> list[int]:
        """Those loaded beside other requests' steps, before the request's own."""
        return [at for at in found if self.tiers[at].overlapped]

    def stall_ps(self, found: Sequence[int]) -> int:
        """How much longer the step lasts in which the others are loaded."""
        return sum(self.tiers[at].block_ps for at in found if not self.tiers[at].overlapped)

    def load_until_ps(self, found: Sequence[int], now: int) -> int:
        """Ask for the overlapped ones, now; when the last of them is here. Each tier is busy that long."""
        ready = now
        for i, tier in enumerate(self.tiers):
            if tier.overlapped and i in found:
                tier.free_ps = max(tier.free_ps, now) + tier.block_ps * found.count(i)
                ready = max(ready, tier.free_ps)
        return ready


class Loads:
    """Loads under way, by the time at which they are through."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._begun = 0

    def begin(self, request: Request, ready_ps: int) -> None:
        """One more."""
        heappush(self._heap, (ready_ps, self._begun, request))
        self._begun += 1

    @property
    def next_ps(self) -> int:
        """When the next one is through; LATEST_PS if there is none."""
        return self._heap[0][0] if self._heap else LATEST_PS

    def through(self, now: int) -> list[Request]:
        """Take those that are through by now."""
        done = []
        while self.next_ps <= now:
            done.append(heappop(self._heap)[2])
        return done


def tiers_of(config: EngineConfig) -> Tiers | None:
    """The tiers of an engine record, empty; None if it has none.

    A tier's rate is that of the whole engine, so a block's bytes are those of all its devices together.
    Raises ValueError if a rate is 0 or the size of a block is not known.
    """
    if not config.kv_tiers:
        return None
    for i, tier in enumerate(config.kv_tiers):
        if not tier.load_bytes_per_s > 0:
            raise ValueError(
                f"engine {config.engine!r}: kv_tiers[{i}].load_bytes_per_s must be > 0, got {tier.load_bytes_per_s};"
                " leave out a tier that is never read"
            )
    whole = msgspec.structs.replace(config, tensor_parallel=1, pipeline_parallel=1, expert_parallel=1)
    try:
        block_bytes = engine_graph(whole).kv_bytes_per_token * config.block_size_tokens
    except ValueError as error:
        raise ValueError(
            f"engine {config.engine!r}: kv_tiers need model_config, which says how large a KV block is: {error}"
        ) from error
    return Tiers([Tier(tier, block_bytes) for tier in config.kv_tiers])
