"""A second fault in the first seconds of a leader."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer import open_sequencer
from tests.builders.orders import make_orders
from tests.deadlines import deadline, until

from .conftest import MakeChain, StartWorker
from .inspector import inspect

CUT = "SELECT pg_terminate_backend(backend_pid) FROM chain_head"


@pytest.mark.parametrize("at", ["keys", "tail", "batches"])
async def test_leader_cut_between_take_over_and_open_leads(make_chain: MakeChain, at: str) -> None:
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
        await leader.submit("after", b"x")
        assert leader.stats().take_overs == 2
    await inspect(chain)


def _once(first: Callable[..., Any], later: Callable[..., Any]) -> Callable[..., Any]:
    works = [first]
    return lambda *values: (works.pop() if works else later)(*values)


BEATS_PER_LEASE = 5
IS_WATCHED = (
    "SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE 'orderchain sequencer%'"
)
"""The standby has a connection, too."""


@pytest.mark.nightly
async def test_standby_that_was_frozen_for_two_leases_takes_no_chain_from_a_leader(
    make_chain: MakeChain, start_worker: StartWorker
) -> None:
    """The other way round, a leader that is frozen is taken over, whatever else is well."""
    chain = await make_chain()
    async with deadline(120), open_sequencer(chain.config) as leader:
        standby = await start_worker(replace(chain.config, standby=True))
        await until(lambda: chain.value(IS_WATCHED))

        async def beats() -> int:
            found: int = await chain.value("SELECT counter FROM chain_lease")
            return found

        async def until_beats(count: int) -> None:
            last = await beats() + count
            while await beats() < last:  # noqa: ASYNC110 - of another process's doing
                await asyncio.sleep(0.05)

        await until_beats(2)
        standby.freeze()
        await until_beats(2 * BEATS_PER_LEASE)
        standby.thaw()
        await until_beats(BEATS_PER_LEASE + 1)
        assert (await chain.head())["epoch"] == leader.stats().take_overs == 1
    await standby.until_leading()
    await inspect(chain)
