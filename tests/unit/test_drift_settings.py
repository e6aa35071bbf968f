"""The knob of drift alerts reaches the core, and a snapshot is taken up with the knob of whoever takes it up."""

import pytest

from twin.core import Core
from twin.settings import CoreSettings


def test_the_knob_reaches_every_kind_of_alert_and_survives_a_restart() -> None:
    settings = CoreSettings(false_alarms_per_day=7.0, smallest_effect_ratio=0.5)
    core = Core("d", settings)
    again = Core.restore(core.snapshot(), settings)
    for one in (core, again):
        knobs = {
            (kind.false_alarms_per_day, kind.smallest_effect_ratio) for kind in one._parts.drift._settings.values()
        }
        assert knobs == {(7.0, 0.5)}


def test_the_knob_is_part_of_the_settings_digest() -> None:
    assert CoreSettings(smallest_effect_ratio=0.5).digest != CoreSettings().digest


@pytest.mark.parametrize("name", ["false_alarms_per_day", "smallest_effect_ratio"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), 1e9])
def test_an_impossible_knob_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        CoreSettings(**{name: value})
