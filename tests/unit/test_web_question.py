"""What-ifs of the page: a question that asks for nothing is the base; each slider moves what it should."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from made_jobs import config, job, plan

from pipelines.web.asking import BUDGET_S, REPLICATIONS, replications
from pipelines.web.question import Prospect, Question, ask, changed
from schemas.lineage import Lineage
from twin.calibration import Calibration
from twin.credibility import Standing, assess
from twin.engine.types import CarriedRequest, EngineState
from twin.forecasting import Footing
from twin.simulate import run

RUNS = 4


def prospect(**changes: Any) -> Prospect:
    standing = Standing(
        input_level="S3",
        steps=1000,
        scored_rounds=10,
        saturated_ratio=0.0,
        stale_s=0.0,
        drifting=frozenset(),
        skill=0.1,
    )
    footing = Footing(
        standing=standing,
        authority="advisory",
        credibility=assess(standing),
        calibration=Calibration().freeze(),
        period_s=10.0,
        lineage=Lineage(twincast_version="0", settings_hash="0", costs_hash="0", seed=1, replications=0, engine=""),
    )
    return Prospect(job(traffic=plan(8.0), **changes), footing)


def ttft_p95_s(found: dict[str, Any], at: int = -1) -> float:
    cells = found["horizons"][at]["latencies"]
    return float(next(c["value_s"] for c in cells if c["metric"] == "ttft_s" and c["quantile"] == 0.95))


def test_a_question_that_asks_for_nothing_is_the_base_itself() -> None:
    base = prospect()
    plain = replace(base.job, coarse_replications=RUNS, scenarios=base.job.scenarios[:1])
    assert changed(base.job, Question(), RUNS).engines == base.job.engines
    assert ask(base, Question(), RUNS) == ask(base, Question(rate_factor=1.0, engines=1), RUNS)
    assert ask(base, Question(), RUNS)["simulated_requests"] == run(plain).simulated_requests


def test_more_traffic_is_worse_and_more_engines_are_better() -> None:
    base = prospect()
    plain, busy = ask(base, Question(), RUNS), ask(base, Question(rate_factor=3.0), RUNS)
    helped = ask(base, Question(rate_factor=3.0, engines=3), RUNS)
    assert ttft_p95_s(plain) < ttft_p95_s(busy)
    assert ttft_p95_s(helped) < ttft_p95_s(busy)
    assert (plain["engines"], helped["engines"]) == (1, 3)
    assert busy["simulated_requests"] == pytest.approx(3 * plain["simulated_requests"], rel=0.1)


def test_fewer_engines_leave_the_last_ones_to_drain() -> None:
    base = prospect()
    three = Prospect(changed(base.job, Question(engines=3), RUNS), base.footing)
    assert ask(three, Question(engines=2), RUNS)["engines"] == 2


def test_a_higher_hit_ratio_costs_less_and_none_at_all_is_no_cache() -> None:
    base = prospect()
    told = [ttft_p95_s(ask(base, Question(rate_factor=3.0, hit_ratio=ratio), RUNS)) for ratio in (0.0, 0.4, 0.8)]
    assert told[0] >= told[1] >= told[2]
    assert told[0] > told[2]
    assert ttft_p95_s(ask(base, Question(rate_factor=3.0), RUNS)) == told[0]  # its prompts share nothing


def test_a_smaller_batch_than_runs_now_can_be_asked() -> None:
    running = tuple(CarriedRequest(isl_tokens=20, osl_tokens=50, arrival_ps=-1, computed_tokens=20) for _ in range(6))
    base = prospect()
    crowded = replace(
        base.job, engines=(replace(base.job.engines[0], state=EngineState(running=running, step_left_ps=9)),)
    )
    found = ask(Prospect(crowded, base.footing), Question(max_num_seqs=2, hit_ratio=0.5), RUNS)
    assert ttft_p95_s(found) > ttft_p95_s(ask(Prospect(crowded, base.footing), Question(), RUNS))


def test_the_shared_text_is_cached_before_all_and_the_rest_is_each_ones_own() -> None:
    found = changed(prospect().job, Question(hit_ratio=0.5), RUNS)
    sources, warm = found.traffic.sources, set(found.engines[0].state.cached_hashes)
    shared = np.isin(sources.hash_values, list(warm))
    owner = np.repeat(np.arange(sources.requests), np.diff(sources.hash_offsets))
    assert 0.4 < shared.mean() < 0.6
    assert set(sources.hash_first[shared].tolist()) == {-1}
    assert np.array_equal(sources.hash_first[~shared], owner[~shared])
    assert np.unique(sources.hash_values[~shared]).size == np.count_nonzero(~shared)


def test_shared_blocks_fit_beside_what_is_in_use() -> None:
    base = prospect()
    tight = replace(base.job, engines=(replace(base.job.engines[0], config=config(kv_blocks=12)),))
    setup = changed(tight, Question(hit_ratio=0.9), RUNS).engines[0]
    assert len(setup.state.cached_hashes) <= 12
    assert setup.config.enable_prefix_caching


@pytest.mark.parametrize(
    "text",
    [
        b'{"rate_factor": 0}',
        b'{"rate_factor": 1e9}',
        b'{"engines": 0}',
        b'{"engines": 1e99}',
        b'{"hit_ratio": 1}',
        b'{"max_num_seqs": "many"}',
        b'{"hit_ratio": NaN}',
        b'{"unknown": 1}',
        b"[]",
    ],
)
def test_a_question_out_of_range_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Question)


@pytest.mark.parametrize(("pace_s", "factor"), [(1e-4, 1.0), (0.01, 1.0), (0.01, 4.0), (0.02, 0.25), (0.05, 2.0)])
def test_work_is_cut_to_the_budget(pace_s: float, factor: float) -> None:
    count = replications(pace_s, factor)
    assert count in REPLICATIONS
    assert count * pace_s * max(factor, 1.0) <= BUDGET_S or count == REPLICATIONS[-1]
