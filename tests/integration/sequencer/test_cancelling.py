"""Callers who go away, at every wait of every call: nothing is lost, halved or left open."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from chain_kernel.errors import OrderchainError
from chain_kernel.model import IntakeMark, is_linked
from sequencer import Ack, Order, Sequencer, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.orders import make_orders
from tests.cancellation import CancelledAt
from tests.deadlines import deadline, until
from tests.lock_waits import WAITING

from .conftest import MakeChain

PLACES_MAX = 200
"""More waits than any call here has."""

LET_GO = "UPDATE chain_lease SET released = true"
"""A leader that could not hand over does not do it: the next start would watch its lease."""


def orders(name: str, count: int = 100) -> list[Order]:
    return make_orders(count, prefix=f"{name}.", size=50)


async def connections(chain: Chain) -> int:
    found: int = await chain.admin.fetchval(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'orderchain %'"
    )
    return found


async def require_closed(chain: Chain) -> None:
    """Nothing runs, and the server sees every connection end."""
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("orderchain")]
    async with deadline():
        while await connections(chain):
            pass


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_cancelled_question_answers_no_commit(make_chain: MakeChain, count: int) -> None:
    """Its answer comes over the connection of a later commit, and says nothing of that."""
    chain = await make_chain(lease_seconds=60, commit_seconds=50)
    acks: list[Ack] = []
    async with deadline(), open_sequencer(chain.config) as sequencer:
        acks += await sequencer.submit_many(orders("first", count))
        for place in range(1, PLACES_MAX):
            async with chain.admin.transaction():
                await chain.admin.execute("SELECT FROM chain_head FOR UPDATE")
                asked = CancelledAt(place, sequencer.intake("file:x"))
                commit = asyncio.create_task(sequencer.submit_many(orders(f"{place}", count)))
                await asked.outcome()
                await until(lambda: chain.admin.fetchval(WAITING))
                assert not commit.done(), "acknowledged before it is committed"
            acks += await commit
            if not asked.was_reached:
                break
        assert sequencer.stats().take_overs == 1, "a question costs no epoch"
    assert [row.id for row in await chain.rows()] == [ack.id for ack in acks]


CALLS: list[Callable[[Sequencer, str], Coroutine[Any, Any, Any]]] = [
    lambda sequencer, name: sequencer.submit(f"{name}.0", b"x" * 50),
    lambda sequencer, name: sequencer.submit_many(orders(name)),
    lambda sequencer, name: sequencer.submit_each(orders(name)),
    lambda sequencer, name: sequencer.queue_each(
        orders(name),
        intake=IntakeMark(source=f"file:{name}", position=100, digest=b""),
        positions=range(100),
    ),
]


@pytest.mark.parametrize("call", CALLS, ids=["submit", "many", "each", "queue"])
async def test_call_that_is_cancelled_is_committed_whole_or_not_at_all(
    make_chain: MakeChain, call: Callable[[Sequencer, str], Coroutine[Any, Any, Any]]
) -> None:
    """In the line before a full queue, while its batch is taken, and after that."""
    chain = await make_chain(queue_bytes_max=256 * 1024, batch_rows_max=100)
    async with deadline(), open_sequencer(chain.config) as sequencer:
        for is_full in (False, True):
            for place in range(1, PLACES_MAX):
                name = f"{is_full} {place}"
                crowd = [
                    sequencer.submit_nowait(f"{name}.crowd.{n}", bytes(200_000))
                    for n in range(is_full)
                ]
                crowd += [
                    asyncio.create_task(sequencer.submit(f"{name}.crowd.{n}", bytes(200_000)))
                    for n in range(1, 4 * is_full)
                ]
                await asyncio.sleep(0)
                asked = CancelledAt(place, call(sequencer, name))
                outcome = await asked.outcome()
                assert isinstance(outcome, asyncio.CancelledError) == asked.was_reached
                await asyncio.gather(*crowd)
                if not asked.was_reached:
                    break
        await sequencer.submit("last", b"")
    rows = await chain.rows()
    assert is_linked(0, rows)
    by_call: dict[str, int] = {}
    for row in rows:
        by_call[row.key.rpartition(".")[0]] = by_call.get(row.key.rpartition(".")[0], 0) + 1
    assert {count for name, count in by_call.items() if "crowd" not in name and name} <= {1, 100}


async def test_stop_cancelled_anywhere_answers_everybody(make_chain: MakeChain) -> None:
    chain = await make_chain(takeover_skip_ids=10)
    kept: dict[str, int] = {}
    async with deadline():
        for place in range(1, PLACES_MAX):
            sequencer = await open_sequencer(chain.config).__aenter__()
            keys = [f"{place}.{number}" for number in range(20)]
            submitted = [sequencer.submit_nowait(key, b"") for key in keys]
            stopped = CancelledAt(place, sequencer.__aexit__(None, None, None))
            outcome = await stopped.outcome()
            answers = await asyncio.gather(*submitted, return_exceptions=True)
            assert all(isinstance(answer, (Ack, OrderchainError)) for answer in answers)
            kept |= {
                key: answer.id
                for key, answer in zip(keys, answers, strict=True)
                if isinstance(answer, Ack)
            }
            await require_closed(chain)
            await chain.admin.execute(LET_GO)
            if not stopped.was_reached:
                assert outcome is None
                break
            assert isinstance(outcome, asyncio.CancelledError)
    stored = {row.key: row.id for row in await chain.rows()}
    assert kept.items() <= stored.items()
    assert is_linked(0, await chain.rows())


async def test_start_cancelled_anywhere_leaves_nothing(make_chain: MakeChain) -> None:
    chain = await make_chain(takeover_skip_ids=10)
    async with open_sequencer(chain.config) as sequencer:
        await sequencer.submit("a", b"")
    async with deadline():
        for place in range(1, PLACES_MAX):
            sequencer = open_sequencer(chain.config)
            started = CancelledAt(place, sequencer.__aenter__())
            outcome = await started.outcome()
            if not started.was_reached:
                assert outcome is sequencer
                await sequencer.__aexit__(None, None, None)
                break
            assert isinstance(outcome, asyncio.CancelledError)
            await require_closed(chain)
            await chain.admin.execute(LET_GO)  # a take-over that is not waited for may have led
    await require_closed(chain)
