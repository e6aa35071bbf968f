"""The drawing of a backtest: what was forecast and what then happened, and nothing that did not."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from synthetic import service

from pipelines.backtest import Backtest, backtest
from pipelines.backtest_plot import plot_of
from pipelines.cli import main
from pipelines.ingest.recording import Recording, event_of, in_order
from pipelines.samples import EXAMPLES
from schemas.slos import SloTarget
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

SETTINGS = CoreSettings(
    period_s=10.0, horizons_s=(10.0,), scenarios=(BASELINE,), coarse_replications=1, fine_replications=2, insight=False
)


@pytest.fixture(scope="module")
def run() -> Backtest:
    events = in_order(event_of(record) for record in service(150.0))
    return backtest(Recording("made", "S3", min(event.at_us for event in events), events), SETTINGS)


def test_every_scored_window_has_a_dot_and_the_drawing_is_xml(run: Backtest) -> None:
    drawn = plot_of(run)
    ElementTree.fromstring(drawn)
    windows = [s for s in run.scores if s.phase == "fine" and s.horizon_s == 10.0]
    legend = 1
    assert len(windows) > 3
    assert drawn.count('<circle class="dot"') == len(windows) + legend
    assert "TTFT P95: forecast 10 s ahead" in drawn
    assert "forecast 10 s earlier" in drawn
    assert drawn == plot_of(run)


def test_a_target_is_drawn_as_a_line_and_decides_what_is_drawn(run: Backtest) -> None:
    assert 'class="limit"' not in plot_of(run)
    drawn = plot_of(run, (SloTarget(metric="e2e_s", quantile=0.5, limit_s=0.7),))
    assert "SLO 0.7 s" in drawn
    assert "E2E P50: forecast" in drawn


@pytest.mark.slow
def test_the_command_writes_it_and_marks_the_alert(tmp_path: Path) -> None:
    file = tmp_path / "plot.svg"
    folder = EXAMPLES / "recordings" / "ramp"
    assert main(["backtest", str(folder), "--slo", "ttft_s:0.95:0.5", "--plot", str(file)]) == 0
    assert re.search(r"slo_risk \+\d+ s", file.read_text())


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x")
    place = tmp_path / "file" / "plot.svg"
    assert main(["backtest", str(EXAMPLES / "recordings" / "steady"), "--level", "S0", "--plot", str(place)]) == 2
    assert "cannot be written" in capsys.readouterr().err
