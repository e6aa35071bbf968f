"""Events become one row per request; what was not told stays untold; misfits are named before anything runs."""

import numpy as np
import pytest

from schemas.requests import RequestAborted, RequestRejected
from tests.made_jobs import AS_OF_US, COST, config
from tests.made_known import DEPLOYMENT, arrived, engine, finished, recorded, served, traffic
from twin.known.comparison import compare
from twin.known.requests import NOT_TOLD, End, known_requests, require_fit
from twin.known.run import Routing, route


def rejected(number: int, time_s: float) -> RequestRejected:
    at_us = AS_OF_US + round(time_s * 1e6)
    return RequestRejected(deployment=DEPLOYMENT, request_id=f"r{number}", at_us=at_us, arrived_us=at_us, isl_tokens=70)


def test_every_request_that_arrived_is_one_row_in_order_of_arrival() -> None:
    events = [finished(2, 2.0), arrived(1, 1.0), arrived(0, 0.5), finished(0, 0.5), rejected(3, 3.0), arrived(3, 3.0)]
    for order in (events, events[::-1]):
        found = known_requests(order, AS_OF_US)
        assert found.ids == ("r0", "r1", "r2", "r3")
        assert found.end.tolist() == [End.FINISHED, End.OPEN, End.FINISHED, End.REJECTED]
        assert found.arrived_s.tolist() == [0.5, 1.0, 2.0, 3.0]


def test_what_was_not_told_is_nan_or_minus_one_and_never_zero() -> None:
    found = known_requests([finished(0, 0.0), arrived(1, 1.0)], AS_OF_US)
    assert np.isnan(found.queued_s).all()
    assert np.isnan(found.first_s[1])
    assert found.preemptions.tolist() == [NOT_TOLD, NOT_TOLD]
    assert not found.has_engine_stamps
    assert found.has_client_times


def test_an_untimed_end_gives_a_length_and_no_latency() -> None:
    found = known_requests([finished(0, 0.0, timed=False)], AS_OF_US)
    assert found.osl_tokens.tolist() == [11]
    assert not found.has_client_times


def test_unknown_outputs_are_drawn_from_known_ones_beyond_what_was_generated_and_always_alike() -> None:
    known = [finished(i, i, osl_tokens=10 + i) for i in range(40)]
    at_us = AS_OF_US + 50_000_000
    aborted = RequestAborted(
        deployment=DEPLOYMENT, request_id="x", at_us=at_us, arrived_us=at_us, isl_tokens=9, osl_tokens=30
    )
    drawn = {known_requests([*known, arrived(99, 60.0), aborted], AS_OF_US).osl_tokens[40:].tobytes() for _ in range(3)}
    assert len(drawn) == 1
    lengths = np.frombuffer(drawn.pop(), np.int64)
    assert 31 <= lengths[0] <= 49
    assert 1 <= lengths[1] <= 49


def test_nothing_to_simulate_is_said() -> None:
    with pytest.raises(ValueError, match="no requests"):
        known_requests([], AS_OF_US)
    with pytest.raises(ValueError, match="osl_tokens"):
        known_requests([arrived(0, 0.0)], AS_OF_US)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kv_blocks": 4}, "request 'r1' .*needs 21 KV blocks but engine 'e0' has 3; raise kv_blocks"),
        ({"kv_blocks": 1}, "no usable KV block: kv_blocks 1"),
        ({"max_model_len_tokens": 128}, "longer than max_model_len_tokens 128"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 200}, "longer than max_num_batched_tokens 200"),
        ({"role": "prefill"}, "role 'prefill' and none has 'decode'; add one, or set role=both"),
        ({"role": "decode"}, "role 'decode' and none has 'prefill'"),
    ],
)
def test_a_request_that_no_engine_could_serve_is_named(fields: dict[str, int | str], said: str) -> None:
    requests = known_requests([finished(0, 0.0), finished(1, 1.0, isl_tokens=300, osl_tokens=30)], AS_OF_US)
    require_fit(requests, [config()])
    with pytest.raises(ValueError, match=said):
        require_fit(requests, [config(), config(**fields)])


def test_a_drawn_length_is_cut_and_never_refused() -> None:
    requests = known_requests([finished(0, 0.0, isl_tokens=16, osl_tokens=400), arrived(1, 1.0)], AS_OF_US)
    tight = config(kv_blocks=1 + 26)
    require_fit(requests, [tight])
    assert served(requests, engine(kv_blocks=27)).generated_tokens.min() >= 1


def test_recorded_routing_sends_everybody_where_they_went() -> None:
    requests = known_requests([finished(i, i, engine=f"e{i % 2}") for i in range(6)], AS_OF_US)
    pair = (engine(), engine(engine="e1"))
    assert route(requests, pair).tolist() == [0, 1] * 3
    with pytest.raises(ValueError, match="engine 'e1', which is none of e0, e7"):
        route(requests, (engine(), engine(engine="e7")))


def test_a_recording_of_the_twin_compared_with_the_twin_differs_nowhere() -> None:
    before = traffic()
    tight = engine(kv_blocks=60)
    run = served(before, tight)
    assert run.preemptions.sum() > 0
    again = known_requests(recorded(before, run), AS_OF_US)
    found = compare(again, served(again, tight))
    assert found.basis == "engine"
    assert found.requests == len(before)
    errors = [pair.error_ratio for cells in found.metrics.values() for pair in cells.values()]
    assert max(abs(error) for error in errors if error is not None) < 1e-3
    assert found.preemptions.observed == found.preemptions.twin
    assert found.success_ratio.observed == found.success_ratio.twin == 1.0


def test_without_recorded_latencies_only_the_twin_speaks() -> None:
    requests = traffic(50)
    plain = compare(requests, served(requests)).plain()
    assert plain["basis"] == "client"
    assert all(set(cell) == {"twin"} for cells in plain["metrics"].values() for cell in cells.values())
    assert set(plain["preemptions"]) == {"twin"}


def test_refused_requests_count_against_success_and_give_no_latency() -> None:
    requests = known_requests([finished(i, 0.0) for i in range(9)] + [rejected(9, 0.0), arrived(10, 0.0)], AS_OF_US)
    found = compare(requests, served(requests, engine(max_queued_requests=2)))
    assert found.requests == 10
    assert found.success_ratio.observed == 0.9
    assert found.success_ratio.twin is not None
    assert found.success_ratio.twin < 0.5
    slowest = found.metrics["e2e_s"]["p99"].twin
    assert slowest is not None
    assert slowest < 1.0
    assert found.metrics["e2e_s"]["p50"].observed == 1.0


@pytest.mark.parametrize("routing", ["least_outstanding", "round_robin", "prefix_aware"])
def test_every_policy_serves_everybody_and_one_engine_is_that_engine(routing: Routing) -> None:
    requests = traffic(120, rate_per_s=12.0)
    pair = served(requests, engine(), engine(engine="e1"), routing=routing)
    assert (pair.status == 0).all()
    assert set(pair.engine.tolist()) == {0, 1}
    assert pair.generated_tokens.tolist() == requests.osl_tokens.tolist()
    alone, recorded_alone = served(requests, routing=routing), served(requests)
    assert alone.last_s.tolist() == recorded_alone.last_s.tolist()


def test_the_least_loaded_engine_spares_a_slow_one() -> None:
    requests = traffic(200, rate_per_s=10.0)
    slow = engine(COST.scaled(3.0), engine="e1")
    by_load = served(requests, engine(), slow, routing="least_outstanding").engine.mean()
    in_turn = served(requests, engine(), slow, routing="round_robin").engine.mean()
    assert by_load < 0.4 < in_turn
