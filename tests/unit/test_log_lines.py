"""Log lines: a message that repeats fills no disk, and says how often it was left out."""

import logging

from pipelines.logs import RateLimit


def record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("twincast", level, __file__, 1, text, (), None)


def test_after_a_burst_the_rest_of_a_window_is_counted_and_told() -> None:
    now = [0.0]
    limit = RateLimit(burst=3, window_s=10.0, now=lambda: now[0])
    passed = [limit.filter(record("broker away: %s")) for _ in range(10)]
    assert passed == [True] * 3 + [False] * 7
    assert limit.filter(record("another"))
    assert limit.filter(record("broker away: %s", logging.ERROR))
    now[0] = 11.0
    told = record("broker away: %s")
    assert limit.filter(told)
    assert "(7 more like this in between)" in str(told.msg)
