"""A writer to a topic says once when one broker's disk is all that holds what it sends."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.clients.kafka import (
    close_client,
    make_admin,
    start_client,
)
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.topics import TopicDurability, describe_topics
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig, Status
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CheckedConfig
from tests.builders.topics import make_topics
from tests.deadlines import deadline

from ..conftest import CONSUMER

if TYPE_CHECKING:
    from outbox import Delivery, Destination

    from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

LOGGER = "chain_kernel.clients.topics"
ONE = "(replicas 1, min.insync.replicas 1)"


class Warned(logging.Handler):
    """Keeps what was warned of, and wakes who waits for it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.some = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.some.set()

    async def next(self) -> str:
        async with deadline():
            await self.some.wait()
        self.some.clear()
        return self.lines[-1]


@pytest.fixture
def warned() -> Any:
    handler = Warned()
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def set_up(sender: Sender, *more: str) -> Destination:
    """Set a destination up whose topics, and `more`, every broker has heard of."""
    clearing = await sender.set_up()
    if more:
        await make_topics(sender.kafka, *more)
    config = KafkaConfig.of(sender.kafka)
    names = [clearing.topic, clearing.confirm_topic, *more]
    admin = make_admin(config, "test")
    await start_client(admin)

    async def are_there() -> bool:
        return all(each.is_there for each in (await describe_topics(admin, config, names)).values())

    try:
        await sender.until(are_there)
    finally:
        await close_client(admin, 5.0)
    return clearing


async def test_relay_warns_once_of_topics_on_one_broker(sender: Sender, warned: Warned) -> None:
    clearing = await set_up(sender)
    async with sender.relay() as relay:
        line = await warned.next()
        for topic in (clearing.topic, clearing.confirm_topic):
            assert f"{topic} {ONE}" in line
        assert "sent again only where consumers confirm" in line
        await relay._durability.look({clearing.topic})
    assert warned.lines == [line]


async def test_consumer_warns_of_its_confirm_topic(sender: Sender, warned: Warned) -> None:
    clearing = await set_up(sender)
    async with sender.admin.transaction():
        await sender.admin.execute(PARTS["inbox"].text())
    config = ConsumerConfig(
        name=CONSUMER, topics=(clearing.topic,), kafka=sender.kafka,
        database=sender.dsns[SUPERUSER],
    )  # fmt: skip
    business = await sender.connect()

    async def apply(_: Delivery, __: Any) -> None:
        """The effect."""

    async with sender.relay() as relay, Consumer(config) as consumer:
        await warned.next()  # the relay's
        work = asyncio.create_task(consumer.run(apply))
        async with relay.transaction(business) as transaction:
            message_id = await transaction.add("clearing", b"trade")
        line = await warned.next()
        assert f"acknowledged on {clearing.confirm_topic} {ONE}: confirms" in line
        await sender.until_status(message_id, Status.CONSUMED)
        consumer.stop()
        await work


async def test_sender_of_mode_5_warns_of_its_topics(sender: Sender, warned: Warned) -> None:
    check_topic = f"checks.{sender.name}"
    clearing = await set_up(sender, check_topic)
    checked = CheckedConfig(sender="payments", check_topic=check_topic)
    async with CheckedSender(sender.config(), checked):
        line = await warned.next()
    assert f"{check_topic} {ONE}" in line
    assert f"{clearing.topic} {ONE}" in line


async def test_topic_that_is_made_later_is_looked_at_then(sender: Sender, warned: Warned) -> None:
    durability = TopicDurability(sender.kafka, "test", "it is gone")
    late = f"late.{sender.name}"
    assert not await durability.look([late])
    assert warned.lines == []
    await make_topics(sender.kafka, late, configs={"min.insync.replicas": "2"})

    async def was_looked_at() -> bool:
        return await durability.look([late])

    await sender.until(was_looked_at)
    assert await durability.look([late])
    (line,) = warned.lines
    assert f"{late} (replicas 1, min.insync.replicas 2)" in line


async def test_broker_that_is_away_stands_in_nobodys_way(warned: Warned) -> None:
    durability = TopicDurability("127.0.0.1:9", "test", "it is gone")
    async with deadline():
        assert not await durability.look(["t"])
    assert warned.lines == []
