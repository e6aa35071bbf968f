"""A chain as one record on the log. Makes no chain.

Laws: the same chain gives the same key, value and id, so a second post is recognisable; the topic is created if it is
not there and left as it is if it is.
"""

from pipelines.log import Log, TopicSpec
from pipelines.outbox import Outbox
from pipelines.outputs import outgoing
from schemas.evidence import Evidence
from schemas.topics import EVIDENCE
from twin.effects import Emit


async def post(log: Log, found: Evidence, partitions: int) -> None:
    """Write and wait until it is stored. Raises ConfigError where the log does not answer or has other partitions."""
    await log.create_topics([TopicSpec.of(EVIDENCE, partitions=partitions)])
    async with log.producer() as producer:
        outbox = Outbox(producer, partitions)
        await outbox.write(outgoing(Emit(EVIDENCE, found.deployment, found), found.deployment))
        await outbox.flush()
