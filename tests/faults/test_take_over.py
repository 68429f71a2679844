"""A second fault in the first seconds of a leader."""

from collections.abc import Callable
from typing import Any

import pytest

from sequencer import open_sequencer
from tests.builders.orders import make_orders

from .conftest import MakeChain
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
