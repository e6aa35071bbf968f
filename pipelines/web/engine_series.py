"""Queues, KV blocks and busy time of a deployment's engines over time, from their steps or from counts between them.

Means over two seconds; sums over engines, the fullest one for KV. Law: a bucket tells what its own records told, and
what was told before where they are silent; one of which no engine told has no row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
        self._told: dict[str, _Counts] = {}
        self._open: dict[int, _Bucket] = {}
        self._newest = 0

    @property
    def engines(self) -> int:
        """How many told of themselves."""
        return len(self._told)

    def on_config(self, config: EngineConfig) -> None:
        """Learn how many blocks an engine has, or that it is gone."""
        if config.removed:
            self._told.pop(config.engine, None)
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
        if engine not in self._told:
            if len(self._told) >= MAX_ENGINES:
                return
            self._told[engine] = (None, None, None)
        means = bucket.engines.setdefault(engine, _Means())
        self._told[engine] = means.add(counts, self._told[engine])

    def _write(self) -> None:
        """Rows of the open buckets; one that still fills tells no share of its time."""
        for number in sorted(self._open):
            bucket = self._open[number]
            counts = [bucket.mean_of(engine, before) for engine, before in self._told.items()]
            busy = saturated = None
            if bucket.busy_us is not None and number < self._newest:
                busy = round(min(bucket.busy_us / (BUCKET_US * max(len(self._told), 1)), 1.0), 3)
                saturated = round(min(bucket.saturated_us / max(bucket.busy_us, 1), 1.0), 3)
            kv_ratio = max((each[2] for each in counts if each[2] is not None), default=None)
            self.rows.put(
                number * BUCKET_US,
                (
                    _sum(each[0] for each in counts),
                    _sum(each[1] for each in counts),
                    None if kv_ratio is None else round(kv_ratio, 4),
                    busy,
                    saturated,
                ),
            )
            if number <= self._newest - OPEN_BUCKETS:
                del self._open[number]


_Counts = tuple[float | None, float | None, float | None]
"""Waiting, running and the KV ratio of one engine."""


@dataclass(slots=True)
class _Means:
    """What one engine told in one bucket, on the mean over the times it told it."""

    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    times: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, counts: _Counts, before: _Counts) -> _Counts:
        """Take counts; returns those known now, old ones where nothing new is told."""
        for at, count in enumerate(counts):
            if count is not None:
                self.sums[at] += count
                self.times[at] += 1
        waiting, running, kv_ratio = (old if new is None else new for new, old in zip(counts, before, strict=True))
        return waiting, running, kv_ratio

    def means(self, before: _Counts) -> _Counts:
        """Means, and what was told before where nothing was told in this bucket."""
        waiting, running, kv_ratio = (
            total / times if times else old for total, times, old in zip(self.sums, self.times, before, strict=True)
        )
        return waiting, running, kv_ratio


@dataclass(slots=True)
class _Bucket:
    busy_us: int | None = None
    saturated_us: int = 0
    engines: dict[str, _Means] = field(default_factory=dict)

    def mean_of(self, engine: str, before: _Counts) -> _Counts:
        """What an engine told in here, else before."""
        means = self.engines.get(engine)
        return before if means is None else means.means(before)


def _sum(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return round(sum(told), 2) if told else None
