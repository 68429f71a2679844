"""Standbys first, then the primary; and the primary alone judges."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import ConnectError, RetryError, RowsMissing, SettingError
from gapfill import PreferenceConfig, PreferredSources
from tests.builders.chains import Chain, ids_of, make_chain
from tests.unit.matcher_receiver.memory import MemorySource
from tests.unit.matcher_receiver.virtual_time import run_virtual, virtual_clock

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from chain_kernel.model import Run


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


def away() -> None:
    raise ConnectError("database", "gone", "a server")


def test_fill_from_a_standby_that_is_there_leaves_the_primary_alone() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]))
        assert ids_of(await servers.fill()) == servers.chain.ids
        assert servers.primary.reads == 0

    run_virtual(main())


def test_fill_from_a_standby_that_lags_waits_for_it_while_that_is_short() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]), standby_seconds=2.0)
        servers.standby.lag_batches = 1
        virtual_clock().call_later(1.0, lambda: setattr(servers.standby, "lag_batches", 0))
        assert ids_of(await servers.fill()) == servers.chain.ids
        assert servers.primary.reads == 0

    run_virtual(main())


def test_fill_from_a_standby_that_hangs_goes_on_at_the_primary_without_a_repeat() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]), standby_seconds=2.0)
        servers.standby.lag_batches = 1
        began = virtual_clock().time()
        assert ids_of(await servers.fill()) == servers.chain.ids
        assert 1.0 < virtual_clock().time() - began <= 2.5
        assert servers.primary.reads > 0
        assert servers.standby.reads < 40

    run_virtual(main())


def test_standby_that_hangs_is_waited_for_once_in_a_while_and_asked_each_time() -> None:
    async def main() -> None:
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

    run_virtual(main())


def test_rows_that_are_to_judge_are_the_primarys_alone() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]))
        runs = servers.both.runs(servers.chain.mark(0), servers.chain.mark().id, from_primary=True)
        async with aclosing(runs) as found:
            assert ids_of([run async for run in found]) == servers.chain.ids
        assert servers.standby.reads == 0

    run_virtual(main())


def test_fill_with_the_standby_away_is_the_primarys_and_the_standby_is_left_alone() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12]), avoid_seconds=5.0)
        servers.standby.before_read = away
        assert ids_of(await servers.fill()) == servers.chain.ids
        reads = servers.standby.reads
        assert ids_of(await servers.fill()) == servers.chain.ids
        assert servers.standby.reads == reads
        await asyncio.sleep(6.0)
        servers.standby.before_read = lambda: None
        await servers.fill()
        assert servers.standby.reads > reads

    run_virtual(main())


def test_standing_is_the_primarys_however_far_the_standby_is() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]))
        servers.standby.lag_batches = 2
        standing = await servers.both.standing(servers.chain.mark().id)
        assert standing.is_primary
        assert standing.mark == servers.chain.mark()
        assert servers.standby.reads == 0

    run_virtual(main())


def test_standing_with_the_primary_away_is_a_standbys_and_says_so() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]))
        servers.primary.before_read = away
        for _ in range(2):
            assert not (await servers.both.standing(0)).is_primary
        assert servers.primary.reads == 1  # not asked again for a while
        servers.standby.before_read = away
        with pytest.raises((RetryError, ConnectError)):
            await servers.both.standing(0)

    run_virtual(main())


def test_standby_that_was_promoted_judges_from_then_on() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]))
        servers.primary.before_read = away
        servers.standby.is_primary = True
        assert (await servers.both.standing(0)).is_primary
        assert ids_of(await servers.fill()) == servers.chain.ids

    run_virtual(main())


def test_rows_of_a_second_primary_are_never_taken_while_the_first_one_judges() -> None:
    async def main() -> None:
        chain = make_chain([6])
        servers = Servers(chain)
        stale = Chain(chain.chain_id, chain.database_id, seed=9)
        stale.batches = list(chain.batches)
        stale.add(5)
        chain.add(5, skip=3)
        servers.standby.chain, servers.standby.is_primary = stale, True
        assert ids_of(await servers.fill(chain.ids[2])) == chain.ids[3:]

    run_virtual(main())


def test_missing_rows_are_the_primarys_word_alone() -> None:
    async def main() -> None:
        servers = Servers(make_chain([6, 6]))

        def missing() -> None:
            raise RowsMissing(servers.chain.chain_id, 1, 2)

        servers.standby.before_read = missing
        assert ids_of(await servers.fill()) == servers.chain.ids
        servers.primary.before_read = missing
        with pytest.raises(RowsMissing):
            await servers.fill()

    run_virtual(main())


def test_sources_without_a_server_are_refused() -> None:
    with pytest.raises(SettingError, match="the primary"):
        PreferredSources([])


def test_close_closes_every_server() -> None:
    async def main() -> None:
        servers = Servers(make_chain([6]))
        async with servers.both:
            pass
        assert servers.standby.is_closed
        assert servers.primary.is_closed

    closing: Coroutine[Any, Any, None] = main()
    run_virtual(closing)


def test_several_standbys_are_asked_in_the_order_given() -> None:
    async def main() -> None:
        chain = make_chain([12, 9])
        servers = [MemorySource(chain) for _ in range(3)]
        for standby in servers[:2]:
            standby.is_primary = False
        both = PreferredSources(servers, PreferenceConfig(standby_seconds=0.1), random=Random(3))

        async def fill() -> list[int]:
            runs = both.runs(chain.mark(0), chain.mark().id)
            async with aclosing(runs) as found:
                return ids_of([run async for run in found])

        assert await fill() == chain.ids
        assert [server.reads > 0 for server in servers] == [True, False, False]
        servers[0].before_read = away
        assert await fill() == chain.ids
        assert [server.reads > 0 for server in servers] == [True, True, False]
        servers[1].lag_batches = 1
        assert await fill() == chain.ids
        assert servers[2].reads > 0

    run_virtual(main())


def test_server_that_does_not_answer_is_reported_and_asked_again_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]), avoid_seconds=5.0)
        servers.standby.before_read = away
        for _ in range(3):
            await servers.fill()
        assert servers.standby.reads == 1
        assert caplog.text.count("asked last for 5 s: database was 'gone'") == 1
        servers.standby.before_read = lambda: None
        await asyncio.sleep(5.1)
        reads = servers.primary.reads
        await servers.fill()
        assert servers.standby.reads > 1
        assert servers.primary.reads == reads

    run_virtual(main())


def test_standby_that_lags_is_asked_with_pauses_that_grow() -> None:
    async def main() -> None:
        servers = Servers(make_chain([12, 9]), standby_seconds=10.0, pause_seconds_max=0.5)
        servers.standby.lag_batches = 1
        times: list[float] = []
        servers.standby.before_page = lambda: times.append(virtual_clock().time())
        await servers.fill()
        pauses = [later - before for before, later in itertools.pairwise(times)]
        assert pauses[0] < 0.1
        assert all(pause <= 0.51 for pause in pauses)
        assert pauses[-1] >= 0.25
        assert len(times) < 60, "a standby that hangs is not to be hammered"

    run_virtual(main())
