"""A backlog on a real Apache Kafka that is larger than what a worker holds: reading pauses, and nothing is lost."""

import uuid
from pathlib import Path

import pytest
from worker_process import CONFIG, Stage

from pipelines.places import Place
from tests.bench.bench_kafka_ingest import service

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
STEPS = 200_000


def test_a_backlog_larger_than_what_is_held_is_handled_whole(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Requests come faster than the steps between them, so their topic is paused time and again."""
    sent = list(service(STEPS, per_message=50))
    place = Place(kind="kafka", where=kafka_bootstrap, namespace=f"t{uuid.uuid4().hex[:8]}")
    with Stage(place, tmp_path, CONFIG.replace("period_s = 5.0", "period_s = 86400.0")) as stage:
        stage.play(sent)
        worker = stage.worker()
        worker.wait_done(len(sent))
        assert worker.stop() == 0
        requests = len(sent) - STEPS // 50
        assert worker.report["balance"]["in"] == STEPS + requests
        assert worker.report["balance"]["duplicate"] == 0
