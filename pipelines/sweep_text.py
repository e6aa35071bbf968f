"""What `sweep` found, as plain data and as text for a person. Decides nothing: see `twin.known.verdict`."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from schemas.slos import SloTarget
from twin.known.points import LOADS, Judged, Point
from twin.known.variants import plain_value
from twin.known.verdict import limit_sentences, limit_text, rank
from twin.sweep import KEEPS_UP_RATIO, LoadCurve

MOST_RANKED = 5


def curve_account(curve: LoadCurve) -> dict[str, Any]:
    """The load curve for JSON; means over replications, null where undefined, infinite or lower than any rate."""
    mean, low, high = curve.ceiling()
    return {
        "ceiling_requests_per_s": {"mean": _finite(mean), "low": _finite(low), "high": _finite(high)},
        "knee_requests_per_s": curve.knee_requests_per_s or None,
        "curve": [
            {
                "offered_requests_per_s": float(rate),
                "throughput_requests_per_s": _mean(curve.throughput_requests_per_s[i]),
                "ttft_p95_s": _mean(curve.ttft_p95_s[i]),
                "tpot_p95_s": _mean(curve.tpot_p95_s[i]),
            }
            for i, rate in enumerate(curve.rates_per_s)
        ],
    }


def grid_account(points: Sequence[Point], limits: Sequence[SloTarget]) -> dict[str, Any]:
    """Points, verdicts and rankings for JSON."""
    rankings, refused = rank(points)
    return {
        "grid": [_point_account(point) for point in points],
        "limits": limit_sentences(points, limits),
        "rankings": [
            {"mix": ranking.mix, "best_first": [point.name for point in ranking.best_first]} for ranking in rankings
        ],
        "not_ranked": refused,
    }


def print_curve(curve: LoadCurve, console: Console) -> None:
    """Rates, what became of them, and where the knee is."""
    table = Table("offered/s", "completed/s", "TTFT P95", "TPOT P95", box=None)
    for column in table.columns:
        column.justify = "right"
    for row in curve_account(curve)["curve"]:
        cells = (row["ttft_p95_s"], row["tpot_p95_s"])
        table.add_row(
            f"{row['offered_requests_per_s']:.2f}",
            f"{row['throughput_requests_per_s']:.2f}",
            *("unfinished" if value is None else _time(value) for value in cells),
        )
    console.print(table)
    mean, low, high = curve.ceiling()
    interval = "" if math.isnan(low) else f" (90 % interval {low:.2f} .. {high:.2f})"
    console.print(f"ceiling {mean:.2f} requests/s{interval}: what is completed in overload", soft_wrap=True)
    completed = f"(at least {KEEPS_UP_RATIO:.0%} completed)"
    if curve.knee_requests_per_s:
        knee = f"knee {curve.knee_requests_per_s:.2f} requests/s: the largest rate of these that is kept up with"
    else:
        knee = "no knee: none of these rates is kept up with, offer lower ones"
    console.print(f"{knee} {completed}", soft_wrap=True)


def print_grid(points: Sequence[Point], limits: Sequence[SloTarget], console: Console) -> None:
    """A line per point, then what the limits and the comparison say, in words."""
    names = list(points[0].settings)
    console.print("Latencies as offered, from arrival; the rest with a full batch:")
    table = Table(box=None)
    for heading in (
        *names,
        "TTFT P95",
        "TPOT P95",
        "E2E P95",
        "success",
        "hits",
        "ceiling/s",
        "full TPOT P95",
        "prefill s/1k",
        "decode s/1k",
        "tokens/min/chip",
        *(["limits"] if limits else []),
    ):
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(*_cells(point, names, bool(limits)))
    console.print(table)
    console.print(
        "prefill, decode s/1k: chip-seconds per 1,000 prompt and output tokens; tokens/min/chip: output tokens"
    )
    for sentence in limit_sentences(points, limits):
        console.print(sentence, soft_wrap=True)
    _print_ranking(points, limits, console)
    for note in dict.fromkeys(note for point in points for note in point.notes):
        console.print(f"note: {note}", soft_wrap=True)


def _print_ranking(points: Sequence[Point], limits: Sequence[SloTarget], console: Console) -> None:
    if len(points) < 2:
        return
    rankings, refused = rank(points)
    among = "meeting all limits" if limits else "of all"
    for ranking in rankings:
        where = f" ({ranking.mix})" if len(rankings) > 1 else ""
        best = ranking.best_first[:MOST_RANKED]
        listed = "; ".join(f"{point.name}: {point.tokens_per_min_per_chip:,.0f}" for point in best)
        console.print(f"most tokens/min/chip {among}{where}: {listed or 'none'}", soft_wrap=True)
    if refused:
        console.print(refused, soft_wrap=True)


def _cells(point: Point, names: Sequence[str], judged: bool) -> list[str]:
    latency = point.latency_s
    return [
        *(plain_value(point.settings[name]) for name in names),
        *(_time(latency[metric]["p95"]) for metric in ("ttft_s", "tpot_s", "e2e_s")),
        f"{point.success_ratio:.1%}",
        f"{point.prefix_hit_ratio:.1%}",
        f"{point.ceiling_requests_per_s:.2f}",
        _time(point.full_tpot_s["p95"]),
        _number(point.prefill_chip_s_per_1000_tokens),
        _number(point.decode_chip_s_per_1000_tokens),
        f"{point.tokens_per_min_per_chip:,.0f}",
        *([_met(point)] if judged else []),
    ]


def _met(point: Point) -> str:
    """Whether all limits are met, else at which load not."""
    loads = [load for load in LOADS if any(judged.load == load and not judged.met for judged in point.judged)]
    if len(loads) == len(LOADS):
        return "out"
    return f"out {loads[0]}" if loads else "met"


def _point_account(point: Point) -> dict[str, Any]:
    plain = asdict(point)
    plain["judged"] = [_judged(judged) for judged in point.judged]
    plain["meets_all"] = point.meets_all
    plain["offered_requests_per_s"] = _finite(point.offered_requests_per_s)
    return plain


def _judged(judged: Judged) -> dict[str, Any]:
    return {
        "limit": limit_text(judged.limit),
        "metric": judged.limit.metric,
        "quantile": judged.limit.quantile,
        "limit_s": judged.limit.limit_s,
        "load": judged.load,
        "value_s": None if judged.value_s is None else _finite(judged.value_s),
        "met": judged.met,
    }


def _mean(values: Any) -> float | None:
    return _finite(float(np.mean(values)))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f} s" if value >= 1.0 else f"{value * 1e3:.1f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
