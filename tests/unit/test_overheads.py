"""Overheads outside the engine: what is kept is finite, what is refused is counted, the running step is not in it."""

import math

import msgspec
import numpy as np
import orjson
import pytest

from schemas.requests import PrefillChunk, RequestFinished
from twin.overheads import KEPT_REQUESTS, VALUES, FrontendModel, TransferModel

START_US = 1_796_052_000_000_000


def finished(
    i: int, *, to_engine_us: int | None = 3_500, to_client_us: int | None = 2_000, timed: bool = True
) -> RequestFinished:
    arrived_us = START_US + i * 100_000
    engine_first_us = arrived_us + 50_000
    return RequestFinished(
        deployment="d",
        request_id=str(i),
        at_us=arrived_us + 500_000,
        arrived_us=arrived_us,
        isl_tokens=10,
        osl_tokens=10,
        first_token_us=None if to_client_us is None else engine_first_us + to_client_us,
        engine_queued_us=None if to_engine_us is None else arrived_us + to_engine_us,
        engine_first_token_us=engine_first_us,
        timed=timed,
    )


def test_the_wait_for_the_running_step_is_not_learned() -> None:
    """Frontend 3 to 4 ms, then up to a step of 50 ms: the frontend is learned, not the step."""
    rng = np.random.default_rng(1)
    model = FrontendModel()
    for i in range(1_000):
        model.on_finished(finished(i, to_engine_us=int(3_000 + 1_000 * rng.random() + 50_000 * rng.random())))
    learned = model.overheads().to_engine_s
    assert 0.003 <= float(np.median(learned)) <= 0.008


def test_the_way_to_the_client_is_a_distribution() -> None:
    rng = np.random.default_rng(2)
    model = FrontendModel()
    for i in range(1_000):
        model.on_finished(finished(i, to_client_us=int(2_000 * math.exp(0.5 * rng.standard_normal()))))
    learned = model.overheads().to_client_s
    assert len(learned) == VALUES
    assert list(learned) == sorted(learned)
    assert float(np.median(learned)) == pytest.approx(0.002, rel=0.1)
    assert float(np.std(np.log(learned))) == pytest.approx(0.5, rel=0.2)


def test_old_requests_are_forgotten() -> None:
    model = FrontendModel()
    for i in range(1_000):
        model.on_finished(finished(i, to_client_us=2_000 if i < 1_000 - KEPT_REQUESTS else 5_000))
    assert set(model.overheads().to_client_s) == {0.005}


def test_too_few_requests_teach_nothing() -> None:
    model = FrontendModel()
    for i in range(9):
        model.on_finished(finished(i))
    assert model.overheads().to_engine_s == ()
    assert model.overheads().to_client_s == ()


@pytest.mark.parametrize(
    ("stamps", "reason"),
    [
        ({"to_engine_us": -1}, "to_engine_negative"),
        ({"to_client_us": -5_000}, "to_client_negative"),
        ({"to_engine_us": 10**9}, "to_engine_absurd"),
        ({"to_client_us": 10**9}, "to_client_absurd"),
    ],
)
def test_clocks_that_disagree_are_counted_and_teach_nothing(stamps: dict[str, int], reason: str) -> None:
    model, same = FrontendModel(), FrontendModel()
    for i in range(50):
        model.on_finished(finished(i))
        same.on_finished(finished(i))
    for i in range(5):
        model.on_finished(finished(i, **stamps))
    assert model.refused == {reason: 5}
    kept, name = model.overheads(), reason.rpartition("_")[0]
    assert getattr(kept, f"{name}_s") == getattr(same.overheads(), f"{name}_s")


@pytest.mark.parametrize("event", [finished(0, timed=False), finished(0, to_engine_us=None, to_client_us=None)])
def test_stamps_that_are_not_there_are_passed_over(event: RequestFinished) -> None:
    model = FrontendModel()
    for _ in range(20):
        model.on_finished(event)
    assert model.overheads().to_engine_s == ()
    assert not model.refused


def test_a_restored_frontend_is_the_original() -> None:
    model = FrontendModel()
    for i in range(30):
        model.on_finished(finished(i, to_engine_us=3_000 + i, to_client_us=-1 if i == 3 else 2_000))
    restored = FrontendModel.restore(orjson.loads(orjson.dumps(model.snapshot())))
    assert restored.snapshot() == model.snapshot()
    assert restored.overheads() == model.overheads()


@pytest.mark.parametrize("damage", [{"version": 2}, {"to_engine_us": [-1]}, {"to_client_us": ["x"]}])
def test_a_damaged_frontend_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="frontend overheads snapshot"):
        FrontendModel.restore({**FrontendModel().snapshot(), **damage})


def test_transfers_are_a_line_with_spread() -> None:
    rng = np.random.default_rng(3)
    model = TransferModel()
    for tokens in rng.integers(100, 8_000, 2_000):
        model.learn_one(int(tokens), 0.002 + 1e-6 * tokens + 0.0002 * rng.standard_normal())
    fixed_s, token_s = model.line
    assert fixed_s == pytest.approx(0.002, rel=0.05)
    assert token_s == pytest.approx(1e-6, rel=0.05)
    assert model.sigma_s == pytest.approx(0.0002, rel=0.1)
    assert model.predict_one(4_000) == pytest.approx(0.006, rel=0.02)


def test_a_transfer_never_takes_less_for_more_tokens_or_less_than_nothing() -> None:
    model = TransferModel()
    for tokens, seconds in ((100, 0.004), (1_000, 0.003), (2_000, 0.002)):
        model.learn_one(tokens, seconds)
    assert model.predict_one(5_000) >= model.predict_one(1) > 0.0
    steep = TransferModel()
    for tokens, seconds in ((1_000, 0.001), (2_000, 0.004)):
        steep.learn_one(tokens, seconds)
    assert steep.predict_one(1) >= 0.0


@pytest.mark.parametrize(
    ("tokens", "seconds", "reason"),
    [
        (10, float("nan"), "not_finite"),
        (10, -0.1, "not_positive"),
        (0, 0.1, "no_tokens"),
        (10, 1e19, "absurd"),
    ],
)
def test_a_bad_transfer_is_counted_and_changes_nothing_else(tokens: int, seconds: float, reason: str) -> None:
    model = TransferModel()
    model.learn_one(100, 0.001)
    before = model.line, model.sigma_s
    model.learn_one(tokens, seconds)
    assert model.refused == {reason: 1}
    assert (model.line, model.sigma_s) == before


def test_a_restored_transfer_model_goes_on_as_the_original() -> None:
    model = TransferModel(100.0)
    for tokens in range(100, 200):
        model.learn_one(tokens, tokens * 1e-5)
    restored = TransferModel.restore(orjson.loads(orjson.dumps(model.snapshot())))
    model.learn_one(5, 0.1)
    restored.learn_one(5, 0.1)
    assert restored.snapshot() == model.snapshot()


@pytest.mark.parametrize("damage", [{"version": 2}, {"sums": [1.0]}, {"sums": [float("nan")] * 6}])
def test_a_damaged_transfer_model_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="transfer model snapshot"):
        TransferModel.restore({**TransferModel().snapshot(), **damage})


def loading(i: int, load_us: int | None) -> RequestFinished:
    chunk = PrefillChunk(chunk=0, first_token=0, tokens=64, hit_tokens=32, kv_load_us=load_us)
    return msgspec.structs.replace(finished(i), chunks=(chunk,))


def test_kv_loads_are_learned_from_chunks_and_told_as_a_share_of_latency() -> None:
    model = TransferModel()
    for i in range(200):
        model.on_finished(loading(i, 50_000))
    assert model.latency_ratio == pytest.approx(0.1)
    assert model.predict_one(32) == pytest.approx(0.05)
    again = TransferModel.restore(orjson.loads(orjson.dumps(model.snapshot())))
    assert again.latency_ratio == model.latency_ratio
    for i in range(5_000):
        model.on_finished(loading(i, None))
    assert model.latency_ratio < 0.001


def test_a_load_longer_than_its_request_counts_as_all_of_it() -> None:
    model = TransferModel()
    model.on_finished(loading(0, 3_600_000_000))
    assert model.latency_ratio == 1.0
    assert model.refused == {"absurd": 1}
