"""A gap over a real database that does not answer: it is shown from the moment it is seen."""

import asyncio

import asyncpg

from matcher_receiver import Receiver
from tests.builders.stored_chain import StoredChain
from tests.deadlines import deadline

from .conftest import MakeReceiver, Publish


async def taken(receiver: Receiver, until_id: int) -> list[int]:
    ids: list[int] = []
    async with deadline():
        while not ids or ids[-1] < until_id:
            ids += [event.id for event in (await anext(receiver)).events]
    return ids


async def outcomes(admin: asyncpg.Connection) -> list[tuple[int, str]]:
    rows = await admin.fetch("SELECT after_id, outcome FROM receiver_gap ORDER BY after_id")
    return [tuple(row) for row in rows]


async def test_gap_that_is_open_when_the_process_is_killed_stands_in_the_ledger(
    stored: StoredChain, make_receiver: MakeReceiver, publish: Publish, admin: asyncpg.Connection
) -> None:
    killed = make_receiver(poll_after_seconds=600.0)
    await killed.__aenter__()
    try:
        await publish(stored.chain.frames(await stored.commit(5)))
        await killed.checkpoint(await anext(killed))
        after_id = killed.head_delivered
        await stored.commit(120)
        await publish(stored.chain.frames(await stored.commit(5)))
        async with deadline():
            await anext(killed)  # the first page of three
            while await outcomes(admin) != [(after_id, "open")]:  # noqa: ASYNC110 - a table
                await asyncio.sleep(0.02)
            # It does nothing from here on, as if it had been killed; the next one starts.
            async with make_receiver(poll_after_seconds=600.0) as receiver:
                assert await outcomes(admin) == [(after_id, "interrupted")]
                await taken(receiver, stored.chain.mark().id)
    finally:
        await killed.__aexit__(None, None, None)
