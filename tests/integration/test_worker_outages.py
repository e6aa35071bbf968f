"""A worker through outages: stopped longer than its session, its broker killed, its broker gone for good."""

import time
from pathlib import Path

import pytest
from worker_process import Stage, messages, recording_of, unique

from pipelines.broker import BrokerChoice, JvmKafka
from schemas.topics import FORECASTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SECONDS = 70.0
SPEED = 4.0


def assert_undisturbed(stage: Stage, messages: int, seconds: float = SECONDS) -> None:
    """State, accounts and forecasts are those of an undisturbed run, once the next worker has gone on to the end: the
    state of one that stops is its last where that can be saved soon, else an earlier one."""
    after = stage.worker()
    after.wait_ready()
    after.wait_done(messages)
    assert after.stop() == 0
    replay = stage.undisturbed(recording_of(seconds))
    core = stage.cores()["d"]
    expected = [message.value for message in replay.outputs if message.topic == FORECASTS.name]
    assert core.accounts.as_dict() == replay.core.accounts.as_dict(), stage.workers[0].log[-4000:] + after.log[-2000:]
    assert core.state_hash() == replay.core.state_hash()
    assert unique(stage.records(FORECASTS.name)) == expected


def forecasts(report: dict[str, object]) -> int:
    written = report["written"]
    return int(written.get(FORECASTS.name, 0)) if isinstance(written, dict) else 0


def test_stopped_for_longer_than_its_session_it_goes_on(kafka_bootstrap: str, tmp_path: Path) -> None:
    sent = messages(recording_of(SECONDS))
    with Stage.on_kafka(kafka_bootstrap, tmp_path) as stage:
        worker = stage.worker()
        worker.wait_ready()
        playing = stage.playing(sent, SPEED)
        worker.wait_for(lambda report: forecasts(report) >= 4, "forecasts")
        worker.pause()
        time.sleep(14.0)
        worker.go_on()
        playing.join()
        worker.wait_done(len(sent))
        assert worker.stop() == 0
        assert_undisturbed(stage, len(sent))


@pytest.fixture
def own_broker(kafka_choice: BrokerChoice, tmp_path: Path) -> JvmKafka:
    """A broker of this test alone, for it is killed."""
    if kafka_choice.java is None or kafka_choice.classpath is None:
        pytest.skip("no Apache Kafka on the JVM here")
    return JvmKafka(kafka_choice.classpath, java=kafka_choice.java, data_dir=tmp_path / "kafka")


def test_a_broker_killed_and_started_again_costs_no_record(own_broker: JvmKafka, tmp_path: Path) -> None:
    sent = messages(recording_of(SECONDS))
    with own_broker as broker, Stage.on_kafka(broker.bootstrap, tmp_path) as stage:
        worker = stage.worker()
        worker.wait_ready()
        playing = stage.playing(sent, SPEED)
        worker.wait_for(lambda report: forecasts(report) >= 4, "forecasts")
        broker.kill()
        time.sleep(3.0)
        broker.start()
        playing.join()
        worker.wait_done(len(sent))
        assert worker.stop() == 0
        assert_undisturbed(stage, len(sent))
        assert len(worker.log) < 100_000


def test_a_broker_gone_for_good_ends_the_worker_with_a_reason(own_broker: JvmKafka, tmp_path: Path) -> None:
    sent = messages(recording_of(20.0))
    with own_broker as broker, Stage.on_kafka(broker.bootstrap, tmp_path) as stage:
        stage.environ["TWINCAST_CONFIG"] = str(tmp_path / "short.toml")
        (tmp_path / "short.toml").write_text(
            (tmp_path / "twincast.toml").read_text() + "[worker]\nstall_timeout_s = 5\n"
        )
        worker = stage.worker()
        worker.wait_ready()
        stage.play(sent)
        worker.wait_done(len(sent))
        broker.kill()
        assert worker.ended(60.0) not in (0, None)
        assert "did not answer" in worker.log
