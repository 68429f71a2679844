"""Makes and reads topics on a real broker."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

_FETCH_BYTES = 16 * 2**20
"""Many of the largest frames at once."""


async def make_topics(
    kafka: str,
    *names: str,
    partitions: int = 1,
    copies: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Make topics on the broker at `kafka`; `configs` are their settings by Kafka's names."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics(
            [
                NewTopic(name, partitions, copies, topic_configs=dict(configs or {}))
                for name in names
            ]
        )
    finally:
        await admin.close()


async def records_of(kafka: object, topic: str) -> list[bytes]:
    """Return the value of every record of the only partition of `topic`."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka,
        enable_auto_commit=False,
        check_crcs=True,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    partition = TopicPartition(topic, 0)
    await consumer.start()
    try:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[bytes] = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                values += [record.value for record in records]
        return values
    finally:
        await consumer.stop()
