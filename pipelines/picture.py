"""The README's first picture, made from a recording: what was forecast, what happened, and who said so first.

    python -m pipelines.picture [README.md]

writes docs/ramp.svg, and its caption between the marks of a file such as README.md. Forecasts nothing itself: it runs
`backtest`. Law: every figure of the caption is computed from the run that is drawn, or from the one on the steady load.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.backtest import Backtest, backtest
from pipelines.backtest_plot import bands_of
from pipelines.errors import ConfigError
from pipelines.ingest.recording import Recording, read_recording
from pipelines.picture_svg import Band, Drawing, Mark, svg
from pipelines.samples import RAMP, STEADY, WARM, sample
from pipelines.warmth import read_warm
from schemas.requests import RequestFinished
from schemas.slos import SloTarget
from twin.metrics import quantile
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

FILE = Path(__file__).resolve().parent.parent / "docs" / "ramp.svg"
BEGIN, END = "<!-- picture -->", "<!-- /picture -->"
TARGET = SloTarget(metric="ttft_s", quantile=0.95, limit_s=0.5)
HORIZON_S = 30.0
STEP_S = 1.0
LEAST_MEMBERS = 10
US_PER_S = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Account:
    """Seconds from the start of the recording; ratios of 1. `pages` are alerts of risk that fired."""

    foreseen_s: float
    breached_s: float
    reactive_s: float
    windows: int
    covered_ratio: float
    pages: int
    false_pages: int
    quiet_minutes: float
    quiet_pages: int

    @property
    def lead_s(self) -> float:
        """How long before the reactive alarm it was foreseen."""
        return self.reactive_s - self.foreseen_s

    def caption(self) -> str:
        """What the picture shows and what it was measured on."""
        return (
            "A real vLLM 0.32.0 (a tiny model on one CPU core) driven from 30 % to 130 % of its capacity and back. "
            "Dots: TTFT P95 of the requests of each 30 s, as it happened. Band: the 90 % interval forecast 30 s "
            f"earlier; it held {self.covered_ratio:.0%} of {self.windows} windows. The breach of {TARGET.limit_s:g} s "
            f"came at +{self.breached_s:.0f} s; it was foreseen at +{self.foreseen_s:.0f} s, {self.lead_s:.0f} s "
            f"before an alarm on the trailing 30 s P95 (+{self.reactive_s:.0f} s). False pages: {self.false_pages} of "
            f"{self.pages} here, {self.quiet_pages} in {self.quiet_minutes:.0f} minutes of steady half load. Costs "
            "were learned on the steady recording; `python -m pipelines.picture README.md` makes all of this anew."
        )


@dataclass(frozen=True, slots=True)
class Latencies:
    """Arrival and first token, seconds from the start, of every request that got one, by arrival."""

    arrived_s: np.ndarray
    first_token_s: np.ndarray

    @classmethod
    def of(cls, recording: Recording) -> "Latencies":
        """Those of a recording."""
        ends = (event.record for event in recording if isinstance(event.record, RequestFinished) and event.record.timed)
        rows = sorted((end.arrived_us, end.first_token_us) for end in ends if end.first_token_us is not None)
        times = (np.array(rows, dtype=np.float64).reshape(-1, 2) - recording.t0_us) / US_PER_S
        return cls(times[:, 0], times[:, 1])

    def of_window(self, end_s: float) -> float | None:
        """The target's quantile of requests that arrived within the horizon before `end_s`: what came of them."""
        return self._quantile((self.arrived_s > end_s - HORIZON_S) & (self.arrived_s <= end_s))

    def seen(self, now_s: float) -> float | None:
        """The quantile that a dashboard shows at `now_s`: of first tokens of the trailing window."""
        return self._quantile((self.first_token_s > now_s - HORIZON_S) & (self.first_token_s <= now_s))

    def _quantile(self, members: np.ndarray) -> float | None:
        if members.sum() < LEAST_MEMBERS:
            return None
        return float(quantile((self.first_token_s - self.arrived_s)[members], TARGET.quantile))


def first_above(values: Sequence[tuple[float, float | None]]) -> float:
    """The first time at which the value is over the target. Raises ConfigError where there is none."""
    found = next((at_s for at_s, value in values if value is not None and value > TARGET.limit_s), None)
    if found is None:
        raise ConfigError(f"the recording never breaks its target of {TARGET.limit_s:g} s; draw another one")
    return found


def pages_s(run: Backtest) -> list[float]:
    """When alerts of risk fired, each once."""
    fired: dict[str, float] = {}
    for alert in run.alerts:
        if alert.kind == "slo_risk" and alert.state == "firing":
            fired.setdefault(alert.alert_id, (alert.at_us - run.recording.t0_us) / US_PER_S)
    return sorted(fired.values())


def picture(ramp: Path, steady: Path, warm: Path) -> tuple[Account, str]:
    """Run both recordings; the account and the SVG."""
    run = _run(ramp, warm)
    quiet = _run(steady, None)
    latencies = Latencies.of(run.recording)
    last_s = float(latencies.arrived_s[-1])
    times_s = [float(at) for at in np.arange(HORIZON_S, last_s, STEP_S)]
    happened = [(at_s, latencies.of_window(at_s)) for at_s in times_s]
    pages = pages_s(run)
    ahead_s = max(horizon_s for horizon_s in run.core.settings.horizons_s)
    over_s = np.array([at_s for at_s, value in happened if value is not None and value > TARGET.limit_s])
    drawn = [band for band in bands_of(run, (TARGET.metric, TARGET.quantile), HORIZON_S) if band.at_s <= last_s]
    observed = [(band, latencies.of_window(band.at_s)) for band in drawn]
    inside = [band.low_s <= value <= band.high_s for band, value in observed if value is not None]
    if not pages:
        raise ConfigError("no alert of risk fired in this recording; draw another one")
    account = Account(
        foreseen_s=pages[0],
        breached_s=first_above(happened),
        reactive_s=first_above([(at_s, latencies.seen(at_s)) for at_s in times_s]),
        windows=len(inside),
        covered_ratio=float(np.mean(inside)),
        pages=len(pages),
        false_pages=sum(not np.any((over_s >= at_s) & (over_s <= at_s + ahead_s)) for at_s in pages),
        quiet_minutes=_minutes(quiet.recording),
        quiet_pages=len(pages_s(quiet)),
    )
    return account, svg(_drawing(account, drawn, [(b.at_s, v) for b, v in observed if v is not None], last_s))


def _drawing(account: Account, drawn: list[Band], dots: list[tuple[float, float]], last_s: float) -> Drawing:
    marks = (
        Mark(account.foreseen_s, f"foreseen +{account.foreseen_s:.0f} s", "foreseen"),
        Mark(account.breached_s, f"breached +{account.breached_s:.0f} s", "breached"),
        Mark(account.reactive_s, f"reactive alarm +{account.reactive_s:.0f} s", "reactive"),
    )
    return Drawing(
        title="TTFT P95: forecast 30 s ahead, and what happened",
        caption=account.caption(),
        bands=tuple(drawn),
        dots=tuple(dots),
        limit_s=TARGET.limit_s,
        marks=marks,
        span_s=last_s,
    )


def _run(folder: Path, warm: Path | None) -> Backtest:
    recording = read_recording(sample(folder))
    state = None if warm is None else read_warm(sample(warm))
    settings = CoreSettings(
        scenarios=(BASELINE,), insight=False
    )  # what is drawn needs no more, and is the same with it
    return backtest(recording, settings, slos=(TARGET,), warm=state)


def _minutes(recording: Recording) -> float:
    return (recording.events[-1].at_us - recording.t0_us) / US_PER_S / 60.0


def block(account: Account) -> str:
    """The picture and its caption with the marks around them, as they stand in a Markdown file."""
    return f"{BEGIN}\n![TTFT P95 as forecast and as it happened](docs/{FILE.name})\n\n*{account.caption()}*\n{END}"


def put_into(text: str, where: str, account: Account) -> str:
    """A Markdown text with the picture in place of what stood between the marks. Raises ConfigError without marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ConfigError(f"{where} has no lines {BEGIN} and {END}; write them where the picture belongs")
    return head + block(account) + tail


def main(names: Sequence[str]) -> int:
    """Make the picture, and put it into the files named."""
    account, drawn = picture(RAMP, STEADY, WARM)
    FILE.write_text(drawn, encoding="utf-8")
    for name in names:
        path = Path(name)
        path.write_text(put_into(path.read_text(encoding="utf-8"), name, account), encoding="utf-8")
    print(account.caption())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
