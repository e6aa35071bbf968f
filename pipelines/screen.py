"""A board as a terminal picture. Reads nothing, remembers nothing.

Law: it fits the width it is given, whatever the numbers are.
"""

import math

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipelines.board import US_PER_S, Board, horizons_of, latency_of
from schemas.forecasts import Forecast, LatencyEstimate
from schemas.scores import Replay, Score

CHART_ROWS, LOW_CHART_ROWS = 12, 5
LEAST_S, MOST_S = 0.02, 60.0
"""The chart's scale is logarithmic from here to here."""
AXIS_WIDTH = 8
SIDE_BY_SIDE_WIDTH = 100
FULL_HEIGHT, FULL_HEIGHT_STACKED = 33, 42
"""Lines of the whole picture with its tables side by side and one over the other; a lower terminal gets a low one."""
TICKS_SHOWN = 40
LEGEND = "● what happened   ░ forecast interval   ━ forecast   ┄ SLO   (a column: requests of 30 s)"
STYLES = {"●": "bold", "░": "cyan", "━": "bold cyan", "┄": "yellow"}


def render(board: Board, width: int, status: str, height: int | None = None) -> RenderableType:
    """The whole picture; the low one where `height`, in lines, does not hold it."""
    low = height is not None and height < (FULL_HEIGHT if width >= SIDE_BY_SIDE_WIDTH else FULL_HEIGHT_STACKED)
    chart = _chart(board, width - 4, LOW_CHART_ROWS if low else CHART_ROWS)
    return Group(
        _title(board, status),
        Panel(chart, title=_chart_title(board), title_align="left", border_style="dim"),
        *((_forecast_table(board), _state_line(board)) if low else (_tables(board, width),)),
        _alerts(board, 1 if low else 3),
        _counts(board, low),
    )


def _title(board: Board, status: str) -> Text:
    at_s = (board.newest_us - board.first_us) / US_PER_S if board.newest_us else 0.0
    text = Text("twincast ", style="bold")
    text.append(board.deployment or "waiting for records")
    text.append(f"   event time +{at_s:.0f} s", style="dim")
    text.append(f"   {status}", style="dim")
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _chart_title(board: Board) -> str:
    metric, level = board.slo_key
    limit = f", SLO {board.slo.limit_s:g} s" if board.slo else ""
    return f"{metric.removesuffix('_s').upper()} P{level * 100:g}{limit}"


def _chart(board: Board, width: int, rows: int) -> Text:
    """Columns are window ends, from the beginning on and then those up to the newest forecast's; a tick takes some."""
    columns = max(width - AXIS_WIDTH, 10)
    tick_us = _tick_us(board)
    step_us = tick_us // max(columns // TICKS_SHOWN, 1)
    last_us = -(-max([*board.bands, board.newest_us]) // tick_us) * tick_us
    last_us = max(last_us, -(-board.first_us // tick_us) * tick_us + step_us * (columns - 1))
    ends = [last_us - step_us * (columns - 1 - column) for column in range(columns)]
    grid = [[" "] * columns for _ in range(rows)]
    slo = board.slo
    if slo is not None:
        grid[_row(slo.limit_s, rows)] = ["┄"] * columns
    for column, end_us in enumerate(ends):
        _draw_column(board, grid, column, end_us, -(-end_us // tick_us) * tick_us)
    text = Text(no_wrap=True)
    for index, row in enumerate(grid):
        text.append(_label(index, rows, None if slo is None else slo.limit_s), style="dim")
        for cell in row:
            text.append(cell, style=_style(cell, index, _row(slo.limit_s, rows) if slo else None))
        text.append("\n")
    text.append(LEGEND[: width - 1], style="dim")
    return text


def _draw_column(board: Board, grid: list[list[str]], column: int, end_us: int, tick_us: int) -> None:
    """A forecast is drawn over the tick that its window ends with."""
    drawn, rows = board.bands.get(tick_us), len(grid)
    if drawn is not None:
        value_s, low_s, high_s, _ = drawn
        for row in range(_row(high_s, rows), _row(low_s, rows) + 1):
            grid[row][column] = "░"
        grid[_row(value_s, rows)][column] = "━"
    if end_us <= board.newest_us and board.first_us and end_us > board.first_us:
        observed_s = board.observed_s(end_us, 30.0, board.slo_key[1])
        if observed_s is not None:
            grid[_row(observed_s, rows)][column] = "●"


def _style(cell: str, row: int, limit_row: int | None) -> str:
    if cell == "●":
        return "bold red" if limit_row is not None and row < limit_row else "bold green"
    return STYLES.get(cell, "")


def _tick_us(board: Board) -> int:
    """The tick, as the forecasts show it."""
    ends = list(board.bands)[-2:]
    return max(ends[-1] - ends[0], US_PER_S) if len(ends) == 2 else 10 * US_PER_S


def _row(value_s: float, rows: int) -> int:
    share = math.log(min(max(value_s, LEAST_S), MOST_S) / LEAST_S) / math.log(MOST_S / LEAST_S)
    return round((rows - 1) * (1.0 - share))


def _label(row: int, rows: int, limit_s: float | None) -> str:
    if limit_s is not None and row == _row(limit_s, rows):
        return f"{limit_s:6.2g} s "
    if row % 3 and row != rows - 1:
        return " " * AXIS_WIDTH
    value_s = LEAST_S * (MOST_S / LEAST_S) ** (1.0 - row / (rows - 1))
    return f"{value_s:6.2g} s "


def _tables(board: Board, width: int) -> RenderableType:
    if width < SIDE_BY_SIDE_WIDTH:
        return Group(_forecast_table(board), _state_table(board))
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=4)
    grid.add_column(ratio=3)
    grid.add_row(_forecast_table(board), _state_table(board))
    return grid


def _forecast_table(board: Board) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, border_style="dim", title_justify="left", title_style="", pad_edge=False)
    forecast = board.forecast
    for name in ("next", "TTFT P95 s", "TPOT", "E2E", "queue", "KV", "breach"):
        table.add_column(name, justify="right" if name != "next" else "left", no_wrap=True)
    if forecast is None:
        table.title = "no forecast yet"
        return table
    age_s = max(board.newest_us - forecast.as_of_us, 0) / US_PER_S
    stale = "" if board.newest_us <= forecast.expires_us else "  [red]STALE[/red]"
    table.title = f"forecast, {forecast.phase}, {age_s:.0f} s old{stale}"
    for horizon in horizons_of(forecast):
        risk = max((risk.breach_probability for risk in horizon.slo_risks), default=None)
        table.add_row(
            f"{horizon.horizon_s:.0f} s",
            band(latency_of(horizon, "ttft_s", 0.95)),
            *(_value(latency_of(horizon, metric, 0.95)) for metric in ("tpot_s", "e2e_s")),
            f"{horizon.waiting_peak_requests.value:.0f}",
            f"{horizon.kv_peak_ratio.value:.0%}",
            "-" if risk is None else Text(f"{risk:.0%}", style="bold red" if risk >= 0.5 else ""),
        )
    return table


def _value(estimate: LatencyEstimate | None) -> str:
    return "-" if estimate is None else seconds(estimate.value_s)


def band(estimate: LatencyEstimate | None) -> str:
    """Value and interval, seconds."""
    if estimate is None:
        return "-"
    return f"{seconds(estimate.value_s)} [{seconds(estimate.low_s)}-{seconds(estimate.high_s)}]"


def seconds(value_s: float) -> str:
    """Short: three digits at most.

    >>> seconds(0.0123), seconds(0.5), seconds(12.34)
    ('.012', '.50', '12')
    """
    if value_s >= 1000.0:
        return ">999"
    if value_s >= 10.0:
        return f"{value_s:.0f}"
    if value_s >= 1.0:
        return f"{value_s:.1f}"
    return f"{value_s:.2f}"[1:] if value_s >= 0.1 else f"{value_s:.3f}"[1:]


def _state_table(board: Board) -> RenderableType:
    table = Table(box=None, show_header=False, title="now", title_justify="left", title_style="", pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    forecast = board.forecast
    table.add_row("waiting / running", f"{_or_dash(board.waiting)} / {_or_dash(board.running)}")
    table.add_row("KV in use", "-" if board.kv_ratio is None else f"{_bar(board.kv_ratio)} {board.kv_ratio:.0%}")
    table.add_row("authority", "-" if forecast is None else forecast.authority)
    table.add_row("credibility", "-" if forecast is None else _credibility(forecast))
    table.add_row("skill", _skill(forecast))
    known = board.last.get("fine")
    table.add_row("ceiling", _ceiling(known))
    table.add_row("bottleneck", _bottleneck(known))
    return table


def _state_line(board: Board) -> Text:
    """What matters most of the state table."""
    kv = "-" if board.kv_ratio is None else f"{board.kv_ratio:.0%}"
    authority = "-" if board.forecast is None else board.forecast.authority
    text = Text(f"waiting / running {_or_dash(board.waiting)} / {_or_dash(board.running)}   KV {kv}", no_wrap=True)
    text.append(f"   authority {authority}   skill {_skill(board.forecast)}")
    text.overflow = "ellipsis"
    return text


def _ceiling(forecast: Forecast | None) -> str:
    found = forecast.ceiling_requests_per_s if forecast else None
    return "-" if found is None else f"{found.value:.1f} requests/s [{found.low:.1f}-{found.high:.1f}]"


def _bottleneck(forecast: Forecast | None) -> str:
    """What would help most: the effect on TTFT P95 if it were 10 % cheaper."""
    found = forecast.bottlenecks if forecast else ()
    best = min(found, key=lambda one: one.ttft_p95_change_ratio, default=None)
    return "-" if best is None else f"{best.name}: 10 % off gives TTFT P95 {best.ttft_p95_change_ratio:+.0%}"


def _credibility(forecast: Forecast) -> str:
    reasons = "; ".join(forecast.credibility.reasons[:2])
    return f"{forecast.credibility.level}" + (f": {reasons}" if reasons else "")


def _skill(forecast: Forecast | None) -> str:
    if forecast is None or forecast.skill is None:
        return "too few windows closed"
    return f"{forecast.skill:+.2f} against persistence, {forecast.scored_rounds} rounds"


def _bar(ratio: float, width: int = 10) -> str:
    full = round(min(max(ratio, 0.0), 1.0) * width)
    return "█" * full + "·" * (width - full)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _alerts(board: Board, newest: int) -> RenderableType:
    text = Text()
    for alert in list(board.alerts)[-newest:]:
        at_s = (alert.at_us - board.first_us) / US_PER_S
        style = {"firing": "bold red", "resolved": "green"}.get(alert.state, "yellow")
        text.append(f"+{at_s:.0f} s {alert.kind} {alert.state}: {alert.cause} {alert.evidence}\n", style=style)
    if not board.alerts:
        text.append("no alert\n", style="dim")
    text.rstrip()
    return text


def _counts(board: Board, low: bool) -> RenderableType:
    cover = board.coverage
    covered = f"{cover.covered / cover.cells:.0%} of {cover.cells}" if cover.cells else "-"
    text = Text(style="dim")
    text.append(f"forecasts {board.forecasts_made}   windows scored {cover.windows}   inside the interval {covered}")
    text.append(f"   dead letters {board.dead_letters}")
    if board.scores:
        text.append(f"\nlast scored: {score_line(board.scores[-1], board.first_us)}")
    if not low and board.replay is not None and board.replay.cause is not None:
        text.append(f"\nlast replayed: {replay_line(board.replay, board.first_us)}")
    text.append("\n`twincast watch` shows this in another terminal, `twincast watch --json` for programs")
    return text


def score_line(score: Score, first_us: int) -> str:
    """One closed window in words."""
    cell = next((c for c in score.cells if (c.metric, c.quantile) == ("ttft_s", 0.95)), None)
    at_s = (score.as_of_us - first_us) / US_PER_S
    if cell is None:
        return f"+{at_s:.0f} s over {score.horizon_s:.0f} s: {score.members} requests"
    observed = "unfinished" if cell.observed_s is None else f"{cell.observed_s:.2f} s"
    return (
        f"+{at_s:.0f} s over {score.horizon_s:.0f} s: TTFT P95 forecast {cell.forecast_s:.2f} s, "
        f"was {observed} ({'inside' if cell.covered else 'outside'})"
    )


def replay_line(replay: Replay, first_us: int) -> str:
    """Why the forecast of one closed window missed, in words."""
    parts = (("traffic", replay.traffic_log), ("costs", replay.costs_log), ("the rest", replay.rest_log))
    told = ", ".join(f"{name} {math.expm1(part):+.0%}" for name, part in parts)
    where = f"+{(replay.as_of_us - first_us) / US_PER_S:.0f} s over {replay.window_s:.0f} s"
    grows = [f"P{row.quantile * 100:g}" for row in replay.trend if row.grows]
    beside = f"; bias grows at {', '.join(grows)}" if grows else ""
    error = math.expm1(replay.error_log)
    cause = "nothing to explain" if replay.cause == "none" else f"cause {replay.cause}"
    return f"{where}: latencies {error:+.0%} off, {cause} ({told}){beside}"
