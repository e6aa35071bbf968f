"""The worked cases that ship, and case files that are wrong."""

import shutil
from pathlib import Path

import pytest

from pipelines.errors import ConfigError
from pipelines.evidence.evidence_cases import chain_of_case
from pipelines.evidence.evidence_windows import Asked, windows_chain
from pipelines.samples import EXAMPLES
from schemas.evidence import Evidence
from tests.made_evidence import shipped_case
from twin.evidence.grade import FIELDS

CASES = EXAMPLES / "evidence"
RECORDINGS = EXAMPLES / "recordings"
NO_CASE = Path("none")


def case(path: Path) -> Evidence:
    return chain_of_case(path, Asked(base=NO_CASE, candidate=NO_CASE))


@pytest.fixture(scope="module")
def measured() -> Evidence:
    return shipped_case("prefix_cache")


@pytest.fixture(scope="module")
def published() -> Evidence:
    return shipped_case("published_prefix")


def test_the_measured_case_finds_the_cache_and_the_class(measured: Evidence) -> None:
    assert measured.hypotheses[0].code == "prefix_reuse"
    assert set(measured.span_classes) == {"compute", "attention"}
    shares = {row.span_class: row.share_of_change_ratio or 0.0 for row in measured.classes}
    assert max(shares, key=lambda name: shares[name]) == "compute"
    assert shares["compute"] > 0.7


def test_the_simulated_effect_lies_in_the_measured_interval_at_every_hit_ratio(measured: Evidence) -> None:
    groups = [effect for effect in measured.hypotheses[0].effects if effect.group]
    assert [effect.group for effect in groups] == ["hit ratio 0 %", "hit ratio 37 %", "hit ratio 79 %"]
    for effect in groups:
        assert effect.change_ratio is not None
        assert effect.observed_low_ratio is not None
        assert effect.observed_high_ratio is not None
        assert effect.observed_low_ratio <= effect.change_ratio <= effect.observed_high_ratio
    assert [abs(effect.change_ratio or 0.0) > 0.15 for effect in groups] == [False, True, True]


def test_the_measured_case_is_of_grade_b_for_want_of_kernels_and_repeats(measured: Evidence) -> None:
    assert measured.grade == "B"
    assert measured.advice.title == "Recommendation"
    assert any(text.startswith("kernel level") for text in measured.missing)
    assert {"repeats", FIELDS["kv_times"]} <= set(measured.missing)
    assert FIELDS["chunk_tokens"] not in measured.missing
    assert {"request level: measured, agrees with the simulation", "no repeat"} <= set(measured.grade_reasons)


def test_every_boundary_of_the_measured_case_is_told(measured: Evidence) -> None:
    assert len(measured.boundaries) == 4
    assert all(
        row.window_s and row.events and row.requests_finished and row.tokens_finished for row in measured.boundaries
    )
    assert {row.requests_finished for row in measured.boundaries} == {1082}


def test_the_published_case_says_what_was_shown(published: Evidence) -> None:
    assert "removes recomputation of prefix tokens in prefill: every step gets lighter" in published.finding
    assert "for single-request prefill it reached the user: TTFT 476 -> 343 ms (-28 %)" in published.finding
    assert [text.split(":")[0] for text in published.not_shown] == ["throughput", "chunk level", "stability"]


def test_the_published_case_sees_both_traps_and_they_cap_the_grade(published: Evidence) -> None:
    assert published.grade == "C"
    assert published.advice.title == "Hypothesis"
    populations = next(text for text in published.limits if "different populations" in text)
    assert "344 ms against 228 ms" in populations
    unattributed = next(text for text in published.limits if "unattributed" in text)
    assert "explain only 40 % of the change of kernel time; 60 %" in unattributed
    assert sum("level: void" in text for text in published.grade_reasons) == 2
    assert set(FIELDS.values()) <= set(published.missing)
    assert "fewer than 28 % of their prompt tokens hit" in published.refuted_by


def test_without_the_traps_the_levels_of_the_published_case_would_stand(tmp_path: Path) -> None:
    text = (CASES / "published_prefix.toml").read_text()
    mended = text.replace('parent = "execute_model"\n', "") + "\n".join(
        ["[[span_class]]", 'span_class = "compute.elementwise"', "base_ms = 4475.7", "candidate_ms = 2019.2"]
    )
    (tmp_path / "mended.toml").write_text(mended)
    found = case(tmp_path / "mended.toml")
    assert not any("void" in text for text in found.grade_reasons)
    assert found.grade == "C"  # nothing was simulated


@pytest.mark.slow
def test_the_limit_case_names_the_large_batches_that_fall_out() -> None:
    found = case(CASES / "tpot_limit.toml")
    assert found.grade == "D"
    assert found.advice.title == "Hypothesis"
    values = [effect.value or 0.0 for effect in found.hypotheses[0].effects]
    assert values == sorted(values)
    tight, loose = "TPOT P95 <= 10 ms", "TPOT P95 <= 20 ms"
    fallen = [effect.setting for effect in found.hypotheses[0].effects if effect.falls_out == (tight,)]
    assert fallen
    assert fallen[0] != "max_num_seqs=8"
    for effect in found.hypotheses[0].effects:
        assert (tight in effect.falls_out) == ((effect.value or 0.0) > 10.0)
        assert (loose in effect.falls_out) == ((effect.value or 0.0) > 20.0)
    assert f"drops {', '.join(fallen)}" in found.finding
    device = [text for text in found.assumptions if "gb300-nvl72 device." in text]
    assert device
    assert all("sourced:" in text or "assumed" in text for text in device)


FIGURE = '[[figure]]\nlevel = "request"\nname = "TTFT"\nunit = "ms"\nbase = 2.0\ncandidate = 1.0\n'
HEAD = 'title = "t"\ndeployment = "d"\nat = 2026-01-01T00:00:00Z\nbase = "a"\ncandidate = "b"\n'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "kind"),
        ('kind = "nothing"\n', "nothing"),
        (f'kind = "figures"\n{HEAD}', "at least one figure"),
        (f'kind = "figures"\n{HEAD}told = ["colour"]\n{FIGURE}', "colour"),
        (f'kind = "figures"\n{HEAD}extra = 1\n{FIGURE}', "extra"),
        (f'kind = "figures"\n{HEAD}{FIGURE}'.replace("2.0", '"two"'), "base"),
        (f'kind = "figures"\n{HEAD}{FIGURE}'.replace("2.0", "inf"), "TTFT.*base must be finite and > 0"),
        (f'kind = "figures"\n{HEAD}{FIGURE}'.replace("1.0", "-1.0"), "TTFT.*candidate must be finite and > 0"),
        (f'kind = "figures"\n{HEAD}{FIGURE}{FIGURE}', "TTFT.*2 times"),
        (f'kind = "figures"\n{HEAD}{FIGURE}parent = "nope"\n', "parent 'nope'"),
        (f'kind = "figures"\n{HEAD}{FIGURE}parent = "TTFT"\n', "its own parent"),
        (f'kind = "figures"\n{HEAD}[settings.x]\nbase = true\ncandidate = true\n{FIGURE}', "setting 'x'.*both sides"),
        (
            f'kind = "figures"\n{HEAD}{FIGURE}[[span_class]]\nspan_class = "copy"\nbase_ms = nan\ncandidate_ms = 1.0\n',
            "copy.*base_ms",
        ),
        ('kind = "windows"\nbase = "nowhere"\ncandidate = "nowhere"\n', "nowhere"),
        ("kind = [", "TOML"),
    ],
)
def test_a_wrong_case_names_file_and_field(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "case.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=where) as raised:
        case(path)
    assert str(tmp_path) in str(raised.value)


def test_classes_that_change_by_more_than_their_total_void_the_kernel_level(tmp_path: Path) -> None:
    text = (CASES / "published_prefix.toml").read_text()
    assert "base_ms = 1795.302" in text
    (tmp_path / "case.toml").write_text(text.replace("base_ms = 1795.302", "base_ms = 17953.02"))
    found = case(tmp_path / "case.toml")
    assert any("are of different kernels" in text for text in found.limits)
    assert sum("level: void" in text for text in found.grade_reasons) == 2


def test_a_recording_given_twice_is_no_repeat(tmp_path: Path) -> None:
    off, on, copy = RECORDINGS / "prefix_off", RECORDINGS / "prefix_on", tmp_path / "copy"
    shutil.copytree(off, copy)
    for repeat in (off, copy):
        with pytest.raises(ConfigError, match="no repeat; record another run"):
            windows_chain(Asked(base=off, candidate=on, base_repeats=(repeat,), candidate_repeats=(repeat,)))


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("tpot_s:0.95:0.010", "tpot_s:0.95:0.030", "tighter"),
        ("tpot_s:0.95:0.010", "ttft_s:0.95:0.010", "tighter|judged"),
        ("[8, 16, 32, 64, 128, 256]", "[8]", "2 to"),
        ("requests = 400", "requests = 0", "requests"),
        ('hardware = "gb300-nvl72"', 'hardware = "abacus"', "abacus"),
        ("max_num_seqs = 64", 'max_num_seqs = "many"', "max_num_seqs"),
    ],
)
def test_a_wrong_limit_case_is_refused(tmp_path: Path, old: str, new: str, where: str) -> None:
    text = (CASES / "tpot_limit.toml").read_text()
    assert old in text
    small = (
        text.replace(old, new).replace("[8, 16, 32, 64, 128, 256]", "[2, 4]").replace("requests = 400", "requests = 20")
    )
    (tmp_path / "case.toml").write_text(small)
    (tmp_path / "dense_70b.json").write_text((CASES / "dense_70b.json").read_text())
    with pytest.raises(ConfigError, match=where):
        case(tmp_path / "case.toml")
