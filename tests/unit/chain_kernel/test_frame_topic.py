"""What the protocol needs of a topic."""

from __future__ import annotations

import pytest

from chain_kernel.frame import default_topic, topic_refusal


@pytest.mark.parametrize(
    ("partitions", "settings", "words"),
    [
        (0, {}, "exists"),
        (2, {}, "2 partitions"),
        (1, {"cleanup.policy": "compact,delete"}, "no compaction"),
    ],
)
def test_topic_that_would_lose_or_reorder_records_is_refused(
    partitions: int, settings: dict[str, str], words: str
) -> None:
    refusal = topic_refusal("orders", partitions, settings)
    assert refusal is not None
    assert words in str(refusal)
    assert "orders" in str(refusal)


def test_topic_with_one_partition_that_keeps_its_records_is_fine() -> None:
    assert topic_refusal("orders", 1, {"cleanup.policy": "delete"}) is None
    assert default_topic(7) == "orderchain.7"
