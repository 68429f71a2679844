"""Makes topics on a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Mapping


async def make_topics(
    kafka: str, *names: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Make topics on the broker at `kafka`; `configs` are their settings by Kafka's names."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(name, partitions, 1, topic_configs=dict(configs or {})) for name in names]
        )
    finally:
        await admin.close()
