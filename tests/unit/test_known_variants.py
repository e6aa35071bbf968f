"""What-ifs: nothing asked is the recording; every field is checked by name; shared prefixes hit as often as asked."""

from dataclasses import replace

import numpy as np
import pytest

from schemas.slos import SloTarget
from tests.made_jobs import COST, config
from tests.made_known import traffic
from twin.engine.cluster_types import KvLink
from twin.known.points import FULL, OFFERED, run_point
from twin.known.run import run_known
from twin.known.variants import Base, build
from twin.known.verdict import rank

BASE = Base((config(),), lambda _: COST, traffic(300))


def test_nothing_asked_is_the_recording_itself() -> None:
    variant = build(BASE, {})
    assert variant.name == "as recorded"
    assert [engine.config for engine in variant.engines] == [config()]
    assert variant.requests.arrived_s is BASE.requests.arrived_s


def test_fields_of_the_engine_are_read_as_texts_and_checked() -> None:
    variant = build(BASE, {"max_num_seqs": "8", "enable_prefix_caching": "true", "policy": "priority"})
    changed = variant.engines[0].config
    assert (changed.max_num_seqs, changed.enable_prefix_caching, changed.policy) == (8, True, "priority")
    assert variant.name == "max_num_seqs=8, enable_prefix_caching=true, policy=priority"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kv_blocks": "0"}, "kv_blocks: Expected `int` >= 1"),
        ({"kv_blocks": "nan"}, "kv_blocks: Expected `int`, got 'nan'"),
        ({"max_num_seqs": "65537"}, "max_num_seqs: Expected `int` <= 65536"),
        ({"cudagraph_capture_sizes": "[1,"}, "cudagraph_capture_sizes: Input data was truncated"),
        ({"role": "prefill"}, "none has 'decode'"),
        ({"policy": "best"}, "policy: Invalid enum value"),
        ({"engine": "x"}, "engine is unknown"),
        ({"engines": 0}, "engines must be a whole number in 1"),
        ({"prefix_hit_ratio": 1.01}, "prefix_hit_ratio must be in 0 .. 1"),
        ({"isl_factor": 0.0}, "isl_factor must be a finite number > 0"),
        ({"rate_factor": float("nan")}, "rate_factor must be a finite number > 0"),
        ({"kv_blocks": "9"}, "request .* KV blocks but engine"),
        ({"osl_factor": 500.0}, "request .* KV blocks but engine"),
    ],
)
def test_what_cannot_be_is_refused_by_name_before_anything_runs(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build(BASE, settings)


def test_more_engines_are_copies_and_fewer_are_the_first() -> None:
    more = build(BASE, {"engines": 3})
    assert len({engine.config.engine for engine in more.engines}) == 3
    assert len({engine.config.max_num_seqs for engine in more.engines}) == 1
    pair = Base((config(), config(engine="e1")), BASE.cost_of, BASE.requests)
    assert [engine.config.engine for engine in build(pair, {"engines": 1}).engines] == ["e0"]


def test_lengths_and_rates_scale() -> None:
    variant = build(BASE, {"isl_factor": 2.0, "osl_factor": 0.5, "rate_factor": 4.0}).requests
    np.testing.assert_allclose(variant.isl_tokens, BASE.requests.isl_tokens * 2)
    assert abs(variant.osl_tokens.mean() / BASE.requests.osl_tokens.mean() - 0.5) < 0.02
    np.testing.assert_allclose(variant.arrived_s, BASE.requests.arrived_s / 4.0)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
def test_prefixes_hit_as_often_as_asked_for_once_the_cache_is_warm(ratio: float) -> None:
    variant = build(BASE, {"prefix_hit_ratio": ratio, "kv_blocks": "4000"})
    run = run_known(variant.engines, variant.requests)
    hit = run.cached_tokens[20:].sum() / variant.requests.isl_tokens[20:].sum()
    assert hit == pytest.approx(ratio, abs=0.05)


def test_a_point_tells_both_loads_and_judges_ttft_only_as_offered() -> None:
    limits = [
        SloTarget(metric="ttft_s", quantile=0.95, limit_s=1e-6),
        SloTarget(metric="tpot_s", quantile=0.5, limit_s=9),
    ]
    point = run_point(build(BASE, {"max_num_seqs": "4"}), limits)
    assert [(judged.load, judged.met) for judged in point.judged] == [(OFFERED, False), (OFFERED, True), (FULL, True)]
    assert not point.meets_all
    assert point.latency_s["tpot_s"]["p95"] <= point.full_tpot_s["p95"] * 1.5
    assert point.ceiling_requests_per_s > 0.0


def test_a_larger_batch_gives_more_throughput_and_slower_tokens() -> None:
    small, large = (run_point(build(BASE, {"max_num_seqs": size, "kv_blocks": "2000"})) for size in ("2", "16"))
    assert large.ceiling_requests_per_s > 2 * small.ceiling_requests_per_s
    assert large.full_tpot_s["p50"] > small.full_tpot_s["p50"]
    assert large.decode_chip_s_per_1000_tokens < small.decode_chip_s_per_1000_tokens


def test_more_prefix_hits_cost_less_prefill() -> None:
    cold, warm = (run_point(build(BASE, {"prefix_hit_ratio": ratio, "kv_blocks": "4000"})) for ratio in (0.0, 0.9))
    assert warm.prefill_chip_s_per_1000_tokens < 0.4 * cold.prefill_chip_s_per_1000_tokens


def test_blocks_that_follow_from_the_rest_follow_a_change_of_it() -> None:
    base = Base(BASE.configs, BASE.cost_of, BASE.requests, kv_blocks_of=lambda found: 500 * found.tensor_parallel)
    assert build(base, {}).engines[0].config.kv_blocks == 500
    assert build(base, {"tensor_parallel": "4"}).engines[0].config.kv_blocks == 2000
    assert build(base, {"tensor_parallel": "4", "kv_blocks": "70"}).engines[0].config.kv_blocks == 70


def test_prefill_and_decode_apart_need_a_link_and_cost_what_it_takes() -> None:
    link = KvLink(token_ps=10**9)
    joined = Base(BASE.configs, BASE.cost_of, BASE.requests, link_of=lambda _: link)
    near = build(replace(joined, link_of=lambda _: KvLink(token_ps=1)), {"pd": "1:2", "kv_blocks": "2000"})
    far = build(joined, {"pd": "1:2", "kv_blocks": "2000"})
    assert [engine.config.role for engine in far.engines] == ["prefill", "decode", "decode"]
    points = [run_point(variant) for variant in (near, far)]
    assert points[0].mix["P:D"] == "1:2"
    waits = [point.latency_s["ttft_s"]["p50"] for point in points]
    assert waits[1] - waits[0] == pytest.approx(float(np.median(BASE.requests.isl_tokens)) * 1e-3, rel=0.2)
    assert points[0].prefill_chip_s_per_1000_tokens > 0.0
    with pytest.raises(ValueError, match="KV link"):
        build(BASE, {"pd": "1:2"})


@pytest.mark.parametrize("split", ["0:1", "1", "1:2:3", "a:b", "-1:2", "1000:1000"])
def test_a_bad_split_is_refused(split: str) -> None:
    with pytest.raises(ValueError, match="pd must be"):
        build(replace(BASE, link_of=lambda _: KvLink(token_ps=1)), {"pd": split})


def test_a_split_and_a_number_of_engines_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="leave engines and role out"):
        build(BASE, {"pd": "1:1", "engines": 2})


def test_splits_of_one_ratio_are_compared_and_others_are_not() -> None:
    joined = Base(BASE.configs, BASE.cost_of, BASE.requests, link_of=lambda _: KvLink(token_ps=1))
    points = [run_point(build(joined, {"pd": split, "kv_blocks": "2000"})) for split in ("1:1", "2:2", "1:2")]
    rankings, refused = rank(points)
    assert sorted(len(ranking.best_first) for ranking in rankings) == [1, 2]
    assert refused.startswith("not ranked against each other: P:D is 1:1, 1:2")
