"""Each statement of a leader asks for the epoch and for the nonce, each by itself.

A head with another nonce under the same epoch is that of another life of the chain: two standbys
that were promoted count alike. No test may pass by an error of a connection.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from chain_kernel.errors import Fenced, PrimaryBehind, RetryError
from chain_kernel.model import ClientNumber, IntakeMark, KeyPage, LeaseState, Term
from chain_kernel.sql import SEQUENCER_WRITER
from sequencer import Order
from sequencer.core import SequencerCore
from sequencer.leadership import PostgresLease
from sequencer.stores.keys import PostgresKeyStore
from sequencer.stores.postgres import PostgresChainStore
from tests.builders.created_chain import Chain, create_chain
from tests.commits import commit
from tests.deadlines import deadline
from tests.lock_waits import WAITING
from tests.stored_pages import LET_TAMPER

PAGE = KeyPage(after_id=0, until_id=3, spans=bytes(16), hashes=bytes(24))
WALL_NS = 1_700_000_000_000_000_000
COUNTED = ("chain_batch", "chain_intake", "chain_skip", "chain_key_page", "chain_client")
STORED = f"""
SELECT last_id, published_id, head.epoch, backend_pid, counter, released, lease.epoch,
       {", ".join(f"(SELECT count(*) FROM {table} WHERE chain_id = $1)" for table in COUNTED)}
  FROM chain_head AS head JOIN chain_lease AS lease USING (chain_id) WHERE chain_id = $1
"""  # noqa: S608 - names of tables
OTHER_LIFE = {
    "epoch": "UPDATE chain_head SET epoch = epoch + 1 WHERE chain_id = 1",
    "nonce": "UPDATE chain_head SET nonce = sha256(nonce) WHERE chain_id = 1",
}

LATER_BEAT = "UPDATE chain_lease SET counter = counter + 1 WHERE chain_id = 1"


class Led:
    """A leader of one chain, by its parts, and what its database holds."""

    seen: LeaseState

    def __init__(self, chain: Chain, store: PostgresChainStore, term: Term) -> None:
        self.chain, self.store, self.term = chain, store, term
        self.keys, self.lease = PostgresKeyStore(chain.config), PostgresLease(chain.config)
        self._core = SequencerCore(term, takeover_skip_ids=0)

    async def commit(self, count: int) -> None:
        orders = [Order(f"k{number}", b"") for number in range(count)]
        await commit(self.store, self._core.assemble(orders, WALL_NS), published_id=0)

    async def take_over(self) -> None:
        store = PostgresChainStore(self.chain.config)
        try:
            await store.take_over("me", self.seen)
        finally:
            await store.close()

    async def is_alive(self) -> bool:
        """Return whether the backend that the head names is there."""
        alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1"
        return bool(await self.chain.value(alive, (await self.chain.head())["backend_pid"]))

    async def stored(self) -> tuple[Any, ...]:
        return tuple((await self.chain.fetch(STORED, self.chain.chain_id))[0])


LeadChain = Callable[[int], Awaitable[Led]]


@pytest.fixture
async def lead(database: str, role_dsn: Callable[[str], str]) -> AsyncIterator[LeadChain]:
    closing = AsyncExitStack()

    async def make(chain_id: int) -> Led:
        writer = role_dsn(SEQUENCER_WRITER)
        chain = await create_chain(database, writer, "unused:9092", chain_id, copies=0)
        store = PostgresChainStore(chain.config)
        term = await store.take_over("me", await store.look())
        led = Led(chain, store, term)
        for part in (store, led.keys, led.lease):
            closing.push_async_callback(part.close)
        # Each of its sessions is open, and has proven the term.
        await led.keys.save(led.term, PAGE, [])
        await led.lease.renew(led.term, 0)
        led.seen = await store.look()
        return led

    async with closing:
        yield make


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
async def led(lead: LeadChain) -> Led:
    return await lead(1)


WORKS: dict[str, tuple[Callable[[Led], Awaitable[object]], type[Exception] | None]] = {
    "commit of a row": (lambda led: led.commit(1), Fenced),
    "commit of few rows": (lambda led: led.commit(3), Fenced),
    "commit of many rows": (lambda led: led.commit(2_000), Fenced),
    "intake mark alone": (
        lambda led: led.store.move_intake([IntakeMark(source="s", position=1, digest=b"")]),
        Fenced,
    ),
    "skip": (lambda led: led.store.skip_published(0, 0), Fenced),
    "page of keys": (
        lambda led: led.keys.save(led.term, replace(PAGE, after_id=3, until_id=5), []),
        RetryError,
    ),
    "clients": (
        lambda led: led.keys.save(led.term, PAGE, [ClientNumber("a", 1, 1, 0, 0)]),
        RetryError,
    ),
    "pages forgotten": (lambda led: led.keys.forget(led.term, 3), None),
    "release": (lambda led: led.lease.release(led.term, 0), Fenced),
}


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", OTHER_LIFE)
@pytest.mark.parametrize("work", WORKS)
async def test_statement_does_nothing_under_another_epoch_or_nonce(
    led: Led, work: str, other: str
) -> None:
    await led.chain.tamper(OTHER_LIFE[other])
    before = await led.stored()
    do, refused = WORKS[work]
    if refused is None:
        await do(led)
    else:
        with pytest.raises(refused) as raised:
            await do(led)
        assert type(raised.value) is refused, "another error is no fence"
    assert await led.stored() == before


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", [*OTHER_LIFE.values(), LATER_BEAT])
async def test_take_over_that_saw_another_epoch_nonce_or_beat_raises_and_ends_nothing(
    led: Led, other: str
) -> None:
    await led.chain.tamper(other)
    before = await led.stored()
    with pytest.raises(Fenced) as raised:
        await led.take_over()
    assert type(raised.value) is Fenced
    assert await led.stored() == before
    assert await led.is_alive(), "the backend of a newer leader"


@pytest.mark.parametrize("work", [*WORKS, "take-over"])
async def test_statement_changes_its_own_chain_alone(led: Led, lead: LeadChain, work: str) -> None:
    neighbour = await lead(2)
    # As alike as can be: only the number of the chain parts them.
    await led.chain.tamper(
        "UPDATE chain_head SET nonce = (SELECT nonce FROM chain_term WHERE chain_id = 1)",
        "UPDATE chain_term SET nonce = (SELECT nonce FROM chain_head WHERE chain_id = 1)",
    )
    before = await neighbour.stored()
    await (WORKS[work][0](led) if work in WORKS else led.take_over())
    assert await neighbour.stored() == before
    assert await neighbour.is_alive()


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", OTHER_LIFE)
async def test_beat_of_another_life_moves_no_published_mark(led: Led, other: str) -> None:
    await led.commit(3)
    await led.chain.tamper(OTHER_LIFE[other])
    await led.lease.renew(led.term, 2)
    assert await led.chain.value("SELECT published_id FROM chain_head") == 0


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize(
    ("other", "refused"),
    [("UPDATE chain_lease SET epoch = epoch + 1", Fenced),
     ("UPDATE chain_term SET epoch = epoch + 1", RetryError),
     ("UPDATE chain_term SET nonce = substr(sha256(nonce), 1, length(nonce))", RetryError)],
)  # fmt: skip
async def test_beat_of_a_term_that_is_not_here_renews_no_lease(
    led: Led, other: str, refused: type[Exception]
) -> None:
    await led.chain.tamper(other)
    before = await led.stored()
    with pytest.raises(refused):
        await led.lease.renew(led.term, 0)
    assert await led.stored() == before


async def test_release_above_the_head_moves_no_published_mark(led: Led) -> None:
    """Rows were lost since: the next leader is to find what this one has published."""
    await led.commit(3)
    before = await led.chain.head()
    with pytest.raises(PrimaryBehind):
        await led.lease.release(led.term, 10_000)
    head = await led.chain.head()
    names = ("published_id", "backend_pid")
    assert [head[name] for name in names] == [before[name] for name in names]


@pytest.mark.guarantee("G7")
async def test_release_that_waits_for_a_take_over_releases_nothing(
    led: Led, admin: asyncpg.Connection
) -> None:
    async with admin.transaction():
        await admin.execute(LET_TAMPER)
        await admin.execute("UPDATE chain_head SET epoch = epoch + 1")
        await admin.execute("UPDATE chain_lease SET epoch = epoch + 1, counter = counter + 1")
        releasing = asyncio.ensure_future(led.lease.release(led.term, 0))
        async with deadline():
            while not await admin.fetchval(WAITING):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
    before = await led.stored()
    with pytest.raises(Fenced):
        await releasing
    assert await led.stored() == before


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("other", ["epoch", "nonce"])
async def test_side_session_of_a_term_that_the_server_does_not_have_is_refused(
    led: Led, other: str
) -> None:
    strange = {"epoch": led.term.epoch + 1} if other == "epoch" else {"nonce": bytes(16)}
    keys = PostgresKeyStore(led.chain.config)
    try:
        with pytest.raises(RetryError, match="not the server of the term"):
            await keys.outline(replace(led.term, **strange))
    finally:
        await keys.close()
