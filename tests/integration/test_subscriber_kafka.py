"""The example subscriber on a real Apache Kafka: acts on a fresh forecast, and says so when none comes any more."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import TopicSpec
from pipelines.samples import EXAMPLES

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
TOPIC = "twincast.forecasts.v1"
FORECAST = (
    b'{"record":"forecast","phase":"coarse","authority":"%s","scenarios":[{"scenario":"baseline","horizons":'
    b'[{"horizon_s":30.0,"slo_risks":[{"metric":"ttft_s","quantile":0.95,"limit_s":0.5,"breach_probability":%s}]}]}]}'
)


async def publish(bootstrap: str, *values: bytes) -> None:
    async with KafkaLog(cluster_access({}, bootstrap)) as log, log.producer() as producer:
        if TOPIC not in await log.partition_counts([TOPIC]):
            await log.create_topics([TopicSpec(name=TOPIC, partitions=4)])
        for value in values:
            await producer.send(TOPIC, key=b"d", value=value)


def test_it_acts_on_fresh_forecasts_and_falls_back_when_they_are_stale(kafka_bootstrap: str, tmp_path: Path) -> None:
    asyncio.run(publish(kafka_bootstrap))
    script = tmp_path / "subscriber.py"
    text = (EXAMPLES / "subscriber.py").read_text()
    assert "STALE_AFTER_S = 20.0" in text
    script.write_text(text.replace("STALE_AFTER_S = 20.0", "STALE_AFTER_S = 2.0"))
    environ = {**os.environ, "TWINCAST_BOOTSTRAP": kafka_bootstrap}
    with subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise AssertionError("no output")
            assert "stale" in process.stdout.readline()  # it is there, and has heard nothing for two seconds
            asyncio.run(publish(kafka_bootstrap, FORECAST % (b"advisory", b"0.9"), FORECAST % (b"guarded", b"0.9")))
            sent_s = time.monotonic()
            lines = []
            while len(lines) < 2:
                line = process.stdout.readline()
                lines += [] if "stale" in line else [line]
            assert time.monotonic() - sent_s < 5.0
            assert lines == ["stay: 90%, advisory\n", "scale out: 90% that a target is missed (coarse forecast)\n"]
            assert "stale" in process.stdout.readline()
        finally:
            process.kill()
