"""Topics: their names, and what the protocol needs of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orderchain.errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Mapping


def default_topic(chain_id: int) -> str:
    """Return the topic of a chain that was created without naming one."""
    return f"orderchain.{chain_id}"


def topic_refusal(topic: str, partitions: int, settings: Mapping[str, str]) -> TopicError | None:
    """Return what is wrong with a topic with so many partitions and such settings, else None.

    One chain, one partition: Kafka keeps no order between partitions. No compaction: it removes
    records that have the same key, and the engine's have.
    """
    if partitions == 0:
        return TopicError("topic", topic, "a topic that exists")
    if partitions != 1:
        found = f"{topic} with {partitions} partitions"
        return TopicError("topic", found, "a topic with exactly 1 partition")
    policy = settings.get("cleanup.policy", "")
    if "compact" in policy:
        return TopicError("topic", f"{topic} with cleanup.policy={policy}", "no compaction")
    return None
