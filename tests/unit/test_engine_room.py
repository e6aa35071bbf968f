"""A changed engine begins to learn anew, from the costs of the engine before; a snapshot keeps both."""

import msgspec
from synthetic import engine_config, service

from schemas.engines import Fingerprint
from schemas.steps import StepBatch
from twin.cost.shape import StepShape
from twin.engine_room import EngineRoom


def room_that_learned() -> EngineRoom:
    room = EngineRoom("0")
    room.on_config(engine_config())
    for record in service(40.0):
        for step in record.steps if isinstance(record, StepBatch) else ():
            room.on_step(step)
    room.learn()
    return room


def test_a_new_fingerprint_keeps_old_costs_as_prior_only() -> None:
    room = room_that_learned()
    shape = StepShape(decode_requests=4, decode_context_tokens=400)
    before_s = room.model.predict(shape)
    assert not room.on_config(engine_config())
    assert room.model.steps > 0
    changed = msgspec.structs.replace(engine_config(), fingerprint=Fingerprint(device="another"))
    assert room.on_config(changed)
    assert room.model.steps == 0
    assert abs(room.model.predict(shape) / before_s - 1.0) < 0.05


def test_a_snapshot_keeps_the_prior() -> None:
    room = room_that_learned()
    room.on_config(msgspec.structs.replace(engine_config(), fingerprint=Fingerprint(device="another")))
    again = EngineRoom.restore(msgspec.json.decode(msgspec.json.encode(room.snapshot())))
    assert again.prior == room.prior is not None
    shape = StepShape(prefill_requests=1, prefill_tokens=50, prefill_attention_pairs=1275)
    assert again.model.predict(shape) == room.model.predict(shape)


def test_steps_that_wait_when_the_engine_changes_teach_the_old_one() -> None:
    *early, last = [record for record in service(40.0) if isinstance(record, StepBatch)]
    room = EngineRoom("0")
    room.on_config(engine_config())
    for batch in early:
        room.on_steps(batch.steps)
    room.learn()
    before, learned = room.model, room.model.steps
    room.on_steps(last.steps)
    assert room.on_config(msgspec.structs.replace(engine_config(), fingerprint=Fingerprint(device="another")))
    assert before.steps > learned
    assert room.learn() == []
    assert room.model.steps == 0
