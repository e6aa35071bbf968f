"""A policy file is read key by key: what nobody knows, and what cannot be, is refused in one line."""

from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.policy_file import policy_of, read_policies
from pipelines.settings import read_settings
from twin.advise.policy import Policy

WRONG = {
    "an unknown key": ("[policy]\ntolerance = 1.1\n", "tolerance"),
    "an unknown table": ("[polices]\ntolerance_ratio = 1.1\n", "polices"),
    "an impossible threshold": ("[policy]\nrelease_ratio = 1.2\n", "release_ratio must be below tolerance_ratio"),
    "a threshold of zero": ("[policy]\ntolerance_ratio = 0.0\n", "tolerance_ratio"),
    "not a number": ("[policy]\ntolerance_ratio = nan\n", "tolerance_ratio"),
    "a text for a number": ('[policy]\ncooldown_s = "long"\n', "cooldown_s"),
    "half an engine": ("[policy]\nmost_engines = 2.5\n", "most_engines"),
    "a kind that does not exist": ('[policy]\nallowed = ["reboot"]\n', "reboot"),
    "one deployment's own": ("[deployments.chat]\nleast_engines = 0\n", "deployments.chat"),
    "not TOML": ("[policy\n", "not TOML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_policy_is_refused_in_one_line_that_says_where(tmp_path: Path, name: str) -> None:
    text, word = WRONG[name]
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_policies(path, required=True)
    assert word in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_deployment_differs_only_in_what_its_table_says(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        "[policy]\ntolerance_ratio = 1.1\nmost_engines = 8\n"
        '[deployments.chat]\nallowed = ["scale"]\n[deployments.batch]\nenabled = false\n'
    )
    settings = read_settings({}, directory=tmp_path)
    base = Policy(tolerance_ratio=1.1, most_engines=8)
    assert settings.core("any").policy == base
    assert settings.core("chat").policy == Policy(tolerance_ratio=1.1, most_engines=8, allowed=("scale",))
    assert settings.core("batch").policy is None


def test_without_a_file_the_default_policy_holds(tmp_path: Path) -> None:
    assert read_settings({}, directory=tmp_path).core("d").policy == Policy()
    assert policy_of({}, "d") == Policy()
    with pytest.raises(ConfigError, match="no file"):
        read_settings({"TWINCAST_POLICY": str(tmp_path / "none.toml")}, directory=tmp_path)
