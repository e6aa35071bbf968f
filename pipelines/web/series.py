"""Rows of numbers by event time, bounded, of which a reader can ask for those that changed since it last asked.

Knows nothing of what the numbers mean. Laws: it holds at most `limit` rows, the newest; whoever applies the answers of
`since` in turn holds the same rows as this does, apart from those that were dropped.
"""

from collections.abc import Iterator

Number = float | int | None


class Rows:
    """Rows by event time in microseconds; `revision` rises with every change."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit of rows must be >= 1, got {limit}")
        self._limit = limit
        self._rows: dict[int, tuple[int, tuple[Number, ...]]] = {}
        self.revision = 0

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, at_us: int, row: tuple[Number, ...]) -> None:
        """Set the row of a time; the same row again is no change. One older than all that may be held is left out."""
        held = self._rows.get(at_us)
        if held is not None and held[1] == row:
            return
        self.revision += 1
        self._rows[at_us] = (self.revision, row)
        if len(self._rows) > self._limit:
            del self._rows[min(self._rows)]

    def since(self, revision: int) -> list[list[Number]]:
        """Rows that changed after `revision`, each with its time in front, in order of time."""
        return [[at_us, *row] for at_us, row in self._in_order() if self._rows[at_us][0] > revision]

    def _in_order(self) -> Iterator[tuple[int, tuple[Number, ...]]]:
        for at_us in sorted(self._rows):
            yield at_us, self._rows[at_us][1]
