"""Random streams: one per (root seed, deployment, as_of, subsystem, replication), independent of each other.

Law: a stream depends on nothing but its five names, so adding replications, scenarios or candidates changes no draw.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


@dataclass(frozen=True, slots=True)
class Streams:
    """Names of all streams of one forecast."""

    root_seed: int
    deployment: str
    as_of_us: int

    def key(self, subsystem: str, replication: int) -> int:
        """128-bit key of one stream.

        >>> Streams(1, "d", 2).key("arrivals", 0) == Streams(1, "d", 2).key("arrivals", 1)
        False
        """
        names = f"{self.root_seed}\x1f{self.deployment}\x1f{self.as_of_us}\x1f{subsystem}\x1f{replication}"
        return int.from_bytes(blake2b(names.encode(), digest_size=16).digest(), "little")

    def generator(self, subsystem: str, replication: int) -> np.random.Generator:
        """A counter-based generator at the start of that stream."""
        return np.random.Generator(np.random.Philox(key=self.key(subsystem, replication)))
