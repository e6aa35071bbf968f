"""Charts over time as SVG text. Knows nothing of incidents; has no script, no font and no picture of its own.

A value that is not there breaks its line; an infinite one lies at the upper edge. Laws: the same chart gives the same
text; every point lies inside the frame; text that comes from records is escaped.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH = 1000.0
HEIGHT = 220.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 14.0, 30.0
LOG_FROM_RATIO = 40.0
"""Largest over smallest value from which a logarithmic axis shows more."""
FEW_POWERS = 300.0
"""A logarithmic axis shorter than this has ticks between the powers of ten."""
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)

Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class Line:
    """Values at seconds from the start of the window; `css` is a class of the page."""

    name: str
    css: str
    at_s: Numbers
    values: Numbers


@dataclass(frozen=True, slots=True)
class Band:
    """An interval at seconds from the start of the window."""

    name: str
    css: str
    at_s: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, drawn through a chart from top to bottom."""

    name: str
    css: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart. `limit` is a horizontal line; `scale` multiplies values for the axis, whose unit is `unit`."""

    key: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    bands: tuple[Band, ...] = ()
    limit: tuple[str, float] | None = None
    note: str = ""
    at_most: float | None = None
    scale: float = 1.0
    marks: tuple[Mark, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool

    def y(self, value: float) -> float:
        if self.logarithmic:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - min(max(share, 0.0), 1.0))

    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if self.high / self.low < FEW_POWERS else (1,)
            every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            return [value for value in every if self.low <= value <= self.high]
        step = _round_up((self.high - self.low) / 4.0)
        return [step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def svg(chart: Chart, span_s: float, start_of_day_s: float) -> str:
    """The chart as an `<svg>` element; `start_of_day_s` is the time of day at which the window starts."""
    axis = _axis(chart)
    parts = [
        f'<svg class="chart" data-key="{escape(chart.key)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        *_frame(chart, axis, span_s, start_of_day_s),
        *(_band(band, chart.scale, axis, span_s) for band in chart.bands),
    ]
    if chart.limit is not None:
        y = axis.y(chart.limit[1] * chart.scale)
        parts.append(f'<line class="limit" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="limit-text" x="{LEFT + 6:g}" y="{y - 5:.1f}">{escape(chart.limit[0])}</text>')
    parts += [_line(line, chart.scale, axis, span_s) for line in chart.lines]
    parts += [_mark(mark, span_s) for mark in chart.marks if 0.0 <= mark.at_s <= span_s]
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}"/></svg>')
    return "".join(parts)


def x_of(at_s: float, span_s: float) -> float:
    """Place of a moment in a chart."""
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s / span_s, 0.0), 1.0)


def _axis(chart: Chart) -> _Axis:
    values = [value * chart.scale for line in chart.lines for value in line.values]
    values += [value * chart.scale for band in chart.bands for edge in (band.low, band.high) for value in edge]
    if chart.limit is not None:
        values.append(chart.limit[1] * chart.scale)
    known = [value for value in values if math.isfinite(value)]
    high = max(known, default=1.0)
    if chart.at_most is not None:
        return _Axis(0.0, chart.at_most, False)
    positive = [value for value in known if value > 0.0]
    if positive and len(positive) == len(known) and high / min(positive) >= LOG_FROM_RATIO:
        return _Axis(min(positive) / 1.15, high * 1.15, True)
    return _Axis(0.0, max(high * 1.1, 1e-9), False)


def _frame(chart: Chart, axis: _Axis, span_s: float, start_of_day_s: float) -> Iterable[str]:
    for value in axis.ticks():
        y = axis.y(value)
        yield f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 7:g}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
    step_s = next((step for step in _TICKS_S if span_s / step <= 9), _TICKS_S[-1])
    at_s = math.ceil(start_of_day_s / step_s) * step_s - start_of_day_s
    while at_s <= span_s:
        x = x_of(at_s, span_s)
        moment = round(start_of_day_s + at_s) % 86_400
        text = f"{moment // 3600:02d}:{moment // 60 % 60:02d}:{moment % 60:02d}"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 11:g}" text-anchor="middle">{text}</text>'
        at_s += step_s


def _line(line: Line, scale: float, axis: _Axis, span_s: float) -> str:
    runs: list[list[str]] = [[]]
    for at_s, value in zip(line.at_s, line.values, strict=True):
        if math.isnan(value) or not 0.0 <= at_s <= span_s:
            runs.append([])
        else:
            runs[-1].append(f"{x_of(at_s, span_s):.1f},{axis.y(value * scale):.1f}")
    path = " ".join("M" + " L".join(run if len(run) > 1 else run * 2) for run in runs if run)
    return f'<path class="line {line.css}" d="{path}"/>' if path else ""


def _band(band: Band, scale: float, axis: _Axis, span_s: float) -> str:
    inside = [
        (x_of(at_s, span_s), axis.y(low * scale), axis.y(high * scale))
        for at_s, low, high in zip(band.at_s, band.low, band.high, strict=True)
        if 0.0 <= at_s <= span_s and not math.isnan(low) and not math.isnan(high)
    ]
    if not inside:
        return ""
    upper = " L".join(f"{x:.1f},{high:.1f}" for x, _, high in inside)
    lower = " L".join(f"{x:.1f},{low:.1f}" for x, low, _ in reversed(inside))
    return f'<path class="band {band.css}" d="M{upper} L{lower} Z"/>'


def _mark(mark: Mark, span_s: float) -> str:
    x = x_of(mark.at_s, span_s)
    return (
        f'<line class="mark {mark.css}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}">'
        f"<title>{escape(mark.name)}</title></line>"
    )


def _round_up(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
