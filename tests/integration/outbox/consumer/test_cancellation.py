"""A consumer that is cancelled at any await loses nothing, and does nothing twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from outbox.consumer.decisions import RetryLevels
from tests.deadlines import deadline

from ..cut_await import cut_at, cutting_tasks
from .rig import apply, apply_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outbox.consumer.consumer import Consumer
    from outbox.consumer.delivery import Delivery
    from outbox.message import Message

    from .rig import Rig

AWAITS_MAX = 200
"""More than any of them has: the tests end when one comes to its end uncut."""


async def one(consumer: Consumer) -> None:
    delivery = await anext(consumer)
    async with delivery.transaction() as connection:
        await apply(delivery, connection)


async def each_once(rig: Rig, consumer: Consumer, sent: list[Message]) -> None:
    """Work off what is left, on the same consumer; then every effect is there once, confirmed."""
    wanted = {message.payload.decode() for message in sent}
    async with deadline():
        while set(await rig.effects()) != wanted:
            await one(consumer)
    assert set((await rig.effects()).values()) == {1}
    confirmed = await rig.applied_ids(len(sent))
    assert set(confirmed) == {message.message_id.bytes for message in sent}
    await rig.until_committed(len(sent))  # nothing holds the offset back


@pytest.mark.timeout(240)
async def test_loop_cancelled_at_each_await_and_resumed_applies_each_message_once(
    rig: Rig,
) -> None:
    sent: list[Message] = []
    async with rig.consumer(at_once=4) as consumer:
        for at in range(1, AWAITS_MAX):
            sent.append(rig.message(f"m{at}"))
            await rig.send(sent[-1])
            async with deadline():
                if not await cut_at(at, one(consumer)):
                    break
        assert 3 < at < AWAITS_MAX - 1  # the wait, the effect, the commit
        await each_once(rig, consumer, sent)


async def test_wait_with_a_deadline_shorter_than_a_claim_gets_the_message_in_the_end(
    rig: Rig,
) -> None:
    """The claim is kept waiting by a lock; each wait is far shorter than that."""
    message = rig.message("late")
    async with rig.consumer(statement_seconds=30.0) as consumer:
        async with rig.admin.transaction():
            await rig.admin.execute("LOCK TABLE inbox IN SHARE MODE")
            await rig.send(message)
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(consumer), 0.01)
        async with deadline():
            delivery = await anext(consumer)
            async with delivery.transaction() as connection:
                await apply(delivery, connection)
    assert await rig.effects() == {"late": 1}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fails", [False, True], ids=["that succeeds", "that fails first"])
async def test_handler_of_many_cancelled_at_each_await_and_run_again_applies_each_message_once(
    rig: Rig, fails: bool
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

    async with rig.consumer(retries=RetryLevels(levels_seconds=(0.01,))) as consumer:
        for at in range(1, AWAITS_MAX):
            sent += [rig.message(f"{at} {name}") for name in "ab"]
            await rig.send(*sent[-2:])
            running = asyncio.create_task(consumer.run_many(handler))
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
        await rig.send(rig.message(f"m{at}"))
        consumer = rig.consumer()
        await consumer.start()
        await one(consumer)
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
