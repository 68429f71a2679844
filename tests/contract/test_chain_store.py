"""What every ChainStore must do, shown on the one in memory and on the real PostgreSQL alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import asyncpg
import pytest

from orderchain.batch import IntakeMark, Term
from orderchain.errors import ChainMissing, Fenced, RetryError
from orderchain.roles import SEQUENCER_WRITER
from orderchain.seal import genesis_seal
from orderchain.simulation.memory_store import MemoryChainStore, MemoryDatabase
from sequencer.config import SequencerConfig
from sequencer.core import SequencerCore
from sequencer.order import Order
from sequencer.store import PostgresChainStore

if TYPE_CHECKING:
    from orderchain.batch import Batch
    from orderchain.ports import ChainStore

OpenStore = Callable[..., "ChainStore"]

WALL_NS = 1_700_000_000_000_000_000


def memory_stores() -> OpenStore:
    database = MemoryDatabase()
    database.create(1)
    return lambda chain_id=1: MemoryChainStore(database, chain_id)


async def make_chain_in_postgres(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        database_id = await connection.fetchval("SELECT database_id FROM schema_version")
        await connection.execute(
            "SELECT chain_create(1, $1, 'orders', 0, 1000000)", genesis_seal(database_id, 1)
        )
    finally:
        await connection.close()


@pytest.fixture(params=["memory", "postgres"])
async def open_store(request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    """Open stores of one database, each as a process of its own would."""
    if request.param == "memory":
        yield memory_stores()
        return
    await make_chain_in_postgres(request.getfixturevalue("database"))
    dsn = request.getfixturevalue("role_dsn")(SEQUENCER_WRITER)
    opened: list[PostgresChainStore] = []

    def open_one(chain_id: int = 1) -> ChainStore:
        config = SequencerConfig(chain_id=chain_id, database=dsn, kafka="unused:9092")
        opened.append(PostgresChainStore(config))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


def next_batch(term: Term, core: SequencerCore | None = None, count: int = 3) -> Batch:
    core = core or SequencerCore(term, takeover_skip_ids=0)
    return core.assemble([Order(f"k{n}", b"payload") for n in range(count)], WALL_NS)


async def test_take_over_with_an_untouched_chain_stands_at_its_genesis(
    open_store: OpenStore,
) -> None:
    term = await open_store().take_over("me")
    assert (term.epoch, term.last_id, term.published_id) == (1, 0, 0)
    assert term.last_seal == genesis_seal(term.database_id, 1)


async def test_take_over_of_a_chain_that_is_not_there_is_refused(open_store: OpenStore) -> None:
    with pytest.raises(ChainMissing):
        await open_store(chain_id=9).take_over("me")


async def test_take_over_again_raises_the_epoch_and_draws_another_nonce(
    open_store: OpenStore,
) -> None:
    first = await open_store().take_over("me")
    second = await open_store().take_over("you")
    assert second.epoch == first.epoch + 1
    assert second.nonce != first.nonce


async def test_commit_moves_the_head_for_the_next_leader(open_store: OpenStore) -> None:
    store = open_store()
    batch = next_batch(await store.take_over("me"))
    await store.commit(batch, published_id=0)
    term = await open_store().take_over("you")
    assert (term.last_id, term.last_seal) == (batch.last_id, batch.seal)
    assert term.last_committed_at_us == batch.committed_at_us


async def test_commit_of_a_replaced_leader_is_fenced_and_stores_nothing(
    open_store: OpenStore,
) -> None:
    old, new = open_store(), open_store()
    batch = next_batch(await old.take_over("old"))
    term = await new.take_over("new")
    with pytest.raises((Fenced, RetryError)):
        await old.commit(batch, published_id=0)
    assert not await new.has_committed(batch)
    assert [found async for found in new.batches(0)] == []
    assert term.last_id == 0


async def test_commit_behind_the_wrong_parent_is_fenced(open_store: OpenStore) -> None:
    store = open_store()
    term = await store.take_over("me")
    core = SequencerCore(term, takeover_skip_ids=0)
    next_batch(term, core)  # never committed
    with pytest.raises(Fenced):
        await store.commit(next_batch(term, core), published_id=0)


async def test_batches_come_back_as_they_were_committed(open_store: OpenStore) -> None:
    store = open_store()
    term = await store.take_over("me")
    core = SequencerCore(term, takeover_skip_ids=0)
    batches = [next_batch(term, core, count) for count in (3, 1, 5)]
    for batch in batches:
        await store.commit(batch, published_id=0)
    assert [found async for found in store.batches(0)] == batches
    assert [found async for found in store.batches(batches[0].last_id)] == batches[1:]
    assert [await store.has_committed(batch) for batch in batches] == [True, True, True]
    assert await store.rows_after(0, 100) == 9
    assert await store.rows_after(batches[0].last_id, 100) == 6
    assert await store.rows_after(batches[-1].last_id, 100) == 0


async def test_has_committed_with_the_same_parent_and_other_content_says_no(
    open_store: OpenStore,
) -> None:
    store = open_store()
    term = await store.take_over("me")
    stored = next_batch(term, count=3)
    await store.commit(stored, published_id=0)
    assert not await store.has_committed(next_batch(term, count=2))


async def test_published_mark_rides_along_and_never_falls(open_store: OpenStore) -> None:
    store = open_store()
    term = await store.take_over("me")
    core = SequencerCore(term, takeover_skip_ids=0)
    first, second = next_batch(term, core), next_batch(term, core)
    await store.commit(first, published_id=0)
    await store.commit(second, published_id=first.last_id)
    await store.mark_published(0)
    assert (await open_store().take_over("you")).published_id == first.last_id


async def test_skip_moves_the_published_mark(open_store: OpenStore) -> None:
    store = open_store()
    batch = next_batch(await store.take_over("me"))
    await store.commit(batch, published_id=0)
    await store.skip_published(0, batch.last_id)
    assert (await open_store().take_over("you")).published_id == batch.last_id


async def test_intake_mark_moves_with_its_batch_alone(open_store: OpenStore) -> None:
    store = open_store()
    term = await store.take_over("me")
    core = SequencerCore(term, takeover_skip_ids=0)
    first, second = (
        IntakeMark(source="file:a", position=position, digest=b"%d" % position)
        for position in (3, 6)
    )
    assert await store.intake("file:a") is None
    await store.commit(next_batch(term, core), published_id=0, intake=[first])
    await store.commit(next_batch(term, core), published_id=0, intake=[second])
    assert await store.intake("file:a") == second
    assert await store.intake("file:b") is None
