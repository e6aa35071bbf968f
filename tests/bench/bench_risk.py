"""Risk alerts on recordings: breaches foreseen, pages that were false, lead over an alarm on what has been seen.

python -m tests.bench.bench_risk [RECORDING ...]

A breach is a stretch of more than 20 s in which the TTFT P95 of the requests that arrived in the last 30 s is over the
limit; stretches less than 30 s apart are one. The reactive alarm rings when the P95 of TTFTs *known* from the last 30 s
is over it. An alert counts for a breach if it fires from two minutes before the breach to its end; it is false if no
breach, however short, comes between its firing and two minutes after, or its end.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipelines.backtest import backtest
from pipelines.ingest.recording import Recording, read_recording
from schemas.requests import RequestFinished
from schemas.slos import SloTarget
from tests.bench.forecast_runs import RECORDINGS, SETTINGS, names
from twin.metrics import FloatArray

LIMIT_S = 0.5
WINDOW_S = 30.0
LEAST_S = 20.0
AHEAD_S = 120.0
JUDGED = ("C_ramp", "D_longtail", "F_drift")
CALM = "A_steady"
CALM_RUNS = 2
"""Two runs of six minutes, of other random futures."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of one run, seconds from its start: breaches (start, end), pages (fired, resolved), when the alarm first rang."""

    name: str
    minutes: float
    breaches: tuple[tuple[float, float], ...]
    blips: tuple[tuple[float, float], ...]
    pages: tuple[tuple[float, float], ...]
    alarms_s: FloatArray

    def page_of(self, breach: tuple[float, float]) -> float | None:
        """When the first page for a breach fired."""
        start_s, end_s = breach
        fired = [at_s for at_s, until_s in self.pages if until_s >= start_s - AHEAD_S and at_s <= end_s]
        return min(fired, default=None)

    def lead_s(self, breach: tuple[float, float]) -> float | None:
        """How long before the reactive alarm the page came; negative if after; None where either never came."""
        page_s = self.page_of(breach)
        rung = self.alarms_s[(self.alarms_s >= breach[0] - 1.0) & (self.alarms_s <= breach[1] + WINDOW_S)]
        return None if page_s is None or not rung.size else float(rung[0]) - page_s

    @property
    def false_pages(self) -> int:
        """Pages that nothing followed."""
        spans = self.breaches + self.blips
        return sum(
            not any(start_s <= max(until_s, at_s + AHEAD_S) and end_s >= at_s for start_s, end_s in spans)
            for at_s, until_s in self.pages
        )


def run(name: str, recording: Recording, seed: int = SETTINGS.root_seed) -> Found:
    """One recording through the core, its alerts beside what happened."""
    slo = SloTarget(metric="ttft_s", quantile=0.95, limit_s=LIMIT_S)
    settings = replace(SETTINGS, insight=False, policy=None, root_seed=seed)
    result = backtest(recording, settings, slos=(slo,))
    done = [e for e in recording.requests if isinstance(e, RequestFinished) and e.first_token_us is not None]
    t0_us = min(e.arrived_us for e in done)
    arrived = np.array([(e.arrived_us - t0_us) / 1e6 for e in done])
    ttft = np.array([((e.first_token_us or 0) - e.arrived_us) / 1e6 for e in done])
    fired: dict[str, list[float]] = {}
    end_s = float(arrived.max())
    for alert in (a for a in result.alerts if a.kind == "slo_risk"):
        at_s = (alert.at_us - t0_us) / 1e6
        if alert.state == "firing":
            fired[alert.alert_id] = [at_s, end_s]
        elif alert.state == "resolved" and alert.alert_id in fired:
            fired[alert.alert_id][1] = at_s
    grid = np.arange(WINDOW_S, end_s, 1.0)
    spans = stretches(grid, np.array([_over(ttft[(arrived > t - WINDOW_S) & (arrived <= t)]) for t in grid]))
    known = arrived + ttft
    rings = np.array([_over(ttft[(known > t - WINDOW_S) & (known <= t)]) for t in grid])
    return Found(
        name=name,
        minutes=end_s / 60.0,
        breaches=tuple(span for span in spans if span[1] - span[0] > LEAST_S),
        blips=tuple(span for span in spans if span[1] - span[0] <= LEAST_S),
        pages=tuple((at_s, until_s) for at_s, until_s in fired.values()),
        alarms_s=grid[rings],
    )


def _over(ttft_s: FloatArray) -> bool:
    return bool(ttft_s.size and np.quantile(ttft_s, 0.95) > LIMIT_S)


def stretches(grid: FloatArray, over: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> list[tuple[float, float]]:
    """(begin, end) of the times that are over, joined where less than a window lies between them."""
    spans: list[tuple[float, float]] = []
    for at_s in grid[over].tolist():
        if spans and at_s - spans[-1][1] <= WINDOW_S:
            spans[-1] = (spans[-1][0], at_s)
        else:
            spans.append((at_s, at_s))
    return spans


def _line(found: Found) -> str:
    breaches = [f"{start:.0f}-{end:.0f} s" for start, end in found.breaches]
    pages = [f"{at:.0f}-{until:.0f} s" for at, until in found.pages]
    leads = [lead for breach in found.breaches if (lead := found.lead_s(breach)) is not None]
    return (
        f"  {found.name}: {len(breaches)} breaches ({', '.join(breaches) or 'none'}), {len(found.blips)} shorter, "
        f"pages {', '.join(pages) or 'none'}, {found.false_pages} false, leads {[round(lead) for lead in leads]} s"
    )


def main() -> None:
    """Print what was found, then the figures with their bars."""
    here = [name for name in names() if name.startswith((*JUDGED, CALM))]
    chosen = [name for name in here if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:]))]
    if not chosen:
        print(f"risk: no recordings under {Path(RECORDINGS)}, skipped")
        return
    judged, calm = [], []
    for name in chosen:
        recording = read_recording(RECORDINGS / name)
        if name.startswith(CALM):
            calm += [run(name, recording, SETTINGS.root_seed + number) for number in range(CALM_RUNS)]
        else:
            judged.append(run(name, recording))
    for found in judged + calm:
        print(_line(found))
    breaches = [(found, breach) for found in judged for breach in found.breaches]
    pages, false = sum(len(f.pages) for f in judged), sum(f.false_pages for f in judged)
    if breaches:
        foreseen = sum(found.page_of(breach) is not None for found, breach in breaches)
        leads = [lead for found, breach in breaches if (lead := found.lead_s(breach)) is not None]
        print(f"risk: recall {foreseen / len(breaches):.2f} of {len(breaches)} breaches over 20 s (bar: >= 0.9)")
        print(f"risk: lead over the trailing alarm {np.median(leads):.0f} s in the median of all")
    if pages:
        print(f"risk: precision {1 - false / pages:.2f} of {pages} pages (bar: >= 0.7)")
    ramps = [lead for f, b in breaches if f.name.startswith("C_ramp") and (lead := f.lead_s(b)) is not None]
    if ramps:
        print(f"risk: lead over the trailing alarm {np.median(ramps):.0f} s in the median on the ramp (bar: >= 15 s)")
    if calm:
        minutes = sum(f.minutes for f in calm)
        print(f"risk: {sum(len(f.pages) for f in calm)} pages in {minutes:.0f} minutes of steady load (bar: 0)")
        minutes += sum(f.minutes for f in judged)
        false += sum(f.false_pages for f in calm)
        print(f"risk: {false / minutes * 1440:.1f} false pages per day ({false} in {minutes:.0f} minutes)")


if __name__ == "__main__":
    main()
