"""How good traffic forecasts are, and what they cost: rate, counts, lengths, memory, time.

Run as `python -m tests.bench.bench_traffic`. Every figure names its series. The rule to beat is stated and run in the
same loop: mean of the last two minutes, or a 90 s trend where its z, corrected for autocorrelation, exceeds 2.5.
"""

import time
from dataclasses import dataclass

import numpy as np
import orjson

from schemas.requests import RequestArrived, RequestFinished
from tests.bench.traffic_series import Series, all_series, made
from twin.metrics import FloatArray
from twin.traffic.draw import draw
from twin.traffic.history import TrafficHistory
from twin.traffic.lengths import OutputLengths
from twin.traffic.plan import UNKNOWN_TOKENS
from twin.traffic.scenarios import BASELINE
from twin.traffic.streams import Streams

START_US = 1_796_052_000_000_000
HORIZONS_S = (30.0, 60.0, 120.0)
WARM_S = 60.0
TICK_S = 10.0
REPLICATIONS = 60


@dataclass(frozen=True, slots=True)
class Tick:
    """One forecast of one horizon beside the truth: requests per second, and work per second."""

    horizon_s: float
    truth: float
    ours: float
    persistence: float
    rule: float
    low: float
    high: float
    crps: float
    crps_uniform: float
    peak_low: float
    peak_high: float
    peak: float


def replay(series: Series, tick_s: float) -> list[Tick]:
    """Feed the series into a history and forecast at every tick."""
    history, ticks = TrafficHistory(), []
    events = _events(series)
    at = 0
    for tick in np.arange(WARM_S, float(series.arrived_s[-1]) - HORIZONS_S[0], tick_s).tolist():
        now_us = START_US + round(tick * 1e6)
        while at < len(events) and events[at][0] <= tick:
            event = events[at][1]
            if isinstance(event, RequestArrived):
                history.arrived(event)
            else:
                history.finished(event)
            at += 1
        plan = history.plan(now_us)
        span_s = min(HORIZONS_S[-1], float(series.arrived_s[-1]) - tick)
        drawn = draw(plan, Streams(1, "bench", now_us), replications=REPLICATIONS, span_s=span_s, scenario=BASELINE)
        owner = np.repeat(np.arange(REPLICATIONS), np.diff(drawn.offsets))
        for horizon_s in HORIZONS_S:
            if horizon_s <= span_s:
                inside = drawn.arrived_s <= horizon_s
                counts = np.bincount(owner[inside], minlength=REPLICATIONS)
                peaks = [_peak(drawn.arrived_s[inside & (owner == r)], horizon_s) for r in range(REPLICATIONS)]
                ticks.append(_tick(series, tick, horizon_s, plan.rate.mean_per_s(horizon_s), counts, np.array(peaks)))
    return ticks


def _events(series: Series) -> list[tuple[float, RequestArrived | RequestFinished]]:
    events: list[tuple[float, int, RequestArrived | RequestFinished]] = []
    for i, (time_s, end_s) in enumerate(zip(series.arrived_s.tolist(), series.ended_s.tolist(), strict=True)):
        at_us, end_us = START_US + round(time_s * 1e6), START_US + round(end_s * 1e6)
        isl, osl = int(series.isl_tokens[i]), int(series.osl_tokens[i])
        events.append((time_s, i, RequestArrived(deployment="b", request_id=str(i), at_us=at_us, isl_tokens=isl)))
        done = RequestFinished(
            deployment="b", request_id=str(i), at_us=end_us, arrived_us=at_us, isl_tokens=isl, osl_tokens=osl
        )
        events.append((end_s, i, done))
    return [(at_s, event) for at_s, _, event in sorted(events, key=lambda each: each[:2])]


def _tick(series: Series, tick: float, horizon_s: float, ours: float, counts: FloatArray, peaks: FloatArray) -> Tick:
    times = series.arrived_s
    ahead = times[(times > tick) & (times <= tick + horizon_s)]
    reach_s = min(horizon_s, tick)
    uniform = np.random.default_rng(round(tick)).poisson(ours * horizon_s, REPLICATIONS)
    low, high = np.quantile(counts, (0.05, 0.95)) / horizon_s
    peak_low, peak_high = np.quantile(peaks, (0.05, 0.95))
    return Tick(
        horizon_s=horizon_s,
        truth=ahead.size / horizon_s,
        ours=ours,
        persistence=float(np.count_nonzero((times > tick - reach_s) & (times <= tick))) / reach_s,
        rule=_rule(times[times <= tick], tick, horizon_s),
        low=float(low),
        high=float(high),
        crps=_crps(counts, ahead.size) / horizon_s,
        crps_uniform=_crps(uniform, ahead.size) / horizon_s,
        peak_low=float(peak_low),
        peak_high=float(peak_high),
        peak=_peak(ahead - tick, horizon_s),
    )


def _peak(times_s: FloatArray, span_s: float) -> float:
    """Arrivals of the busiest second."""
    return float(np.histogram(times_s, np.arange(0.0, span_s + 1.0))[0].max())


def _crps(samples: FloatArray, truth: float) -> float:
    """Continuous ranked probability score of a sample: how far, less how far apart."""
    return float(np.abs(samples - truth).mean() - np.abs(samples[:, None] - samples[None]).mean() / 2.0)


def _rule(times: FloatArray, now: float, horizon_s: float, slot_s: float = 5.0) -> float:
    """Mean of the last two minutes, or the gated trend of 90 s; requests per second."""
    counts = np.histogram(times, np.arange(now - 90.0, now + slot_s / 2, slot_s))[0] / slot_s
    if now >= 90.0:
        x = np.arange(counts.size) - (counts.size - 1) / 2
        slope = float(x @ counts) / float(x @ x)
        rest = counts - counts.mean() - slope * x
        rho = min(max(float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-9), 0.0), 0.9)
        error = np.sqrt(float(rest @ rest) / (counts.size - 2) / float(x @ x) * (1 + rho) / (1 - rho))
        if abs(slope) > 2.5 * error > 0.0:
            return max(float(counts.mean()) + slope * (counts.size + horizon_s / slot_s) / 2, 0.0)
    reach_s = min(now, 120.0)
    return float(np.count_nonzero(times > now - reach_s)) / reach_s


def report_rates() -> None:
    """Skill and coverage per series, and means over them."""
    found = {
        series.name: replay(series, TICK_S if series.arrived_s[-1] < 600.0 else 3 * TICK_S) for series in all_series()
    }
    for horizon_s in HORIZONS_S:
        rows = {name: [t for t in ticks if t.horizon_s == horizon_s] for name, ticks in found.items()}
        rows = {name: ticks for name, ticks in rows.items() if len(ticks) >= 4}
        ours, rule = ({n: _skill(t, which) for n, t in rows.items()} for which in ("ours", "rule"))
        for name, ticks in rows.items():
            worse = _mean(ticks, "crps") / _mean(ticks, "crps_uniform")
            print(
                f"rate of {name} at {horizon_s:g} s: skill {ours[name]:+.0%} over persistence, rule {rule[name]:+.0%}; "
                f"90 % interval of counts covers {_covered(ticks):.0%}, of the peak second {_peak_covered(ticks):.0%}; "
                f"CRPS {worse:.2f} of a uniform generator's; n {len(ticks)}"
            )
        pooled = [tick for ticks in rows.values() for tick in ticks]
        print(
            f"rate at {horizon_s:g} s: skill {np.mean(list(ours.values())):+.1%} over persistence, mean of {len(rows)} "
            f"series (bar: the rule's {np.mean(list(rule.values())):+.1%}); coverage pooled {_covered(pooled):.0%}"
        )


def _mean(ticks: list[Tick], name: str) -> float:
    return float(np.mean([getattr(tick, name) for tick in ticks]))


def _skill(ticks: list[Tick], which: str) -> float:
    missed = np.mean([abs(getattr(tick, which) - tick.truth) for tick in ticks])
    return 1.0 - float(missed / np.mean([abs(tick.persistence - tick.truth) for tick in ticks]))


def _covered(ticks: list[Tick]) -> float:
    return float(np.mean([tick.low <= tick.truth <= tick.high for tick in ticks]))


def _peak_covered(ticks: list[Tick]) -> float:
    return float(np.mean([tick.peak_low <= tick.peak <= tick.peak_high for tick in ticks]))


def report_lengths() -> None:
    """Remaining output of requests in flight: Kaplan-Meier given progress against the mean of finished ones."""
    for series in all_series():
        ours, naive = _length_errors(series)
        if ours.size >= 50:
            print(
                f"remaining tokens of {series.name}: mean pinball loss {ours.mean():.1f}, n {ours.size}, "
                f"{1 - ours.mean() / naive.mean():+.0%} against quantiles of finished requests (bar: > 0)"
            )


def _length_errors(series: Series) -> tuple[FloatArray, FloatArray]:
    levels = (np.arange(19) + 1.0) / 20.0
    ours, naive = [], []
    for tick in np.arange(WARM_S, float(series.arrived_s[-1]), 3 * TICK_S).tolist():
        recent = (series.arrived_s <= tick) & (series.arrived_s > tick - 600.0)
        done = series.ended_s <= tick
        share = (tick - series.arrived_s) / np.maximum(series.ended_s - series.arrived_s, 1e-9)
        progress = np.where(done, series.osl_tokens, np.floor(np.clip(share, 0.0, 0.999) * series.osl_tokens))
        model = OutputLengths.fit(progress[recent].astype(np.int64), done[recent])
        past = np.quantile(series.osl_tokens[recent & done], levels) if (recent & done).any() else levels * 0
        for i in np.flatnonzero(recent & ~done).tolist():
            generated = np.full(levels.size, int(progress[i]))
            truth = float(series.osl_tokens[i])
            ours.append(_pinball(model.draw(generated, levels).astype(np.float64), truth, levels))
            naive.append(_pinball(np.maximum(past, progress[i] + 1), truth, levels))
    return np.array(ours), np.array(naive)


def _pinball(forecast: FloatArray, truth: float, levels: FloatArray) -> float:
    missed = truth - forecast
    return float(np.maximum(levels * missed, (levels - 1.0) * missed).mean())


def report_speed() -> None:
    """Fold, plan, snapshot."""
    series = made()
    events = _events(series)
    history = TrafficHistory()
    start = time.perf_counter()
    for _, event in events:
        if isinstance(event, RequestArrived):
            history.arrived(event)
        else:
            history.finished(event)
        history.advance(event.at_us)
    fold_s = time.perf_counter() - start
    start = time.perf_counter()
    plan = history.plan(events[-1][1].at_us)
    plan_s = time.perf_counter() - start
    size = len(orjson.dumps(history.snapshot()))
    unknown = int(np.count_nonzero(plan.sources.osl_tokens == UNKNOWN_TOKENS))
    print(f"traffic fold: {len(events) / fold_s:,.0f} events/s, slots and scores included (bar: > 20,000)")
    print(
        f"traffic plan: {plan_s * 1e3:.1f} ms from {plan.sources.requests:,} arrivals, "
        f"{unknown} unfinished (bar: < 20 ms)"
    )
    print(f"traffic snapshot: {size / 1e6:.2f} MB of JSON for {len(history):,} arrivals (bar: < 4 MB)")


def main() -> None:
    """Print the figures."""
    report_speed()
    report_rates()
    report_lengths()


if __name__ == "__main__":
    main()
