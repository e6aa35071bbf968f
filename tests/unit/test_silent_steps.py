"""A step feed that dies while requests go on, an engine that comes: what is told of inputs, what authority does."""

from typing import Any

import msgspec
import pytest
from synthetic import START_US, engine_config, service

from pipelines.backtest import Backtest, backtest
from pipelines.ingest.recording import Recording, event_of, in_order
from schemas.requests import RequestArrived, RequestFinished
from schemas.steps import StepBatch
from twin.core import Core
from twin.deployment import STEPS_SILENT_US
from twin.settings import CoreSettings
from twin.traffic.scenarios import BASELINE

SECONDS = 150.0
CUT_US = START_US + 70_000_000
SETTINGS = CoreSettings(
    period_s=10.0, horizons_s=(10.0,), scenarios=(BASELINE,), coarse_replications=1, fine_replications=2, insight=False
)


def played(records: list[Any]) -> Backtest:
    events = in_order(event_of(record) for record in records)
    return backtest(Recording("made", "S3", min(event.at_us for event in events), events), SETTINGS)


def without_late_steps(record: Any) -> bool:
    return not isinstance(record, StepBatch) or record.steps[-1].at_us < CUT_US


@pytest.fixture(scope="module")
def cut() -> Backtest:
    return played([record for record in service(SECONDS) if without_late_steps(record)])


def test_a_dead_step_feed_lowers_the_input_level_and_ends_authority(cut: Backtest) -> None:
    told = {f.as_of_us: (f.input_level, f.authority) for f in cut.forecasts if f.phase == "fine"}
    early = [level for at_us, (level, _) in told.items() if at_us < CUT_US]
    late = [each for at_us, each in told.items() if at_us > CUT_US + STEPS_SILENT_US + 10_000_000]
    assert early
    assert set(early) == {"S3"}
    assert len(late) >= 3
    assert set(late) == {("S0", "advisory")}
    reasons = [f.credibility.reasons for f in cut.forecasts][-1]
    assert any("input level S0" in reason for reason in reasons)


def test_the_same_with_steps_to_the_end_stays_at_its_level() -> None:
    levels = {f.input_level for f in played(list(service(SECONDS))).forecasts}
    assert levels == {"S3"}


def test_a_silent_service_is_not_taken_for_a_dead_feed() -> None:
    """No request ends: nobody can tell, and nothing is said."""
    records = [record for record in service(SECONDS) if without_late_steps(record)]
    ended = [r for r in records if not isinstance(r, RequestFinished | RequestArrived) or r.at_us < CUT_US]
    core = played(ended).core
    assert core.state.input_level == "S3"


def test_the_level_survives_a_restart(cut: Backtest) -> None:
    again = Core.restore(cut.core.snapshot(), SETTINGS)
    assert again.state.input_level == cut.core.state.input_level == "S0"


def test_an_engine_like_the_others_that_comes_takes_no_authority() -> None:
    twin = msgspec.structs.replace(engine_config(), engine="1", at_us=START_US + 140_000_000)
    alone, joined = played(list(service(SECONDS))), played([*service(SECONDS), twin])
    assert alone.core.authority.rounds > 3
    assert joined.core.authority.rounds >= alone.core.authority.rounds - 1
