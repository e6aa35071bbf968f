"""`twincast evidence --broker` on a real Apache Kafka: one record, readable by its schema."""

import asyncio
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import LogRecord, TopicPartition
from pipelines.samples import EXAMPLES
from schemas.codec import decode
from schemas.topics import EVIDENCE

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
NAMESPACE = "evidence-test"


async def records(bootstrap: str) -> list[LogRecord]:
    topic = f"{NAMESPACE}.{EVIDENCE.name}"
    async with KafkaLog(cluster_access({}, bootstrap)) as log:
        counts = await log.partition_counts([topic])
        where = [TopicPartition(topic, number) for number in range(counts[topic])]
        ends = await log.end_offsets(where)
        async with log.reader(dict.fromkeys(where, 0)) as reader:
            found: list[LogRecord] = []
            while len(found) < sum(ends.values()):
                found += await reader.get(timeout_s=5.0)
    return found


def test_one_record_reaches_the_topic(kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINCAST_NAMESPACE", NAMESPACE)
    monkeypatch.setenv("TWINCAST_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    case = EXAMPLES / "evidence" / "published_prefix.toml"
    assert main(["evidence", str(case), "--broker", kafka_bootstrap]) == 0
    (record,) = asyncio.run(records(kafka_bootstrap))
    found = decode(EVIDENCE.name, record.value or b"").record
    assert (found.grade, record.key) == ("C", b"published")
    assert dict(record.headers)["ce_type"] == f"{EVIDENCE.name}.evidence".encode()
