"""A second fault in the first seconds of a leader, and tries of its own that land late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from orderchain.clock import SystemClock
from sequencer import open_sequencer
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.orders import make_orders
from tests.deadlines import deadline

from .inspector import inspect
from .test_durability import WAITING, Settings, led, settings  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import MakeChain

CUT = "SELECT pg_terminate_backend(backend_pid) FROM chain_head"
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.parametrize("at", ["keys", "tail", "batches"])
async def test_leader_whose_connection_is_cut_between_take_over_and_open_leads(
    make_chain: MakeChain, at: str
) -> None:
    chain = await make_chain()
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit_many(make_orders(20, size=100))
    await chain.fetch("UPDATE chain_head SET published_id = 0")

    leader = open_sequencer(chain.config)
    holder, name = {
        "keys": (leader._keys, "load"),
        "tail": (leader._store, "rows_after"),
        "batches": (leader._store, "batches"),
    }[at]
    work: Callable[..., Any] = getattr(holder, name)
    cuts = []

    async def cut() -> None:
        cuts.append(await chain.fetch(CUT))

    async def cut_before(*values: object) -> Any:
        await cut()
        return await work(*values)

    async def cut_among(*values: object) -> Any:
        if not cuts:
            await cut()
        async for batch in work(*values):
            yield batch

    setattr(holder, name, cut_among if at == "batches" else _once(cut_before, work))
    async with leader:
        assert (await leader.submit("after", b"x")).pid > 0
        assert leader.stats().take_overs == 2
    assert len(await inspect(chain)) == 21


def _once(first: Callable[..., Any], later: Callable[..., Any]) -> Callable[..., Any]:
    works = [first]
    return lambda *values: (works.pop() if works else later)(*values)


async def test_take_over_that_waits_for_a_standby_does_not_fence_the_tries_after_it(
    chain_on_breakable_postgres: MakeChain,
    settings: Settings,  # noqa: F811
) -> None:
    chain = await chain_on_breakable_postgres()
    async with led(chain) as leader:
        await leader.submit("before", b"")
        await settings.set("synchronous_standby_names", "gone")
        await settings.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'orderchain sequencer 1'"
        )
        submitting = asyncio.create_task(leader.submit("after", b""))
        async with deadline():
            # The second try waits for the row that the first one holds.
            while not await settings.connection.fetchval(
                f"SELECT ({WAITING}) > 0 AND ({BLOCKED}) > 0"
            ):
                pass
        await settings.reset()
        async with deadline():
            await submitting
    assert [row.key for row in await inspect(chain)] == ["before", "after"]


async def test_range_that_is_skipped_while_the_leader_takes_over_again_is_recorded(
    make_chain: MakeChain,
) -> None:
    chain = await make_chain(commit_seconds=60.0, lease_seconds=120.0)
    async with open_sequencer(chain.config) as sequencer:
        ack = await sequencer.submit("one", b"")
    await chain.fetch("UPDATE chain_head SET published_id = 0")
    store = PostgresChainStore(chain.config, SystemClock())
    held = await store.take_over("me", await store.look())
    blocker = await asyncpg.connect(chain.database)
    try:
        async with blocker.transaction():
            await blocker.execute("SELECT FROM chain_head FOR UPDATE")
            taking = asyncio.create_task(store.take_over_again("me", held))
            async with deadline():
                while not await blocker.fetchval(BLOCKED):
                    pass
            skipping = asyncio.create_task(store.skip_published(0, ack.id))
            await asyncio.sleep(0)
        async with deadline():
            await taking
            await skipping
    finally:
        await blocker.close()
        await store.close()
    assert [tuple(row)[1:3] for row in await chain.fetch("SELECT * FROM chain_skip")] == [
        (0, ack.id)
    ]
