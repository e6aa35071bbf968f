"""A chart of a band, dots, a limit and marks over time as SVG. Computes nothing that is shown.

The value axis is logarithmic. Law: equal drawings give equal bytes; colours follow the reader's light or dark theme.
"""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 18, 66, 44
TICKS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
TIME_TICK_S = 60.0
MAX_GAP_S = 20.0
"""Bands further apart than this are not joined: between them nothing was forecast."""
MARK_ROWS = (50, 34, 18)
HEADROOM = 4.0
"""Room above the highest value, for the words of the marks."""
STYLE = """
.back{fill:#fff}.text{fill:#1f2328;font:12px system-ui,sans-serif}
.title{fill:#1f2328;font:600 14px system-ui,sans-serif}
.grid{stroke:#d8dee4;stroke-width:1}.band{fill:#54aeff;fill-opacity:.3}.value{fill:none;stroke:#0969da;stroke-width:2}
.dot{fill:#1f2328}.limit{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:6 4}.limit-text{fill:#cf222e}
.mark{stroke-width:2}.reactive{stroke-dasharray:5 5}.foreseen{stroke:#1a7f37}.breached{stroke:#cf222e}
.reactive{stroke:#9a6700}.foreseen-text{fill:#1a7f37}.breached-text{fill:#cf222e}.reactive-text{fill:#9a6700}
@media(prefers-color-scheme:dark){.back{fill:#0d1117}.text,.title,.dot{fill:#e6edf3}.grid{stroke:#30363d}
.value{stroke:#79c0ff}.limit,.breached{stroke:#ff7b72}.limit-text,.breached-text{fill:#ff7b72}
.foreseen{stroke:#56d364}.foreseen-text{fill:#56d364}.reactive{stroke:#e3b341}.reactive-text{fill:#e3b341}}
"""


@dataclass(frozen=True, slots=True)
class Band:
    """A forecast with its interval, drawn at `at_s`. Seconds."""

    at_s: float
    value_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment with a word to it; `kind` is foreseen, breached or reactive."""

    at_s: float
    text: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """All that is drawn; bands were forecast `ahead_s` earlier. `caption` is what a screen reader says."""

    title: str
    caption: str
    bands: tuple[Band, ...]
    dots: tuple[tuple[float, float], ...]
    limit_s: float | None
    marks: tuple[Mark, ...]
    span_s: float
    ahead_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Scale:
    span_s: float
    low_s: float
    high_s: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / self.span_s

    def y(self, value_s: float) -> float:
        inside = min(max(value_s, self.low_s), self.high_s)
        share = math.log(inside / self.low_s) / math.log(self.high_s / self.low_s)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def svg(drawing: Drawing) -> str:
    """The whole file."""
    values = [v for band in drawing.bands for v in (band.low_s, band.high_s)] + [v for _, v in drawing.dots]
    scale = _Scale(drawing.span_s, max(min(values, default=0.1) * 0.8, 0.02), max(values, default=1.0) * HEADROOM)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d">',
        f'<title id="t">{escape(drawing.title)}</title><desc id="d">{escape(drawing.caption)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
        *_axes(scale),
        *_band(drawing.bands, scale),
        *(f'<circle class="dot" cx="{scale.x(at_s):.1f}" cy="{scale.y(v):.1f}" r="2.6"/>' for at_s, v in drawing.dots),
        *([] if drawing.limit_s is None else _limit(drawing.limit_s, scale)),
        *_marks(drawing.marks, scale),
        f'<text class="title" x="{LEFT}" y="20">{escape(drawing.title)}</text>',
        *_legend(drawing.ahead_s),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(scale: _Scale) -> list[str]:
    parts = []
    for value_s in TICKS_S:
        if scale.low_s <= value_s <= scale.high_s:
            y = scale.y(value_s)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="text" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value_s:g} s</text>')
    for number in range(int(scale.span_s // TIME_TICK_S) + 1):
        at_s = number * TIME_TICK_S
        place = f'x="{scale.x(at_s):.1f}" y="{HEIGHT - BOTTOM + 18}"'
        parts.append(f'<text class="text" {place} text-anchor="middle">{at_s:.0f} s</text>')
    return parts


def _band(bands: tuple[Band, ...], scale: _Scale) -> list[str]:
    parts = []
    for run in _runs(bands):
        upper = [f"{scale.x(band.at_s):.1f},{scale.y(band.high_s):.1f}" for band in run]
        lower = [f"{scale.x(band.at_s):.1f},{scale.y(band.low_s):.1f}" for band in reversed(run)]
        middle = [f"{scale.x(band.at_s):.1f},{scale.y(band.value_s):.1f}" for band in run]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        parts.append(f'<polyline class="value" points="{" ".join(middle)}"/>')
    return parts


def _runs(bands: tuple[Band, ...]) -> list[list[Band]]:
    runs: list[list[Band]] = []
    for band in bands:
        if not runs or band.at_s - runs[-1][-1].at_s > MAX_GAP_S:
            runs.append([])
        runs[-1].append(band)
    return runs


def _limit(limit_s: float, scale: _Scale) -> list[str]:
    y = scale.y(limit_s)
    return [
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="text limit-text" x="{LEFT + 6}" y="{y - 6:.1f}">SLO {limit_s:g} s</text>',
    ]


def _marks(marks: tuple[Mark, ...], scale: _Scale) -> list[str]:
    """Vertical lines; their words stand at different heights, as the lines may be close together."""
    parts = []
    for number, (mark, row) in enumerate(zip(sorted(marks, key=lambda each: each.at_s), MARK_ROWS, strict=False)):
        x, y = scale.x(mark.at_s), TOP + 66 - row
        side, anchor = (6, "start") if number else (-6, "end")
        parts.append(f'<line class="mark {mark.kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{HEIGHT - BOTTOM}"/>')
        words = f'<text class="text {mark.kind}-text" x="{x + side:.1f}" y="{y + 2}" text-anchor="{anchor}">'
        parts.append(f"{words}{escape(mark.text)}</text>")
    return parts


def _legend(ahead_s: float) -> list[str]:
    y = 42
    return [
        f'<circle class="dot" cx="{LEFT + 4}" cy="{y - 4}" r="2.6"/>',
        f'<text class="text" x="{LEFT + 14}" y="{y}">what happened</text>',
        f'<rect class="band" x="{LEFT + 118}" y="{y - 11}" width="22" height="12"/>',
        f'<line class="value" x1="{LEFT + 118}" x2="{LEFT + 140}" y1="{y - 5}" y2="{y - 5}"/>',
        f'<text class="text" x="{LEFT + 148}" y="{y}">forecast {ahead_s:g} s earlier, with its 90 % interval</text>',
    ]
