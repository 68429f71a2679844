"""Mode 1: no table at all; sent once the business transaction has committed; may lose."""

import asyncio
import json
import sys

import asyncpg
import pytest

from chain_kernel.errors import SettingError
from local_stack import KafkaServer
from outbox import Destination, FireAfterCommit
from outbox.records import read_headers
from outbox.roles import OUTBOX_WRITER
from tests.builders.topics import make_topics

from ..conftest import Sender

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


async def quiet(sender: Sender) -> Destination:
    """A destination that is in no table."""
    destination = Destination(name="prices", topic=f"prices.{sender.name}", confirm="none")
    await make_topics(sender.kafka, destination.topic)
    return destination


async def test_message_is_sent_after_the_commit_and_nothing_is_stored(sender: Sender) -> None:
    prices = await quiet(sender)
    business = await sender.connect()
    async with FireAfterCommit(sender.kafka, [prices]) as fire:
        async with fire.transaction(business) as held:
            await business.execute("INSERT INTO trade VALUES (1)")
            message_id = held.send("prices", b"1.25", key="EUR", headers={"a": "b"})
            assert await sender.sent(prices) == []  # never before the commit
        await fire.finish()
        assert (fire.sent, fire.lost) == (1, 0)
    (record,) = await sender.records(prices.topic)
    headers = read_headers(record.headers)
    assert (record.key, record.value) == (b"EUR", b"1.25")
    assert (headers.message_id, headers.confirm_topic) == (message_id, None)
    tables = "SELECT (SELECT count(*) FROM outbox_message) + (SELECT count(*) FROM outbox_pending)"
    assert await sender.admin.fetchval(tables) == 0


def test_destination_of_a_relay_is_refused() -> None:
    clearing = Destination(name="clearing", topic="clearing", consumers=("clearing",))
    with pytest.raises(SettingError, match="none for clearing"):
        FireAfterCommit("127.0.0.1:9092", [clearing])


async def test_transaction_that_rolls_back_fires_nothing(sender: Sender) -> None:
    prices = await quiet(sender)
    business = await sender.connect()
    async with FireAfterCommit(sender.kafka, [prices]) as fire:
        with pytest.raises(asyncpg.UniqueViolationError):
            await fire_twice(fire, business)
        await fire.finish()
        assert fire.sent == 0
    assert await sender.sent(prices) == []


async def fire_twice(fire: FireAfterCommit, business: asyncpg.Connection) -> None:
    async with fire.transaction(business) as held:
        held.send("prices", b"x")
        await business.execute("INSERT INTO trade VALUES (1), (1)")


CRASH = """
import asyncio, json, os, sys
import asyncpg
from outbox import Destination, FireAfterCommit

async def main():
    given = json.loads(sys.argv[1])
    business = await asyncpg.connect(given["business"])
    prices = Destination(name="prices", topic=given["topic"], confirm="none")
    async with FireAfterCommit(given["kafka"], [prices]) as fire:
        async with fire.transaction(business) as held:
            held.send("prices", b"lost")
            await business.execute("INSERT INTO trade VALUES (1)")
        # No await since the commit: nothing can have been sent.
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_crash_between_commit_and_send_loses_the_message_and_keeps_the_change(
    sender: Sender,
) -> None:
    prices = await quiet(sender)
    given = {
        "business": sender.dsns[OUTBOX_WRITER], "kafka": sender.kafka, "topic": prices.topic,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", CRASH, json.dumps(given))
    assert await process.wait() == -9
    assert await sender.admin.fetchval("SELECT count(*) FROM trade") == 1
    assert await sender.sent(prices) == []
    # Nothing remembers it: the next process sends only what is new.
    business = await sender.connect()
    async with FireAfterCommit(sender.kafka, [prices]) as fire:
        async with fire.transaction(business) as held:
            later = held.send("prices", b"later")
        await fire.finish()
    assert await sender.sent(prices) == [later]


@pytest.mark.nightly
async def test_broker_away_loses_messages_counts_them_and_spares_the_business(
    sender_to_break: Sender, kafka_to_break: KafkaServer
) -> None:
    sender = sender_to_break
    prices = await quiet(sender)
    business = await sender.connect()
    await asyncio.to_thread(kafka_to_break.kill)
    async with FireAfterCommit(sender.kafka, [prices], send_seconds=1.0) as fire:
        async with fire.transaction(business) as held:
            held.send("prices", b"lost")
            await business.execute("INSERT INTO trade VALUES (1)")
        await fire.finish()
        assert (fire.sent, fire.lost) == (0, 1)
        # It is known to be away now: the next one is lost, and counted, without a wait.
        async with fire.transaction(business) as held:
            held.send("prices", b"lost")
        assert (fire.sent, fire.lost) == (0, 2)
        await asyncio.to_thread(kafka_to_break.start)

        async def is_sent() -> bool:
            async with fire.transaction(business) as held:
                held.send("prices", b"later")
            await fire.finish()
            return fire.sent > 0

        await sender.until(is_sent)
    assert await sender.admin.fetchval("SELECT count(*) FROM trade") == 1


async def test_missing_topic_loses_its_own_messages_alone_and_is_named_once(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    prices = await quiet(sender)
    nowhere = Destination(name="nowhere", topic=f"nowhere.{sender.name}", confirm="none")
    business = await sender.connect()
    ids = []
    async with FireAfterCommit(sender.kafka, [prices, nowhere]) as fire:
        for _ in range(3):
            async with fire.transaction(business) as held:
                held.send("nowhere", b"lost")
                ids.append(held.send("prices", b"1.25"))
            await fire.finish()
        assert (fire.sent, fire.lost) == (3, 3)
    assert await sender.sent(prices) == ids
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("outbox")]
    assert len([line for line in lines if line.startswith("topic ")]) == 1
    lost = [line for line in lines if line.startswith("lost ")]
    assert lost
    assert all(f"topic {nowhere.topic} is not there" in line for line in lost)
