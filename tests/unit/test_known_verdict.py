"""Words about what-ifs: who falls out when a limit tightens, who is best, and what must not be compared and why."""

from typing import Any

from schemas.slos import SloTarget
from tests.made_jobs import COST, config
from tests.made_known import traffic
from twin.known.points import FULL, OFFERED, Judged, Point, run_point
from twin.known.variants import Base, build
from twin.known.verdict import limit_sentences, rank

LOOSE = SloTarget(metric="tpot_s", quantile=0.95, limit_s=0.020)
TIGHT = SloTarget(metric="tpot_s", quantile=0.95, limit_s=0.010)


def point(name: str, tpot_s: float | None = 0.005, tokens: float = 100.0, **mix: Any) -> Point:
    return Point(
        name=name,
        settings={},
        chips=1,
        mix={"mean ISL": 200.0, "mean OSL": 50.0, "P:D": "together", **mix},
        offered_requests_per_s=1.0,
        latency_s={},
        success_ratio=1.0,
        preemptions=0,
        prefix_hit_ratio=0.0,
        ceiling_requests_per_s=1.0,
        full_tpot_s={},
        prefill_chip_s_per_1000_tokens=1.0,
        decode_chip_s_per_1000_tokens=1.0,
        tokens_per_min_per_chip=tokens,
        offered_tokens_per_min_per_chip=1.0,
        judged=tuple(Judged(FULL, limit, tpot_s) for limit in (LOOSE, TIGHT)),
        simulator="kernel",
    )


def test_tightening_a_limit_says_who_falls_out_on_the_way() -> None:
    points = [point("b=8", 0.008), point("b=16", 0.015), point("b=48", 0.030)]
    loose, tight = limit_sentences(points, [TIGHT, LOOSE])
    assert loose == "Full batch, TPOT P95 <= 20 ms: falls out: b=48 (30.0 ms). Stays: b=8 (8.0 ms); b=16 (15.0 ms)."
    assert tight == (
        "Full batch, TPOT P95 <= 20 ms tightened to 10 ms: also falls out: b=16 (15.0 ms). Stays: b=8 (8.0 ms)."
    )


def test_nothing_and_undefined_are_said() -> None:
    loose, tight = limit_sentences([point("b=8", None)], [LOOSE, TIGHT])
    assert "falls out: nothing. Stays: b=8 (undefined)" in loose
    assert "also falls out: nothing" in tight


def test_points_that_meet_the_limits_are_ranked_by_tokens_per_chip() -> None:
    points = [point("slow", tokens=1.0), point("out", 0.5, tokens=9.0), point("best", tokens=5.0)]
    rankings, refused = rank(points)
    assert [each.name for each in rankings[0].best_first] == ["best", "slow"]
    assert refused == ""


def test_other_lengths_or_mixes_are_never_ranked_against_each_other_and_the_words_say_which() -> None:
    for name, value in (("mean ISL", 400.0), ("mean OSL", 60.0), ("P:D", "1:3")):
        rankings, refused = rank([point("a"), point("b", **{name: value})])
        assert [len(ranking.best_first) for ranking in rankings] == [1, 1]
        assert refused.startswith("not ranked against each other: " + name)
        assert str(value) in refused
        others = {"mean ISL", "mean OSL", "P:D"} - {name}
        assert not any(f"{other} is" in refused for other in others)


def test_lengths_that_differ_by_a_hair_are_the_same_traffic() -> None:
    rankings, refused = rank([point("a"), point("b", **{"mean ISL": 202.0})])
    assert len(rankings) == 1
    assert refused == ""


def test_points_that_were_really_run_are_refused_a_common_ranking_when_prompts_differ() -> None:
    base = Base((config(),), lambda _: COST, traffic(80))
    points = [run_point(build(base, {"isl_factor": factor}), [LOOSE]) for factor in (1.0, 1.5)]
    _, refused = rank(points)
    assert "mean ISL" in refused
    assert {judged.load for judged in points[0].judged} == {OFFERED, FULL}
