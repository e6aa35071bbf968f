"""Queues, KV blocks and busy time of a deployment's engines over time, from their steps or from counts between them.

Sums over engines, the fullest one for KV. Law: a bucket tells what its own records and those before told; one that no
engine told of has no row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.board import US_PER_S
from pipelines.web.series import Rows
from schemas.engines import EngineConfig
from schemas.steps import EngineStats, Step

BUCKET_US = 2 * US_PER_S
MAX_BUCKETS = 1_800
MAX_ENGINES = 1_024
OPEN_BUCKETS = 4
"""Buckets that may still get records: engines tell of themselves in turns."""


class EngineSeries:
    """One deployment. `rows`: waiting, running (requests), KV ratio, busy ratio, saturated ratio (None: not told)."""

    def __init__(self) -> None:
        self.rows = Rows(MAX_BUCKETS)
        self._kv_blocks: dict[str, int] = {}
        self._last: dict[str, _Counts] = {}
        self._open: dict[int, _Bucket] = {}
        self._newest = 0

    @property
    def engines(self) -> int:
        """How many told of themselves."""
        return len(self._last)

    def on_config(self, config: EngineConfig) -> None:
        """Learn how many blocks an engine has, or that it is gone."""
        if config.removed:
            self._last.pop(config.engine, None)
            self._kv_blocks.pop(config.engine, None)
        elif len(self._kv_blocks) < MAX_ENGINES:
            self._kv_blocks[config.engine] = max(config.kv_blocks - config.reserved_blocks, 1)

    def on_steps(self, engine: str, steps: Sequence[Step]) -> None:
        """Steps of one engine, in order."""
        for step in steps:
            bucket = self._bucket(step.at_us)
            if bucket is not None:
                bucket.busy_us = (bucket.busy_us or 0) + step.duration_us
                bucket.saturated_us += step.duration_us if step.waiting else 0
                used, blocks = step.kv_used_blocks, self._kv_blocks.get(engine)
                kv_ratio = min(used / blocks, 1.0) if used is not None and blocks else None
                self._tell(bucket, engine, (step.waiting, step.running, kv_ratio))
        self._write()

    def on_stats(self, stats: EngineStats) -> None:
        """Counts of one engine at one moment."""
        bucket = self._bucket(stats.at_us)
        if bucket is not None:
            self._tell(bucket, stats.engine, (stats.waiting, stats.running, stats.kv_used_ratio))
        self._write()

    def _bucket(self, at_us: int) -> "_Bucket | None":
        """The bucket of a time; None for one that was closed."""
        number = at_us // BUCKET_US
        self._newest = max(self._newest, number)
        if number <= self._newest - OPEN_BUCKETS:
            return None
        return self._open.setdefault(number, _Bucket())

    def _tell(self, bucket: "_Bucket", engine: str, counts: "_Counts") -> None:
        before = self._last.get(engine)
        if before is None:
            if len(self._last) >= MAX_ENGINES:
                return
            before = (None, None, None)
        waiting, running, kv_ratio = (old if new is None else new for new, old in zip(counts, before, strict=True))
        self._last[engine] = (waiting, running, kv_ratio)  # type: ignore[assignment]
        bucket.waiting, bucket.running = (
            _sum(each[0] for each in self._last.values()),
            _sum(each[1] for each in self._last.values()),
        )
        bucket.kv_ratio = max((each[2] for each in self._last.values() if each[2] is not None), default=None)

    def _write(self) -> None:
        """Rows of the open buckets; one that still fills tells no share of its time."""
        for number in sorted(self._open):
            bucket = self._open[number]
            busy = saturated = None
            if bucket.busy_us is not None and number < self._newest:
                busy = round(min(bucket.busy_us / (BUCKET_US * max(len(self._last), 1)), 1.0), 3)
                saturated = round(min(bucket.saturated_us / max(bucket.busy_us, 1), 1.0), 3)
            kv_ratio = None if bucket.kv_ratio is None else round(bucket.kv_ratio, 4)
            self.rows.put(number * BUCKET_US, (bucket.waiting, bucket.running, kv_ratio, busy, saturated))
            if number <= self._newest - OPEN_BUCKETS:
                del self._open[number]


_Counts = tuple[int | None, int | None, float | None]
"""Waiting, running and the KV ratio of one engine."""


@dataclass(slots=True)
class _Bucket:
    waiting: int | None = None
    running: int | None = None
    kv_ratio: float | None = None
    busy_us: int | None = None
    saturated_us: int = 0


def _sum(values: Iterable[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None
