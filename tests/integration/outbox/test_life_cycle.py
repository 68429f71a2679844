"""What must live ends the whole service with its error, and nothing is accepted from then on."""

import asyncio
from typing import Any

import asyncpg
import msgspec
import pytest

from outbox import Destination, FireAfterCommit, PartEnded, Relay, Status, draw_message_ids
from outbox.callback.checked_sender import CheckedSender
from outbox.callback.config import CheckedConfig
from outbox.sender.relay import HeldMessages
from outbox.service.config import Clients
from outbox.service.server import MessageService
from tests.builders.topics import make_topics
from tests.cancellation import cut_at
from tests.deadlines import deadline

from .conftest import Sender
from .service.service_client import client, raw, service_config

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

PARTS = ["acks", "send", "broker", "confirms", "topic errors", "sweep", "retention"]
OURS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'orderchain outbox%'
"""


async def kill(service: str, part: str) -> None:
    """Cancel the task of one part, as no caller should, and return once it has ended."""
    (task,) = [
        task for task in asyncio.all_tasks() if task.get_name() == f"orderchain {service} {part}"
    ]
    task.cancel()
    await asyncio.wait([task])


async def refuses(relay: Any, business: asyncpg.Connection) -> None:
    with pytest.raises(PartEnded):
        async with relay.transaction(business) as transaction:
            await transaction.add("clearing", b"too late")


async def until_gone(sender: Sender) -> None:
    """Return once the server has ended our connections: it does so a moment after we have."""
    async with deadline():
        while await sender.admin.fetchval(OURS):
            pass  # each question is a round trip


@pytest.mark.parametrize("part", PARTS)
async def test_relay_of_which_a_part_is_gone_raises_and_accepts_nothing(
    sender: Sender, part: str
) -> None:
    await sender.set_up()
    business = await sender.connect()
    relay = Relay(sender.config())
    with pytest.raises(PartEnded, match=part):  # noqa: PT012 - the block is what ends so
        async with relay:
            running = asyncio.create_task(relay.run())
            async with relay.transaction(business) as transaction:
                early = await transaction.add("clearing", b"1")
            await sender.until_status(early, Status.CONFIRMED)
            await kill("relay", part)
            async with deadline():
                with pytest.raises(PartEnded, match=part):
                    await running
            await refuses(relay, business)
            async with deadline():
                with pytest.raises(PartEnded):
                    await relay.settle()
    assert list(await sender.statuses()) == [early]
    await until_gone(sender)


async def test_transaction_that_is_open_as_a_part_ends_is_refused_at_its_next_message(
    sender: Sender,
) -> None:
    await sender.set_up()
    business = await sender.connect()
    relay = Relay(sender.config())
    await relay.start()
    with pytest.raises(PartEnded):  # noqa: PT012 - the block is what ends so
        async with relay.transaction(business) as transaction:
            await transaction.add("clearing", b"1")
            await kill("relay", "send")
            with pytest.raises(PartEnded):
                await relay.run()
            await transaction.add("clearing", b"2")
    await relay.stop()
    assert await sender.statuses() == {}


@pytest.mark.parametrize("part", ["send", "broker", "outbox"])
async def test_sender_of_mode_5_of_which_a_part_is_gone_accepts_nothing(
    sender: Sender, part: str
) -> None:
    await sender.set_up()
    business = await sender.connect()
    checked = CheckedConfig(sender="orders", check_topic=f"checks.{sender.name}")
    with pytest.raises(PartEnded, match=part):  # noqa: PT012 - the block is what ends so
        async with CheckedSender(sender.config(), checked) as mode_5:
            running = asyncio.create_task(mode_5.run())
            await asyncio.sleep(0)
            await kill("mode 5", part)
            with pytest.raises(PartEnded):
                await running
            await refuses(mode_5, business)
    assert await sender.statuses() == {}


async def test_fire_after_commit_that_is_gone_accepts_nothing(sender: Sender) -> None:
    clearing = await sender.set_up(confirm="none")
    business = await sender.connect()
    with pytest.raises(PartEnded):  # noqa: PT012 - the block is what ends so
        async with FireAfterCommit(sender.kafka, [clearing]) as fire:
            await asyncio.sleep(0)
            await kill("fire after commit", "send")
            with pytest.raises(PartEnded):
                await fire.finish()
            with pytest.raises(PartEnded):  # noqa: PT012 - the block is what ends so
                async with fire.transaction(business) as held:
                    await business.execute("INSERT INTO trade VALUES (1)")
                    held.send("clearing", b"1")
    assert await sender.admin.fetchval("SELECT count(*) FROM trade") == 0


@pytest.mark.parametrize("part", ["http", "relay", "check-back"])
async def test_message_service_of_which_a_part_is_gone_raises_and_stores_nothing(
    sender: Sender, part: str
) -> None:
    await sender.set_up()
    clients = Clients([client("payments")])
    message = {"destination": "clearing", "payload": "AA=="}
    body = msgspec.json.encode({"messages": [message]})
    with pytest.raises(PartEnded):  # noqa: PT012 - the block is what ends so
        async with MessageService(service_config(sender), clients) as service:
            status, _, _ = await raw(service.address, "POST", "/v1/messages/send", body)
            assert status == 200
            await kill("message service", part)
            with pytest.raises(PartEnded):
                await service.run()
            try:
                status, _, _ = await raw(service.address, "POST", "/v1/messages/send", body)
            except (OSError, IndexError):  # no listener, or it was closed without an answer
                status = 0
            assert status in {0, 503}
    assert len(await sender.statuses()) == 1


@pytest.mark.timeout(240)
async def test_stop_of_a_relay_cancelled_at_each_await_leaves_no_connection_and_no_task(
    sender: Sender,
) -> None:
    await sender.set_up()
    business = await sender.connect()
    before = asyncio.all_tasks()
    for at in range(1, 200):
        relay = Relay(sender.config())
        await relay.start()
        async with relay.transaction(business) as transaction:
            await transaction.add("clearing", b"1")
        if not await cut_at(at, relay.stop()):
            break
        await until_gone(sender)
        left = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
        assert not [name for name in left if name.startswith("orderchain")], left
    assert at < 199


@pytest.mark.timeout(240)
async def test_stop_of_modes_1_and_5_cancelled_at_each_await_sends_all_and_leaves_nothing(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    unconfirmed = Destination(name="clearing", topic=clearing.topic, confirm="none")
    checked = CheckedConfig(sender="payments", check_topic=f"checks.{sender.name}")
    await make_topics(sender.kafka, checked.check_topic)
    business = await sender.connect()
    before = asyncio.all_tasks()
    fired = 0
    for make in (
        lambda: FireAfterCommit(sender.kafka, [unconfirmed]),
        lambda: CheckedSender(sender.config(), checked),
    ):
        for at in range(1, 200):
            mode = make()
            await mode.__aenter__()
            async with mode.transaction(business) as transaction:
                if isinstance(transaction, HeldMessages):
                    transaction.send("clearing", b"1")
                else:
                    await transaction.add("clearing", b"1")
            fired += 1
            if not await cut_at(at, mode.__aexit__(None)):
                break
            await until_gone(sender)
            left = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
            assert not [name for name in left if name.startswith("orderchain")], left
        assert 1 < at < 199
    assert len(await sender.records(clearing.topic)) == fired


@pytest.mark.timeout(240)
async def test_transaction_cancelled_at_each_await_sends_what_has_committed_and_nothing_else(
    sender: Sender,
) -> None:
    clearing = await sender.set_up()
    ids = draw_message_ids(200)

    async def trade(relay: Relay, business: asyncpg.Connection, number: int) -> None:
        async with relay.transaction(business) as transaction:
            await business.execute("INSERT INTO trade VALUES ($1, $2)", number, ids[number])
            await transaction.add("clearing", str(number).encode())

    async with sender.relay() as relay:
        for at in range(1, 200):
            business = await sender.connect()
            if not await cut_at(at, trade(relay, business, at)):
                break
            await business.close()
        assert 3 < at < 199
        await sender.let_time_pass()
        await relay.sweep()
        await relay.settle()
        trades = await sender.admin.fetch("SELECT trade_id FROM trade")
        sent = {int(record.value) for record in await sender.records(clearing.topic)}
    assert sent == {row["trade_id"] for row in trades}
    assert at in sent
