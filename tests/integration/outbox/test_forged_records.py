"""A forger on a destination's topic has nothing applied, and nothing written elsewhere."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

import outbox
from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from outbox import Consumer, ConsumerConfig, Delivery, Status, draw_message_ids
from outbox.record_mac import destination_key
from outbox.records import MAC
from tests.builders.topics import make_topics
from tests.deadlines import deadline

from .conftest import CONSUMER, Sender, make_sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

Headers = list[tuple[str, bytes | None]]


@pytest.fixture
async def sender(
    postgres_server: PostgresServer, database_with: Callable[..., str], kafka_server: KafkaServer
) -> AsyncIterator[Sender]:
    """A business with an outbox, and in the same database the consumer's tables."""
    names = database_with("outbox", "inbox")
    async for made in make_sender(postgres_server, names, kafka_server.bootstrap):
        yield made


def changed(headers: Headers, **values: bytes | None) -> Headers:
    """Return headers with other values of ours; None: without."""
    ours = {f"orderchain-{name.replace('_', '-')}": value for name, value in values.items()}
    kept = [(name, value) for name, value in headers if name not in ours]
    return [*kept, *((name, value) for name, value in ours.items() if value is not None)]


async def forge(sender: Sender, topic: str, *records: tuple[bytes | None, bytes, Headers]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=sender.kafka) as producer:
        for key, value, headers in records:
            await producer.send_and_wait(topic, value, key=key, headers=headers, partition=0)


async def applied(sender: Sender, until: bytes, **settings: Any) -> list[bytes]:
    """Return what a consumer of the destination gives to its handler, up to a payload."""
    seen: list[bytes] = []
    config = ConsumerConfig(**{
        "name": CONSUMER, "topics": (f"clearing.{sender.name}",), "kafka": sender.kafka,
        "database": sender.dsns[SUPERUSER], **settings,
    })  # fmt: skip
    async with deadline(), Consumer(config) as consumer:

        async def handler(delivery: Delivery, _: Any) -> None:
            seen.append(delivery.payload)
            if delivery.payload == until:
                consumer.stop()

        await consumer.run(handler)
    return seen


async def test_forged_record_is_not_applied_and_its_confirm_goes_nowhere(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    clearing = await sender.set_up()
    await make_topics(sender.kafka, intake := f"intake.{sender.name}")
    async with sender.relay():
        business = await sender.connect()
        async with business.transaction():
            genuine = await outbox.add(
                business, "clearing", b"genuine", key="k", headers={"trace": "1"}
            )
        await outbox.wake(business)
        await sender.until_status(genuine, Status.CONFIRMED)
        (record,) = await sender.records(clearing.topic)
        headers = list(record.headers)
        new_id = str(draw_message_ids(1)[0]).encode()
        await forge(
            sender, clearing.topic,
            # Put together without a key, from a key of another destination, and from a message.
            (None, b"unsigned", changed(headers, message_id=new_id, mac=None)),
            (None, b"null", [*changed(headers, message_id=new_id, mac=None), (MAC, None)]),
            (b"k", b"payload", changed(headers)),
            (b"other", b"genuine", changed(headers)),
            (b"k", b"genuine", changed(headers, message_id=new_id)),
            (b"k", b"genuine", changed(headers, destination=b"ledger")),
            (b"k", b"genuine", changed(headers, oldest_unfinished=new_id)),
            (b"k", b"genuine", changed(headers, confirm_token=b"00" * 16)),
            (b"k", b"genuine", changed(headers, confirm_topic=intake.encode())),
            (b"k", b"genuine", [("trace", b"2"), *headers[1:]]),
            (b"k", b"genuine", [("trace", b"1"), ("more", b""), *headers[1:]]),
        )  # fmt: skip
        async with business.transaction():
            last = await outbox.add(business, "clearing", b"last")
        await outbox.wake(business)
        database_key = await sender.confirm_key()
        keys = tuple(destination_key(database_key, name).hex() for name in ("old", "clearing"))
        assert await applied(sender, b"last", keys=keys) == [b"genuine", b"last"]
        for message_id in (genuine, last):
            await sender.until_status(message_id, Status.CONSUMED)
    # The first of a kind is logged at once, and the others when the consumer ends.
    assert "passed over 1 record, such as" in caplog.text
    assert "passed over 10 records, such as" in caplog.text
    assert await sender.records(intake) == []


async def test_consumer_without_keys_confirms_to_its_own_topics_alone(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    clearing = await sender.set_up(confirm_topic=f"confirmed.{sender.name}")
    await make_topics(sender.kafka, intake := f"intake.{sender.name}")
    headers: Headers = [
        ("orderchain-destination", b"clearing"), ("orderchain-confirm-token", b"00" * 16),
    ]  # fmt: skip

    def named(topic: str) -> Headers:
        message_id = str(draw_message_ids(1)[0]).encode()
        return changed(headers, message_id=message_id, confirm_topic=topic.encode())

    await forge(
        sender, clearing.topic,
        (None, b"to the intake", named(intake)),
        (None, b"to the default", named(f"{clearing.topic}.confirms")),
        (None, b"last", named(clearing.confirm_topic)),
    )  # fmt: skip
    topics = (clearing.confirm_topic,)
    assert await applied(sender, b"last", confirm_topics=topics) == [b"last"]
    assert await sender.records(intake) == []
    assert len(await sender.records(clearing.confirm_topic)) == 1
    assert "so it believes everyone who may write to its topics" in caplog.text
