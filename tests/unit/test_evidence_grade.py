"""Grades of a chain: what each rests on, what one higher lacks, and that nothing taken away raises one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.evidence import EvidenceLevel, Grade
from tests.made_evidence import WHOLE
from twin.evidence.experiments import Covered, plan
from twin.evidence.grade import FIELDS, LEVELS, Basis, grade

ORDER = "DCBA"
NOTHING = Basis(levels={})


def without(*levels: EvidenceLevel, basis: Basis = WHOLE) -> Basis:
    return replace(basis, levels={name: how for name, how in basis.levels.items() if name not in levels})


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (WHOLE, "A"),
        (replace(WHOLE, repeats=1), "B"),
        (without("kernel"), "B"),
        (replace(WHOLE, told=WHOLE.told - {"kv_times"}), "B"),
        (without("kernel", "engine"), "C"),
        (replace(WHOLE, simulation_agrees=False), "C"),
        (replace(WHOLE, simulated="prior"), "C"),
        (replace(NOTHING, simulated="fitted"), "C"),
        (replace(WHOLE, levels=dict.fromkeys(LEVELS, "void"), simulated="none"), "D"),
        (replace(NOTHING, simulated="prior"), "D"),
        (NOTHING, "D"),
    ],
)
def test_each_grade_rests_on_what_it_says(basis: Basis, expected: Grade) -> None:
    assert grade(basis).grade == expected


def test_a_lacks_nothing_and_every_other_grade_says_what() -> None:
    assert grade(WHOLE).missing == ()
    assert plan(WHOLE, grade(WHOLE), Covered(about_prefix=True))[0] == ()
    lacking = grade(replace(without("kernel"), repeats=1, told=frozenset({"hit_tokens", "window_tokens"})))
    assert lacking.grade == "B"
    assert any(text.startswith("kernel level") for text in lacking.missing)
    named = {FIELDS[name] for name in ("chunk_request", "chunk_tokens", "kv_times", "repeats")}
    assert named <= set(lacking.missing)
    assert FIELDS["hit_tokens"] not in lacking.missing


def test_a_void_level_counts_for_nothing_and_names_what_would_mend_it() -> None:
    void = replace(
        WHOLE,
        levels={**WHOLE.levels, "engine": "void", "kernel": "void"},
        voids={"engine": "means of different populations", "kernel": "60 % unattributed"},
        mended_by=("the same steps", "the other classes"),
    )
    found = grade(void)
    assert found.grade == "C"
    assert {"the same steps", "the other classes"} <= set(found.missing)
    assert "engine level: void: means of different populations" in found.reasons


def test_below_c_a_measurement_is_asked_for() -> None:
    assert any("measurement" in text for text in grade(replace(NOTHING, simulated="prior")).missing)


STANDINGS = ("agrees", "measured", "void", "absent")
BASES = st.builds(
    Basis,
    levels=st.fixed_dictionaries({}, optional={level: st.sampled_from(STANDINGS) for level in LEVELS}),
    simulated=st.sampled_from(("fitted", "prior", "none")),
    simulation_agrees=st.booleans(),
    repeats=st.integers(1, 3),
    told=st.frozensets(st.sampled_from(sorted(FIELDS))),
)


@given(BASES, st.sampled_from(LEVELS), st.sampled_from(sorted(FIELDS)))
def test_what_is_taken_away_never_raises_a_grade(basis: Basis, level: EvidenceLevel, name: str) -> None:
    poorer = (
        without(level, basis=basis),
        replace(basis, levels={**basis.levels, level: "void"}),
        replace(basis, repeats=1),
        replace(basis, simulation_agrees=False),
        replace(basis, simulated="none"),
        replace(basis, told=basis.told - {name}),
    )
    high = ORDER.index(grade(basis).grade)
    assert all(ORDER.index(grade(each).grade) <= high for each in poorer)


@given(BASES)
def test_only_grade_a_has_nothing_missing_and_nothing_to_run(basis: Basis) -> None:
    found = grade(basis)
    assert (found.missing == ()) == (found.grade == "A")
    cells, whole = plan(basis, found, Covered(about_prefix=True))
    assert whole == 54
    assert len(cells) < whole
    assert (cells == ()) == (found.grade == "A")
    assert all(cell.why and cell.run_s for cell in cells)


def test_measured_cells_stay_only_to_be_repeated_or_instrumented() -> None:
    covered = Covered(about_prefix=True, caches=frozenset({"off", "on"}), hit_ratios=(0.0, 0.5, 0.9))
    cells, _ = plan(without("kernel"), grade(without("kernel")), covered)
    usual = [cell for cell in cells if cell.prefill == "mixed with decode" and cell.chunk == "default"]
    assert usual
    assert all("kernel trace" in cell.why for cell in usual)
    off = [cell for cell in cells if cell.prefix_cache == "off"]
    assert [cell.hit_ratio for cell in off] == ["0 %"]


def test_a_hit_ratio_that_was_not_measured_is_a_cell_of_its_own() -> None:
    covered = Covered(about_prefix=True, caches=frozenset({"off", "on"}), hit_ratios=(0.0,))
    cells, _ = plan(without("kernel"), grade(without("kernel")), covered)
    assert {cell.hit_ratio for cell in cells if "is not measured" in cell.why} == {"50 %", "90 %"}
