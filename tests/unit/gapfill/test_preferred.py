"""Standbys first, then the primary; and the primary alone judges."""

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from chain_kernel.errors import NotYetReadable, RetryError, RowsMissing, SettingError
from chain_kernel.model import Run
from chain_kernel.testing.virtual_loop import virtual_clock
from gapfill import PreferenceConfig, PreferredSources
from tests.builders.chains import Chain, ids_of, make_chain
from tests.unit.matcher_receiver.memory import MemorySource
from tests.virtual import virtual


class Servers:
    """A standby and the primary of one chain, and both as one source."""

    def __init__(self, chain: Chain, **settings: float) -> None:
        self.chain = chain
        self.standby, self.primary = MemorySource(chain), MemorySource(chain)
        self.standby.is_primary = False
        self.both = PreferredSources(
            [self.standby, self.primary], PreferenceConfig(**settings), random=Random(3)
        )

    async def fill(self, after_id: int = 0) -> list[Run]:
        runs = self.both.runs(self.chain.mark(after_id), self.chain.mark().id)
        async with aclosing(runs) as found:
            return [run async for run in found]


@virtual
async def test_fill_from_a_standby_that_is_there_leaves_the_primary_alone() -> None:
    servers = Servers(make_chain([12, 9]))
    assert ids_of(await servers.fill()) == servers.chain.ids
    assert servers.primary.reads == 0


@virtual
async def test_fill_from_a_standby_that_hangs_goes_on_at_the_primary_without_a_repeat() -> None:
    servers = Servers(make_chain([12, 9]), standby_seconds=2.0)
    servers.standby.lag_batches = 1
    began = virtual_clock().time()
    assert ids_of(await servers.fill()) == servers.chain.ids
    assert 1.0 < virtual_clock().time() - began <= 2.5
    assert servers.primary.reads > 0
    assert servers.standby.reads < 40


@virtual
async def test_standby_that_hangs_is_waited_for_once_in_a_while_and_asked_each_time() -> None:
    servers = Servers(make_chain([12, 9]), standby_seconds=2.0, avoid_seconds=5.0)
    servers.standby.lag_batches = 1
    after_id = servers.chain.batches[0].last_id

    async def seconds_of_fill() -> float:
        began = virtual_clock().time()
        assert ids_of(await servers.fill(after_id)) == servers.chain.ids[12:]
        return virtual_clock().time() - began

    assert await seconds_of_fill() > 1.0
    for _ in range(10):
        asked = servers.standby.reads
        assert await seconds_of_fill() < 0.1
        assert servers.standby.reads > asked
        await asyncio.sleep(0.4)
    await asyncio.sleep(2.0)
    assert await seconds_of_fill() > 1.0, "it is waited for again"
    servers.standby.lag_batches = 0
    judged = servers.primary.reads
    assert await seconds_of_fill() < 0.1
    assert servers.primary.reads == judged
    servers.standby.lag_batches = 1
    assert await seconds_of_fill() > 1.0, "it gave rows again"


@virtual
async def test_standby_that_is_silent_holds_up_one_fill_in_a_while_ever_more_rarely() -> None:
    servers = Servers(make_chain([12, 9]), standby_seconds=2.0, avoid_seconds=5.0)
    servers.standby.read_seconds = 600.0  # a process that was stopped
    clock, slow = virtual_clock(), 0
    end = clock.time() + 150.0
    while (began := clock.time()) < end:
        assert ids_of(await servers.fill()) == servers.chain.ids
        seconds = clock.time() - began
        assert seconds < 2.1
        slow += seconds > 1.0
        await asyncio.sleep(0.5)
    assert 4 <= slow <= 6
    servers.standby.read_seconds = 0.0
    await asyncio.sleep(45.0)
    judged = servers.primary.reads
    assert ids_of(await servers.fill()) == servers.chain.ids
    assert servers.primary.reads == judged, "it is there again"


@virtual
async def test_standby_that_is_slow_is_waited_for_while_no_other_server_is_there() -> None:
    servers = Servers(make_chain([12, 9]), standby_seconds=2.0, avoid_seconds=3600.0)

    def away() -> None:
        raise RetryError("the primary is away")

    servers.primary.before_read = away
    servers.standby.read_seconds = 3.0
    assert not (await servers.both.standing(0)).is_primary
    assert ids_of(await servers.fill()) == servers.chain.ids


@virtual
async def test_rows_that_are_to_judge_are_the_primarys_alone() -> None:
    servers = Servers(make_chain([12, 9]))
    runs = servers.both.runs(servers.chain.mark(0), servers.chain.mark().id, from_primary=True)
    async with aclosing(runs) as found:
        assert ids_of([run async for run in found]) == servers.chain.ids
    assert servers.standby.reads == 0


@virtual
async def test_standing_is_the_primarys_however_far_the_standby_is() -> None:
    servers = Servers(make_chain([12, 9]))
    servers.standby.lag_batches = 2
    standing = await servers.both.standing(servers.chain.mark().id)
    assert standing.is_primary
    assert standing.mark == servers.chain.mark()
    assert servers.standby.reads == 0


@virtual
async def test_rows_of_a_second_primary_are_never_taken_while_the_first_one_judges() -> None:
    chain = make_chain([6])
    servers = Servers(chain)
    stale = Chain(chain.chain_id, chain.database_id, seed=9)
    stale.batches = list(chain.batches)
    stale.add(5)
    chain.add(5, skip=3)
    servers.standby.chain, servers.standby.is_primary = stale, True
    assert ids_of(await servers.fill(chain.ids[2])) == chain.ids[3:]


@virtual
async def test_fill_from_a_primary_that_became_a_standby_goes_on_at_the_promoted_one() -> None:
    servers = Servers(make_chain([6, 6]))
    servers.standby.is_primary, servers.primary.is_primary = True, False
    servers.primary.lag_batches = 1
    with pytest.raises(NotYetReadable):
        await servers.fill()
    assert ids_of(await servers.fill()) == servers.chain.ids


@virtual
async def test_primary_whose_page_fails_once_judges_on_beside_a_stale_one() -> None:
    chain = make_chain([6])
    servers = Servers(chain)
    stale = Chain(chain.chain_id, chain.database_id, seed=9)
    stale.batches = list(chain.batches)
    chain.add(5, skip=3)
    servers.standby.chain, servers.standby.is_primary = stale, True

    def fail_once() -> None:
        servers.primary.before_page = lambda: None
        raise RetryError("the statement has passed its deadline")

    servers.primary.before_page = fail_once
    with pytest.raises(RetryError):
        await servers.fill()
    assert (await servers.both.standing(chain.ids[-1])).mark == chain.mark()
    assert ids_of(await servers.fill()) == chain.ids


@virtual
async def test_missing_rows_are_the_primarys_word_alone() -> None:
    servers = Servers(make_chain([6, 6]))

    def missing() -> None:
        raise RowsMissing(servers.chain.chain_id, 1, 2)

    servers.standby.before_read = missing
    assert ids_of(await servers.fill()) == servers.chain.ids
    servers.primary.before_read = missing
    with pytest.raises(RowsMissing):
        await servers.fill()


def test_sources_without_a_server_are_refused() -> None:
    with pytest.raises(SettingError, match="the primary"):
        PreferredSources([])


@virtual
async def test_close_closes_every_server() -> None:
    servers = Servers(make_chain([6]))
    async with servers.both:
        pass
    assert servers.standby.is_closed
    assert servers.primary.is_closed
