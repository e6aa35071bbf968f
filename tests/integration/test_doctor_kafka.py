"""A reader that is closed at once, and `twincast doctor` on a broker without a record in it."""

import asyncio
import uuid

import pytest

from pipelines.checkup import judge, look_at
from pipelines.kafka.access import cluster_access
from pipelines.kafka.kafka_log import KafkaLog
from pipelines.log import TopicPartition
from pipelines.namespace import in_namespace
from pipelines.provision import create
from schemas.topics import REQUESTS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_empty_topics_are_well_and_a_reader_closes_before_it_read(kafka_bootstrap: str) -> None:
    async def main() -> None:
        name = f"doctor-{uuid.uuid4().hex[:8]}"
        async with in_namespace(KafkaLog(cluster_access({}, kafka_bootstrap)), name) as log:
            await create(log, 2)
            async with log.reader({TopicPartition(REQUESTS.name, 0): 0}):
                pass
            findings = judge(await look_at(log, 2), 0)
        assert [finding.name for finding in findings if not finding.well] == []
        assert len(findings) == 4

    asyncio.run(main())
