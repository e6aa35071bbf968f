"""Which partition a key or deployment lives in: murmur2 as Kafka's default partitioner computes it. Sends nothing.

Law: equal to Kafka's own for every key, so that producers of others that use the default partitioner agree with us.
"""

from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65_536)
def partition_of(key: str | bytes, partitions: int) -> int:
    """Partition of a deployment or any other key among `partitions` > 0.

    References: org.apache.kafka.common.utils.Utils.murmur2, Apache-2.0.

    >>> partition_of("llama-70b", 8), partition_of(b"llama-70b", 8)
    (1, 1)
    """
    data = key.encode() if isinstance(key, str) else key
    return (_murmur2(data) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    h = (_SEED ^ len(data)) & _MASK
    end = len(data) & ~3
    for i in range(0, end, 4):
        k = (int.from_bytes(data[i : i + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[end:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)
