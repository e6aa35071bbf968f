"""Effects: a change that does nothing changes nothing; cheaper helps; what binds helps most; noise gives intervals."""

import msgspec
import pytest

from tests.made_known import engine, steps, traffic
from twin.cost.block import StepBlock
from twin.cost.freeze import OperatingRange
from twin.cost.frozen import FrozenStepCost
from twin.cost.roofline import Roofline
from twin.cost.shape import Role
from twin.cost.static import static_cost
from twin.graph.build import operator_graph
from twin.graph.model import model_from_config
from twin.hardware.presets import preset
from twin.known.effects import class_shares, cost_changes, hardware_changes, rank_effects

LLAMA = {
    "model_type": "llama",
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 32000,
}


def test_a_change_that_does_nothing_has_an_effect_of_exactly_zero() -> None:
    found = rank_effects([engine()], traffic(60), {("resource", "nothing"): lambda same: same})
    changes = (found[0].ttft_p95, found[0].tpot_p95, found[0].ceiling)
    assert [change.mean for change in changes if change is not None] == [0.0, 0.0, 0.0]


def test_what_binds_helps_most_and_what_is_idle_helps_nothing() -> None:
    bound = engine(FrozenStepCost.uniform(fixed_ps=10**6, prefill_token_ps=10**9))
    found = rank_effects([bound], traffic(120), cost_changes())
    assert found[0].name in ("prefill_token", "mixed steps")
    by_name = {effect.name: effect for effect in found}
    assert by_name["prefill_token"].ceiling is not None
    assert by_name["prefill_token"].ceiling.mean == pytest.approx(1 / 0.9 - 1, rel=0.01)
    assert by_name["decode_context_token"].weight == 0.0
    assert [effect.weight for effect in found] == sorted((effect.weight for effect in found), reverse=True)


def test_noise_gives_intervals_and_the_same_draws_for_all() -> None:
    noise = static_cost(StepBlock.from_steps(steps(1500)), 16).noise
    changes = {("resource", "nothing"): lambda same: same} | dict(list(cost_changes().items())[:1])
    found = {e.name: e for e in rank_effects([engine()], traffic(60), changes, noise=noise)}
    nothing = found.pop("nothing")
    assert nothing.ttft_p95 is not None
    assert (nothing.ttft_p95.mean, nothing.ttft_p95.low, nothing.ttft_p95.high) == (0.0, 0.0, 0.0)
    other = next(iter(found.values())).ttft_p95
    assert other is not None
    assert other.low is not None
    assert other.high is not None
    assert other.low <= other.mean <= other.high


def test_operators_and_classes_of_a_model_on_hardware_are_ranked() -> None:
    graph = operator_graph(model_from_config(LLAMA))
    work = OperatingRange(max_num_seqs=16, max_num_batched_tokens=256)
    changes = hardware_changes(graph, Roofline(preset("h100-sxm")), work)
    assert {kind for kind, _ in changes} == {"class", "operator", "resource"}
    assert ("operator", "gate_up_proj") in changes
    cheaper = changes["resource", "host"](engine())
    assert cheaper.config == engine().config


def test_class_shares_are_of_the_step_time_of_each_role() -> None:
    told = [
        msgspec.structs.replace(step, class_us={"compute": step.duration_us // 2, "attention": step.duration_us // 4})
        for step in steps(60)
    ]
    shares = class_shares(told)
    for role in Role:
        assert shares["compute"][role] == pytest.approx(0.5, abs=0.01)
        assert shares["attention"][role] == pytest.approx(0.25, abs=0.01)
    assert class_shares(steps(20)) == {}
