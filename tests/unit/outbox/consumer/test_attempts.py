"""How often a consumer is heard of while a handler works. In virtual time."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from chain_kernel.clock import SystemClock
from outbox.acts import CONSUMER_SILENT_SECONDS
from outbox.consumer.attempts import HEARTBEAT_SECONDS, Outcomes
from outbox.consumer.config import ConsumerConfig, ConsumerStats
from outbox.consumer.confirm_loop import ConfirmSender
from outbox.consumer.delivery import Delivery, Pace
from outbox.consumer.filters import MemoryFilter
from outbox.consumer.in_flight import ConsumeProgress, KeyQueues
from outbox.consumer.inbox import ConsumerConnections
from outbox.message import draw_message_ids
from tests.virtual import virtual

CONFIG = ConsumerConfig(
    name="ledger", topics=("trades", "fees"), kafka="127.0.0.1:1", database="postgresql://unused"
)


def delivery(topic: str) -> Delivery:
    (message_id,) = draw_message_ids(1)
    return Delivery(
        message_id=message_id, destination=topic, payload=b"", key_bytes=None, headers={},
        topic=topic, partition=0, offset=0, received_at=datetime.now(UTC),
        confirm_topic=f"{topic}.confirms", confirm_token=bytes(16),
    )  # fmt: skip


def outcomes() -> Outcomes:
    stats = ConsumerStats()
    return Outcomes(
        config=CONFIG, inbox=cast("Any", None), connections=ConsumerConnections(CONFIG),
        clock=SystemClock(), progress=ConsumeProgress(), confirms=ConfirmSender(CONFIG),
        fast_filter=MemoryFilter(), queues=KeyQueues(), pace=Pace(stats), stats=stats,
    )  # fmt: skip


@virtual
async def test_consumer_is_heard_of_several_times_before_it_would_count_as_silent() -> None:
    """Once for each topic: also for the one whose messages wait behind this one."""
    made = outcomes()
    made.queues.add([delivery("trades"), delivery("fees"), delivery("fees"), delivery("trades")])
    taken = made.queues.take(1)
    with made.heartbeats(taken):
        await asyncio.sleep(HEARTBEAT_SECONDS - 1)
        assert made.confirms.count == 0, "most handlers are done by then, and cost nothing"
        await asyncio.sleep(CONSUMER_SILENT_SECONDS - HEARTBEAT_SECONDS)
        assert made.confirms.count == 2 * 4
    await asyncio.sleep(CONSUMER_SILENT_SECONDS)
    assert made.confirms.count == 2 * 4, "it has ended"
