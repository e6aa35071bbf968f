"""Kafka's own test vectors for murmur2 (clients' UtilsTest), reduced to partitions."""

import pytest

from pipelines.partitions import partition_of

VECTORS = {  # key: murmur2 as a signed 32-bit integer
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), VECTORS.items())
def test_partitions_are_those_of_kafka(key: str, hashed: int) -> None:
    for partitions in (1, 4, 7, 2**31 - 1):
        assert partition_of(key, partitions) == (hashed & 0x7FFFFFFF) % partitions
