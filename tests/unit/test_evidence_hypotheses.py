"""Hypotheses by rule, and traps in facts."""

from dataclasses import replace

import pytest

from schemas.evidence import ClassChange, Fact
from twin.cost.shape import Role
from twin.cost.taxonomy import SpanClass
from twin.evidence.class_guide import GUIDE
from twin.evidence.hypotheses import RULES, Differences, hypotheses
from twin.evidence.resample import Change
from twin.evidence.sensitivity import verdict
from twin.evidence.traps import explained_ratio, traps_of

SLOWER = {Role.PREFILL: 2.0, Role.DECODE: 2.1, Role.MIXED: 1.9}


def codes(**fields: object) -> list[str]:
    return [guess.code for guess in hypotheses(Differences(**fields))]  # type: ignore[arg-type]


def fact(name: str, base: float, candidate: float, **fields: object) -> Fact:
    given = {"level": "engine", "unit": "ms", "statistic": "mean", "change_ratio": candidate / base - 1.0, **fields}
    return Fact(name=name, base=base, candidate=candidate, **given)  # type: ignore[arg-type]


def kernels(span_class: str, base: float, candidate: float) -> ClassChange:
    return ClassChange(span_class=span_class, level="kernel", unit="ms", base=base, candidate=candidate)


def test_no_difference_gives_no_hypothesis() -> None:
    assert codes() == []
    assert (
        codes(hit_ratios=(0.3, 0.3), role_levels=dict.fromkeys(Role, 1.05), traffic={"requests per second": 1.02}) == []
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"hit_ratios": (0.0, 0.4), "settings": {"enable_prefix_caching": (False, True)}}, ["prefix_reuse"]),
        ({"settings": {"enable_prefix_caching": (False, True)}}, ["prefix_reuse"]),
        ({"hit_ratios": (0.4, 0.1)}, ["prefix_reuse"]),
        ({"settings": {"max_num_seqs": (24, 48)}}, ["setting:max_num_seqs"]),
        ({"traffic": {"requests per second": 1.3, "mean ISL": 1.0}}, ["load"]),
        ({"role_levels": SLOWER}, ["machine"]),
        ({"role_levels": {**SLOWER, Role.DECODE: 1.0, Role.MIXED: 1.0}}, ["cost:prefill"]),
        ({"class_ratios": {"copy": 3.0}, "class_shares": {"copy": 0.8}}, ["class:copy"]),
        ({"class_ratios": {"unknown": 3.0}, "class_shares": {"unknown": 0.8}}, []),
        ({"class_ratios": {"copy": 3.0}, "class_shares": {"copy": 0.05}}, []),
    ],
)
def test_each_difference_gives_its_hypothesis(fields: dict[str, object], expected: list[str]) -> None:
    assert codes(**fields) == expected


def test_the_switch_that_changed_no_hits_is_no_hypothesis() -> None:
    assert codes(hit_ratios=(0.0, 0.01), settings={"enable_prefix_caching": (False, True)}) == []


def test_the_direction_is_told() -> None:
    more, less = (hypotheses(Differences(hit_ratios=ratios))[0].statement for ratios in ((0.0, 0.5), (0.5, 0.0)))
    assert "removes recomputation" in more
    assert "no longer removes" in less


def test_every_hypothesis_is_falsifiable_and_of_a_class() -> None:
    everything = Differences(
        hit_ratios=(0.0, 0.5),
        settings={"max_num_seqs": (24, 48), "kv_blocks": (100, 200)},
        traffic={"requests per second": 2.0},
        role_levels=SLOWER,
    )
    guesses = [
        *hypotheses(everything),
        *hypotheses(Differences(class_ratios={"copy": 3.0}, class_shares={"copy": 1.0})),
    ]
    assert len(guesses) >= len(RULES) - 1
    for guess in guesses:
        assert "if" in guess.refuted_by
        assert guess.span_classes
        assert set(guess.span_classes) <= set(SpanClass)


def test_every_class_says_what_to_look_at_and_what_to_vary() -> None:
    assert set(GUIDE) == set(SpanClass)
    assert all(entry.profiling and entry.simulation for entry in GUIDE.values())


def test_a_child_that_outlasts_its_parent_is_of_another_population() -> None:
    facts = (fact("outer", 228.0, 149.0), fact("inner", 344.0, 250.0, parent="outer"))
    (trap,) = traps_of(facts, ())
    assert trap.voids == "engine"
    assert "different populations" in trap.text
    assert "344 ms against 228 ms" in trap.text
    shorter = (fact("outer", 400.0, 300.0), fact("inner", 344.0, 250.0, parent="outer"))
    assert traps_of(shorter, ()) == ()
    totals = tuple(replace_statistic(each, "total") for each in facts)
    assert traps_of(totals, ()) == ()


def replace_statistic(old: Fact, statistic: str) -> Fact:
    return fact(old.name, old.base or 0.0, old.candidate or 0.0, parent=old.parent, statistic=statistic)


def test_classes_that_explain_less_than_half_leave_the_kernel_level_void() -> None:
    total = fact("kernel total", 6.842, 2.764, level="kernel", unit="s", statistic="total")
    classes = (kernels("compute", 1795.302, 558.524), kernels("attention", 571.032, 186.275))
    assert explained_ratio([total], classes) == pytest.approx(0.3976, abs=1e-4)
    (trap,) = traps_of((total,), classes)
    assert trap.voids == "kernel"
    assert "only 40 %" in trap.text
    assert "60 % is unattributed" in trap.text
    rest = kernels("compute.elementwise", 4000.0, 1600.0)
    assert traps_of((total,), (*classes, rest)) == ()


def test_much_unclassified_time_voids_the_kernel_level() -> None:
    classes = (kernels("compute", 100.0, 100.0), kernels("unknown", 10.0, 1.0))
    (trap,) = traps_of((), classes)
    assert (trap.voids, "9 %" in trap.text) == ("kernel", True)


def test_profiles_of_other_runs_void_the_kernel_level() -> None:
    step = fact("step", 11.1, 9.8)
    of_them = fact("kernel time per step", 8.0, 7.2, level="kernel")
    of_others = fact("kernel time per step", 8.0, 150.0, level="kernel")
    assert traps_of((step, of_them), ()) == ()
    assert [trap.voids for trap in traps_of((step, of_others), ())] == ["kernel"]


def test_a_simulation_agrees_within_the_interval_and_what_machines_stray_by() -> None:
    seen = Change(-0.33, -0.40, -0.25)
    assert verdict(-0.33, seen, 0.0) == "agrees"
    assert verdict(-0.20, seen, 0.0) == "disagrees"
    assert verdict(-0.20, seen, 0.15) == "agrees"
    assert verdict(0.10, seen, 0.15) == "disagrees"
    assert verdict(-0.33, Change(-0.33), 0.15) == verdict(None, seen, 0.15) == "not measured"


def test_turns_join() -> None:
    one, other = (hypotheses(Differences(settings={name: (1, 2)}))[0].turn for name in ("kv_blocks", "max_num_seqs"))
    assert dict(one.joined(other).settings) == {"kv_blocks": 2, "max_num_seqs": 2}
    assert one.joined(replace(other, traffic=True)).traffic
