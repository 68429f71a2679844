"""A consumer that is cancelled at any await loses nothing, and does nothing twice."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outbox import RetryLevels
from outbox.consumer.consumer import Consumer
from outbox.consumer.delivery import Delivery
from outbox.message import Message
from tests.cancellation import cut_at, cutting_tasks
from tests.deadlines import deadline

from .rig import Rig, apply, apply_many

AWAITS_MAX = 200
"""More than any of them has: the tests end when one comes to its end uncut."""


async def each_once(rig: Rig, consumer: Consumer, sent: list[Message]) -> None:
    """Work off what is left, on the same consumer; then every effect is there once, confirmed."""
    wanted = {message.payload.decode() for message in sent}
    async with deadline():
        running = asyncio.create_task(consumer.run(apply))
        while set(await rig.effects()) != wanted:
            pass  # each question is a round trip
        consumer.stop()
        await running
    assert set((await rig.effects()).values()) == {1}
    confirmed = await rig.applied_ids(len(sent))
    assert set(confirmed) == {message.message_id.bytes for message in sent}
    await rig.until_committed(len(sent))  # nothing holds the offset back


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("form", "fails"), [("run", False), ("run_many", False), ("run_many", True)]
)
async def test_handler_cancelled_at_each_await_and_run_again_applies_each_message_once(
    rig: Rig, form: str, fails: bool
) -> None:
    sent: list[Message] = []
    failed: set[Any] = set()

    async def handler(deliveries: Sequence[Delivery], connection: Any) -> None:
        await apply_many(deliveries, connection)
        ids = {delivery.message_id for delivery in deliveries}
        if fails and not ids <= failed:
            failed.update(ids)
            raise ValueError("not yet")
        consumer.stop()

    async def alone(delivery: Delivery, connection: Any) -> None:
        await handler([delivery], connection)

    async with rig.consumer(retries=RetryLevels(levels_seconds=(0.01,))) as consumer:
        for at in range(1, AWAITS_MAX):
            sent += [rig.message(f"{at} {name}") for name in "ab"]
            await rig.send(*sent[-2:])
            work = consumer.run(alone) if form == "run" else consumer.run_many(handler)
            running = asyncio.create_task(work)
            with cutting_tasks("Consumer._work", at, running.cancel) as reached:
                async with deadline():
                    await asyncio.wait([running])
            consumer._pace.is_stopping = False
            if not reached:
                break
        assert 5 < at < AWAITS_MAX - 1
        await each_once(rig, consumer, sent)


async def test_close_cancelled_at_each_await_leaves_no_connection_and_no_task(rig: Rig) -> None:
    before = asyncio.all_tasks()
    for at in range(1, AWAITS_MAX):
        message, consumer = rig.message(f"m{at}"), rig.consumer()
        await rig.send(message)
        await consumer.start()
        await rig.run_until(consumer, message)
        if not await cut_at(at, consumer.close()):
            break
        async with deadline():
            while await rig.admin.fetchval(OTHERS):
                pass  # each question is a round trip
        left = {task.get_name() for task in asyncio.all_tasks() - before if not task.done()}
        assert not [name for name in left if name.startswith("orderchain")], left
    assert at < AWAITS_MAX - 1
    assert set((await rig.effects()).values()) == {1}


OTHERS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
