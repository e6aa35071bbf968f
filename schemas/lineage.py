"""Where an output comes from: enough to make the same bytes again. Holds no processing time."""

from schemas.base import Count, Name, Wire


class Offset(Wire, frozen=True, kw_only=True):
    """Offsets are the next one to read: all units below `next_offset` are in the state."""

    topic: Name
    partition: Count
    next_offset: Count


class Lineage(Wire, frozen=True, kw_only=True):
    """`settings_hash` and `costs_hash` are blake2b digests; `seed` is the root of every random stream."""

    twincast_version: str
    settings_hash: str
    costs_hash: str
    seed: int
    replications: Count
    engine: str
    offsets: tuple[Offset, ...] = ()
    steps_learned: Count = 0
