"""Risk alerts in the closed loop: a service scaled by what it has seen runs into breaches; the twin looks on and warns.

python -m tests.bench.bench_risk_loop [--trace NAME ...] [--seeds N]

The service, traces and seeds are those of `closed_loop.toml`. Engines follow requests in flight at half of what they
can hold, a usual setting that is late on a climb, so that there are breaches to foresee; nobody obeys the twin.
Breaches, pages and the reactive alarm are those of `bench_risk`, over either of the two targets.
"""

import argparse
import tomllib
from dataclasses import dataclass, field, replace

import numpy as np

from schemas.lineage import Lineage
from tests.bench.bench_closed_loop import TOML, Case, cases, policy_of
from tests.bench.bench_risk import AHEAD_S, LEAST_S, WINDOW_S, Found, stretches
from tests.bench.closed_loop_schedulers import START_US, US_PER_S, Reactive, Twin
from tests.bench.closed_loop_service import Service
from twin.calibration import Calibration
from twin.credibility import Standing, assess
from twin.forecasting import Footing, assemble
from twin.metrics import BoolArray, FloatArray
from twin.risk import RiskAlerts
from twin.simulate import run
from twin.tally import seconds

QUANTILE = 0.95
TARGET = 0.5
LEAST_REQUESTS = 5
STEPS = 10_000


@dataclass(slots=True)
class Watched:
    """Decides as `decides` does; meanwhile the twin forecasts the service as it stands, and its alerts are kept."""

    decides: Reactive
    twin: Twin
    horizons_s: tuple[float, ...] = (30.0, 60.0, 120.0)
    alerts: RiskAlerts = field(default_factory=lambda: RiskAlerts("loop"))
    pages: dict[str, list[float]] = field(default_factory=dict)

    def decide(self, service: Service, at_s: float) -> int:
        """See `Scheduler`."""
        job = self.twin.watch(service, at_s)
        if job is not None:
            asked = replace(job, horizons_s=self.horizons_s, trials=None)
            standing = Standing(input_level="S2", steps=STEPS, scored_rounds=round(at_s / self.twin.period_s))
            footing = Footing(
                standing=standing,
                authority="full",
                credibility=assess(standing),
                calibration=Calibration().freeze(),
                period_s=self.twin.period_s,
                lineage=Lineage(
                    twincast_version="", settings_hash="", costs_hash="", seed=1, replications=0, engine=""
                ),
            )
            for alert in self.alerts.on_forecast(assemble(asked, run(asked), footing)):
                when_s = (alert.at_us - START_US) / US_PER_S
                if alert.state == "firing":
                    self.pages[alert.alert_id] = [when_s, service.requests.span_s]
                elif alert.state == "resolved" and alert.alert_id in self.pages:
                    self.pages[alert.alert_id][1] = when_s
        return self.decides.decide(service, at_s)


def watched(case: Case) -> Found:
    """One trace and seed."""
    given, asked = case.settings["service"], case.settings["schedulers"]
    least, most = given["least_engines"], given["most_engines"]
    reactive = Reactive(TARGET, least, most, asked["reactive_down_hold_s"])
    twin = Twin(policy_of(given), case.prior, case.slos, given["period_s"], case.seed)
    scheduler = Watched(reactive, twin)
    service, span_s = case.service(), case.requests.span_s
    for k in range(round(given["settle_s"] / given["period_s"]), int(span_s / given["period_s"]) + 1):
        service.order(k * given["period_s"], scheduler.decide(service, k * given["period_s"]))
    grid, over, rings = _seen(service, given["settle_s"] + WINDOW_S)
    spans = stretches(grid, over)
    return Found(
        name=f"{case.name} seed {case.seed}",
        minutes=(span_s - grid[0]) / 60.0,
        breaches=tuple(span for span in spans if span[1] - span[0] > LEAST_S),
        blips=tuple(span for span in spans if span[1] - span[0] <= LEAST_S),
        pages=tuple((at_s, until_s) for at_s, until_s in scheduler.pages.values()),
        alarms_s=grid[rings],
    )


def _seen(service: Service, from_s: float) -> tuple[FloatArray, BoolArray, BoolArray]:
    """Seconds; whether a P95 over the requests that arrived in the last window is over its limit; the same of values
    that were known by then."""
    done = service.result(service.requests.span_s + 180.0).requests
    arrived = service.requests.arrived_s[: done.first_token_ps.size]
    first, last = (
        np.where(np.isnan(t), np.inf, t) for t in (seconds(done.first_token_ps), seconds(done.last_token_ps))
    )
    tokens = done.generated_tokens
    with np.errstate(invalid="ignore"):
        tpot = np.where(tokens >= 2, (last - first) / np.maximum(tokens - 1, 1), 0.0)
    measured = ((first - arrived, service.limits.ttft_s, first), (tpot, service.limits.tpot_s, last))
    grid = np.arange(from_s, service.requests.span_s, 1.0)
    over, rings = np.zeros(grid.size, np.bool_), np.zeros(grid.size, np.bool_)
    for values, limit_s, known_s in measured:
        late = ~(values <= limit_s)
        over |= np.array([_over(late[(arrived > t - WINDOW_S) & (arrived <= t)]) for t in grid])
        rings |= np.array([_over(late[(known_s > t - WINDOW_S) & (known_s <= t)]) for t in grid])
    return grid, over, rings


def _over(late: BoolArray) -> bool:
    return bool(late.size >= LEAST_REQUESTS and late.mean() > 1.0 - QUANTILE)


def main() -> None:
    """Print one line per trace and seed, then the figures with their bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    settings = tomllib.loads(TOML.read_text(encoding="utf-8"))
    found = []
    for case in cases(settings, args.trace, settings["schedulers"]["seeds"][: args.seeds], quick=False):
        found.append(one := watched(case))
        leads = [round(lead) for breach in one.breaches if (lead := one.lead_s(breach)) is not None]
        print(
            f"  {one.name}: {len(one.breaches)} breaches, {sum(one.page_of(b) is not None for b in one.breaches)} "
            f"foreseen, {len(one.blips)} shorter, {len(one.pages)} pages, {one.false_pages} false, leads {leads} s",
            flush=True,
        )
    pairs = [(one, breach) for one in found for breach in one.breaches]
    if pairs:
        recall = sum(one.page_of(breach) is not None for one, breach in pairs) / len(pairs)
        known = [lead for one, breach in pairs if (lead := one.lead_s(breach)) is not None]
        print(f"risk in the loop: recall {recall:.2f} of {len(pairs)} breaches over {LEAST_S:g} s (bar: >= 0.9)")
        print(f"risk in the loop: median lead over the trailing alarm {np.median(known):.0f} s (ramp bar: >= 15 s)")
    pages, false = sum(len(one.pages) for one in found), sum(one.false_pages for one in found)
    if pages:
        print(
            f"risk in the loop: precision {1 - false / pages:.2f} of {pages} pages (bar: >= 0.7), {AHEAD_S:g} s ahead"
        )


if __name__ == "__main__":
    main()
