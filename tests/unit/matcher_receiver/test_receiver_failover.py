"""A fill while the primary is lost, and a standby promoted that has all rows or lacks the last."""

import asyncio
from functools import partial
from random import Random

import pytest

from chain_kernel.errors import NotYetReadable, RetryError
from chain_kernel.seal import Batch
from gapfill import PreferredSources
from matcher_receiver import State
from tests.builders.chains import ids_of
from tests.virtual import virtual

from .memory import MemorySource
from .rig import Rig, take


def away() -> None:
    raise RetryError("the server is away")


@virtual
async def test_standby_promoted_while_a_fill_is_open_fills_the_gap() -> None:
    rig = Rig([4])
    standby, primary = MemorySource(rig.chain), MemorySource(rig.chain)
    standby.is_primary = False

    def promote() -> None:
        standby.before_read = lambda: None
        standby.is_primary = True
        primary.before_read = away

    sources = PreferredSources([standby, primary], random=Random(3))
    async with rig.live(sources) as receiver:
        rig.chain.add(12)
        rig.commit_and_publish(3)
        standby.before_read = promote  # it is read for the fill alone
        runs = await asyncio.wait_for(take(receiver, rig.chain.mark().id), 60.0)
        assert ids_of(runs) == rig.chain.ids[4:]


def lose(rig: Rig, lost: Batch, new_rows: int) -> None:
    """A failover loses a batch; the next leader's ids begin far above."""
    rig.source.before_page = lambda: None
    rig.chain.batches.remove(lost)
    rig.chain.take_over()
    if new_rows:
        rig.chain.add(new_rows, skip=10**6)
    away()


@pytest.mark.parametrize("is_primary", [True, False], ids=["primary", "standby"])
@virtual
async def test_fill_whose_end_was_lost_goes_on_to_the_new_head(*, is_primary: bool) -> None:
    rig = Rig([4])
    rig.source.is_primary = is_primary
    async with rig.live() as receiver:
        lost = rig.chain.add(3)  # no frame: a poll finds it
        rig.source.before_page = partial(lose, rig, lost, 4)
        runs = await asyncio.wait_for(take(receiver, 10**6), 60.0)
        assert ids_of(runs) == rig.chain.ids[4:]
        assert [gap.outcome for gap in receiver.gaps] == ["filled"]


@pytest.mark.parametrize("rows", [0, 2])
@virtual
async def test_fill_whose_last_rows_were_lost_ends_and_new_rows_follow(rows: int) -> None:
    rig = Rig([4])
    async with rig.live() as receiver:
        if rows:
            rig.chain.add(rows)
        lost = rig.chain.add(3)
        rig.source.page_rows = rows or 5
        if rows:
            await anext(receiver)
        rig.source.before_page = partial(lose, rig, lost, 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(receiver), 60.0)
        stats = receiver.stats()
        assert (stats.state, stats.open_gap, stats.lag_ids) == (State.LIVE, None, 0)
        assert [gap.outcome for gap in receiver.gaps] == ["filled" if rows else "missing"]
        rig.chain.add(4, skip=10**6)
        await asyncio.wait_for(take(receiver, 10**6), 60.0)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("new_rows", [0, 4], ids=["silent", "new orders"])
@virtual
async def test_receiver_until_a_head_that_is_lost_ends_at_the_one_that_is_left(
    rows: int, new_rows: int
) -> None:
    rig = Rig([4])
    if rows:
        rig.chain.add(rows)
    rig.source.page_rows = 4 + rows
    lost = rig.chain.add(3)
    async with rig.receiver(until="head") as receiver:
        await take(receiver, rig.chain.ids[3 + rows])
        rig.source.before_page = partial(lose, rig, lost, new_rows)
        async with asyncio.timeout(60.0):
            assert [run async for run in receiver] == []
        assert receiver.head_delivered == rig.chain.ids[3 + rows]


@virtual
async def test_standby_that_lost_our_place_as_well_is_waited_for_until_the_deadline() -> None:
    rig = Rig([4, 5])
    rig.source.is_primary = False
    async with rig.live(standby_wait_seconds=3.0) as receiver:
        lost = rig.chain.add(3)

        def lose_ours_too() -> None:
            rig.chain.batches.pop(1)
            lose(rig, lost, 4)

        rig.source.before_page = lose_ours_too
        with pytest.raises(NotYetReadable):
            await asyncio.wait_for(anext(receiver), 600.0)
        assert [gap.outcome for gap in receiver.gaps] == ["not yet readable"]
