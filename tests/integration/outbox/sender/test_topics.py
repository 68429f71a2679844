"""A writer to a topic says once when one broker's disk is all that holds what it sends."""

import asyncio
import logging
from typing import Any

import pytest

from chain_kernel.clients.kafka import close_client, make_admin, start_client
from chain_kernel.clients.kafka_config import KafkaConfig
from chain_kernel.clients.topics import describe_topics
from outbox import Destination
from tests.builders.topics import make_topics
from tests.deadlines import deadline

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
