"""Chains that commit over one connection: each error of one, and what the others make of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from chain_kernel.clock import SystemClock
from chain_kernel.errors import Fenced, RetryError, UnknownOutcome
from chain_kernel.model import IntakeMark, Term
from chain_kernel.seal import Batch
from sequencer.core import SequencerCore
from sequencer.leadership import PostgresLease
from sequencer.order import Order
from sequencer.stores.postgres import Commit, PostgresChainStore
from sequencer.stores.session import CommitLine
from tests.builders.created_chain import Chain
from tests.commits import commit
from tests.deadlines import until
from tests.integration.sequencer.conftest import MakeChain

WALL_NS = 1_700_000_000_000_000_000
WHOSE = "1-2"
_OURS = "datname = current_database() AND application_name = 'orderchain sequencer 1-2'"
_END = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {_OURS}"  # noqa: S608


class Led:
    """A chain whose store shares its line with another."""

    def __init__(self, chain: Chain, store: PostgresChainStore, term: Term) -> None:
        self.chain = chain
        self.store = store
        self.term = term
        self.core = SequencerCore(term, takeover_skip_ids=0)

    def batch(self, count: int = 3) -> Batch:
        return self.core.assemble([Order(f"k{n}", b"payload") for n in range(count)], WALL_NS)

    async def commit(self, count: int = 3) -> Batch:
        batch = self.batch(count)
        await commit(self.store, batch, published_id=0)
        return batch

    async def begin(self, first: Batch, second: Batch) -> tuple[Commit, Commit]:
        """Send the commits of two batches, the second ahead of the first one's outcome."""
        pending = await self.store.begin(first, published_id=0)
        following = pending.follow(second, published_id=0)
        assert following is not None
        return pending, following

    async def lead_again(self) -> None:
        self.term = await self.store.take_over_again("me", self.term)
        self.core = SequencerCore(self.term, takeover_skip_ids=0)

    async def hold(self, holding: AsyncExitStack) -> None:
        """Keep commits of this chain waiting in the server, until `holding` is left."""
        await holding.enter_async_context(self.chain.admin.transaction())
        lock = "SELECT FROM chain_head WHERE chain_id = $1 FOR UPDATE"
        await self.chain.admin.execute(lock, self.chain.chain_id)

    async def until_held(self) -> None:
        """Wait until a commit waits in the server."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE {_OURS} AND wait_event_type = 'Lock'"  # noqa: S608
        await until(lambda: self.chain.value(query))


async def connections(chain: Chain) -> int:
    found: int = await chain.value(f"SELECT count(*) FROM pg_stat_activity WHERE {_OURS}")  # noqa: S608
    return found


async def take_over(chain: Chain, line: CommitLine | None = None, owner: str = "me") -> Led:
    store = PostgresChainStore(chain.config, SystemClock(), line)
    return Led(chain, store, await store.take_over(owner, await store.look()))


@pytest.fixture
async def pair(
    make_chain: MakeChain, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Led, Led]]:
    """Two chains that are led over one line, which waits for a lock as long as a story holds it."""
    monkeypatch.setattr("sequencer.stores.session._LOCK_TIMEOUT", "0")
    one, two = await make_chain(1, copies=0), await make_chain(2, copies=0)
    line = CommitLine(one.config, SystemClock(), WHOSE)
    yield await take_over(one, line), await take_over(two, line)
    await line.close()


Pair = tuple[Led, Led]


async def test_chains_take_turns_over_one_connection(pair: Pair) -> None:
    for led in pair:
        first, second = led.batch(100), led.batch(100)
        pending, following = await led.begin(first, second)
        other = pair[0] if led is pair[1] else pair[1]
        beside = asyncio.create_task(other.commit())
        await pending.outcome()
        await following.outcome()
        await beside
        assert await led.store.has_committed(second)
    assert await connections(pair[0].chain) == 1


async def test_chain_that_was_fenced_costs_the_others_an_epoch_and_nothing_else(
    pair: Pair,
) -> None:
    fenced, other = pair
    usurper = await take_over(fenced.chain, owner="you")
    # The take-over has ended the backend, as that of a leader that hangs.
    with pytest.raises((Fenced, RetryError, UnknownOutcome)):
        await fenced.commit()
    with pytest.raises(Fenced):
        await fenced.lead_again()
    with pytest.raises((RetryError, UnknownOutcome)):
        await other.commit()
    await other.lead_again()
    assert other.term.epoch == 2
    await other.commit()
    await usurper.commit()
    await usurper.store.close()
    assert await connections(fenced.chain) == 1


async def test_commit_in_flight_while_another_chain_is_fenced_has_its_own_outcome(
    pair: Pair,
) -> None:
    other, fenced = pair
    fenced.batch()  # never committed: what follows has the wrong parent, as after a take-over
    first, second = other.batch(100), other.batch(100)
    async with AsyncExitStack() as holding:
        await other.hold(holding)
        pending, following = await other.begin(first, second)
        ends = asyncio.create_task(pending.outcome())
        loses = asyncio.create_task(fenced.commit())
        await other.until_held()
    await ends
    with pytest.raises(Fenced):
        await loses
    await following.outcome()
    with pytest.raises(RetryError):
        await other.commit()
    await other.lead_again()
    assert await other.store.has_committed(second)
    await other.commit()


async def test_commit_is_not_sent_ahead_while_another_chain_uses_the_driver(pair: Pair) -> None:
    """The end of the other's statement would be taken for the end of the commit."""
    one, two = pair
    first, second, third = (one.batch(100) for _ in range(3))
    pending, following = await one.begin(first, second)
    await pending.outcome()
    async with AsyncExitStack() as holding:
        await two.hold(holding)
        mark = IntakeMark(source="topic:t:0", position=1, digest=b"")
        moves = asyncio.create_task(two.store.move_intake([mark]))
        await two.until_held()
        assert following.follow(third, published_id=0) is None
    await moves
    await following.outcome()
    await commit(one.store, third, published_id=0)
    assert await one.store.has_committed(third)
    assert (one.term.epoch, two.term.epoch) == (1, 1)


async def test_commit_sent_ahead_of_one_that_failed_is_unknown_not_fenced(pair: Pair) -> None:
    led, _ = pair
    first, second = led.batch(100), led.batch(100)
    cancel = f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {_OURS}"  # noqa: S608
    async with AsyncExitStack() as holding:
        await led.hold(holding)
        pending, following = await led.begin(first, second)
        await led.until_held()
        await led.chain.fetch(cancel)
        session = led.store.session
        await session.pipeline.idle()  # both answers are here before either is looked at
        with pytest.raises(UnknownOutcome):
            await pending.outcome()
    await led.lead_again()
    with pytest.raises(UnknownOutcome):
        await following.outcome()
    await led.commit()


async def test_take_over_that_is_cancelled_before_its_turn_costs_the_others_nothing(
    pair: Pair,
) -> None:
    kept, cancelled = pair
    sight = await cancelled.store.look()
    async with AsyncExitStack() as holding:
        await kept.hold(holding)
        pending = await kept.store.begin(kept.batch(100), published_id=0)
        waits = asyncio.create_task(cancelled.store.take_over("me", sight))
        await kept.until_held()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
    await pending.outcome()
    await kept.commit()
    assert kept.term.epoch == 1


async def test_commit_over_a_connection_that_was_lost_while_idle_was_not_sent(pair: Pair) -> None:
    led, _ = pair
    await led.commit()
    await led.chain.fetch(_END)
    await until(lambda: not led.store.session.is_open)
    with pytest.raises(RetryError):
        await led.commit()
    await led.lead_again()
    await led.commit()


async def test_commit_of_another_chain_is_found_out_after_a_cancelled_one(pair: Pair) -> None:
    other, cancelled = pair
    first, second = other.batch(100), other.batch(100)
    async with AsyncExitStack() as holding:
        await other.hold(holding)
        pending, following = await other.begin(first, second)
        leaves = asyncio.create_task(pending.outcome())
        waits = asyncio.create_task(cancelled.commit())
        await other.until_held()
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        # The connection is gone for all: nothing of this chain was sent.
        with pytest.raises(RetryError):
            await waits
        await cancelled.lead_again()
        with pytest.raises(UnknownOutcome):
            await following.outcome()
        await cancelled.commit()
    await other.lead_again()
    stored = [found async for found in other.store.batches(0)]
    assert stored == [first, second][: len(stored)]
    await other.commit()
    await cancelled.commit()


async def test_term_is_not_continued_on_a_connection_that_another_chain_has_opened(
    pair: Pair,
) -> None:
    """It may lead to a promoted standby that lacks what was acknowledged."""
    one, two = pair
    stored = await two.commit()
    two.store.session.abandon()
    await one.lead_again()
    assert two.store.line.is_open
    for call in (
        two.commit,
        lambda: two.store.move_intake([]),
        lambda: two.store.skip_published(0, stored.last_id),
        lambda: two.store.has_committed(stored),
    ):
        with pytest.raises(RetryError, match="given up"):
            await call()
    await one.commit()
    assert one.term.epoch == 2
    await two.lead_again()
    assert (two.term.epoch, two.term.last_id) == (2, stored.last_id)
    await asyncio.gather(one.commit(), two.commit())
    assert two.store.session is one.store.session


async def test_late_outcome_leaves_the_connection_that_was_opened_since(pair: Pair) -> None:
    one, two = pair
    async with AsyncExitStack() as holding:
        await one.hold(holding)
        pending = await one.store.begin(one.batch(100), published_id=0)
        one.store.session.abandon()
        await two.lead_again()
        with pytest.raises(UnknownOutcome):
            await pending.outcome()
        await two.commit()
        assert two.term.epoch == 2


async def test_chains_that_take_over_again_at_once_open_one_connection(pair: Pair) -> None:
    one, two = pair
    await one.chain.fetch(_END)
    for led in pair:
        with pytest.raises((RetryError, UnknownOutcome)):
            await led.commit()
    await asyncio.gather(one.lead_again(), two.lead_again())
    assert one.store.session is two.store.session
    assert await connections(one.chain) == 1
    await asyncio.gather(one.commit(), two.commit())


async def test_chain_that_closes_in_mid_commit_costs_the_others_nothing(pair: Pair) -> None:
    one, two = pair
    first, second = one.batch(100), one.batch(100)
    pending, _ = await one.begin(first, second)
    await pending.outcome()
    await one.store.close()
    await two.commit()
    assert two.term.epoch == 1
    later = await take_over(one.chain, two.store.line)
    assert later.term.last_id == second.last_id


async def test_chain_that_is_handed_over_leaves_the_connection_to_the_others(pair: Pair) -> None:
    handed, kept = pair
    session = kept.store.session
    lease = PostgresLease(handed.chain.config)
    await handed.commit()
    await lease.release(handed.term, 0)
    await lease.close()
    next_one = await take_over(handed.chain, owner="you")
    await kept.commit()
    assert (kept.term.epoch, kept.store.session) == (1, session)
    await next_one.commit()
    await next_one.store.close()


async def test_take_over_that_comes_too_late_leaves_the_connection_to_the_others(
    pair: Pair,
) -> None:
    late, kept = pair
    sight = await late.store.look()
    await late.lead_again()
    with pytest.raises(Fenced):
        await late.store.take_over("me", sight)
    await kept.commit()
    assert kept.term.epoch == 1
