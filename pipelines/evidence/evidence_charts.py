"""Charts of a chain as SVG text: changes with their intervals, class times as bars. Draws, computes nothing.

Colours are classes of the page's style sheet, so that a chart follows light and dark. Law: every value that is given is
drawn within the picture; what is not known is not drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LABEL, ROW, PAD = 760, 250, 26, 14
_PLOT = WIDTH - LABEL - PAD
Place = Callable[[float], float]
"""Where on the axis a value lies."""
STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Bar:
    """One class: value of both sides."""

    label: str
    base: float
    candidate: float
    unit: str


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One figure: its measured and its simulated change, each with an interval or None."""

    label: str
    measured: tuple[float, float | None, float | None] | None
    simulated: tuple[float, float | None, float | None] | None = None


def changes(rows: Sequence[ChangeRow], noise_floor_ratio: float | None, name: str) -> str:
    """Measured intervals with simulated points beside them, on one axis of relative change."""
    values = [
        value for row in rows for part in (row.measured, row.simulated) if part for value in part if value is not None
    ]
    if not values:
        return ""
    low, high = min(-0.1, *values), min(max(0.1, *values), 10.0)
    low, high = low - (high - low) * 0.04, high + (high - low) * 0.04
    height = ROW * len(rows) + 46

    def x(ratio: float) -> float:
        return LABEL + (min(max(ratio, low), high) - low) / (high - low) * _PLOT

    parts = [_open(height, name)]
    if noise_floor_ratio is not None:
        left, right = x(-noise_floor_ratio / (1 + noise_floor_ratio)), x(noise_floor_ratio)
        parts.append(f'<rect class="noise" x="{left:.1f}" y="8" width="{right - left:.1f}" height="{height - 40}"/>')
    parts += _axis(low, high, height, x(0.0), x)
    for place, row in enumerate(rows):
        y = 8 + ROW * place + ROW / 2
        parts.append(f'<text class="label" x="{LABEL - 10}" y="{y + 4:.1f}">{escape(row.label)}</text>')
        for part, mark, offset in ((row.measured, "measured", -4.0), (row.simulated, "simulated", 4.0)):
            if part is not None:
                parts += _mark(part, mark, y + (offset if row.simulated else 0.0), x)
    return "".join([*parts, "</svg>"])


def bars(rows: Sequence[Bar], name: str) -> str:
    """Two bars per class, base above candidate, on one axis from zero."""
    most = max((max(row.base, row.candidate) for row in rows), default=0.0)
    if most <= 0.0:
        return ""
    height = ROW * 1.5 * len(rows) + 12
    parts = [_open(height, name)]
    scale = (_PLOT - 60 - 6 * max(len(row.unit) for row in rows)) / most
    for place, row in enumerate(rows):
        y = 8 + ROW * 1.5 * place
        parts.append(f'<text class="label" x="{LABEL - 10}" y="{y + 20:.1f}">{escape(row.label)}</text>')
        for value, side, offset in ((row.base, "base", 2), (row.candidate, "candidate", 17)):
            width = max(value, 0.0) * scale
            told = f"{_short(value)} {escape(row.unit)}"
            parts.append(
                f'<rect class="{side}" x="{LABEL}" y="{y + offset:.1f}" width="{width:.1f}" height="13" rx="2"/>'
                f'<text class="value" x="{LABEL + width + 6:.1f}" y="{y + offset + 11:.1f}">{told}</text>'
            )
    return "".join([*parts, "</svg>"])


def _open(height: float, name: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(name)}" data-chart="{escape(name)}">'
        f"<title>{escape(name)}</title>"
    )


def _axis(low: float, high: float, height: float, zero: float, x: Place) -> list[str]:
    step = next((size for size in STEPS if (high - low) / size <= 8), STEPS[-1])
    parts = []
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        at = x(number * step)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="8" y2="{height - 32}"/>'
            f'<text class="tick" x="{at:.1f}" y="{height - 14}">{_tick(number * step)}</text>'
        )
    parts.append(f'<line class="zero" x1="{zero:.1f}" x2="{zero:.1f}" y1="8" y2="{height - 32}"/>')
    return parts


def _tick(ratio: float) -> str:
    return f"{ratio * 100:+.0f} %" if ratio else "0"


def _mark(part: tuple[float, float | None, float | None], name: str, y: float, x: Place) -> list[str]:
    middle, low, high = part
    found = []
    if low is not None and high is not None:
        found.append(f'<line class="{name}" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    if name == "measured":
        found.append(f'<circle class="{name}" cx="{x(middle):.1f}" cy="{y:.1f}" r="4"/>')
    else:
        found.append(f'<rect class="{name}" x="{x(middle) - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>')
    return found


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
