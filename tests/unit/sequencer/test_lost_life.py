"""Two lives of one chain from the same head: a primary was lost, a copy of it goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chain_kernel.clock import SystemClock
from chain_kernel.errors import RetryError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import TERM_SPREAD_IDS
from chain_kernel.testing.memory_log import MemoryFrameSink, MemoryLog
from chain_kernel.testing.memory_store import (
    MemoryChainStore,
    MemoryDatabase,
    MemoryKeyStore,
    MemoryLease,
)
from sequencer import Sequencer, SequencerConfig, SequencerTuning
from sequencer.core import (
    IDS_PER_SECOND,
    SEEN_AHEAD_MAX,
    TIME_ID_BITS,
    TIME_PARTITION_IDS_MIN,
    IdStrategy,
    SequencerCore,
)
from sequencer.publisher import heartbeat_frame
from tests.builders.orders import make_orders
from tests.tuned import tuned

from .builders import WALL_NS, make_term

if TYPE_CHECKING:
    from chain_kernel.model import Term

SKIP = SequencerTuning().takeover_skip_ids
HEAD = 5_000
HEAD_US = WALL_NS // 1_000
LOST_ORDERS = 2_000
SECOND_NS = 10**9

spreads = st.integers(0, TERM_SPREAD_IDS - 1)


def life(spread: int, *, epoch: int = 2, **fields: Any) -> Term:
    given = {"last_id": HEAD, "committed_at_us": HEAD_US, "partition_ids": TIME_PARTITION_IDS_MIN}
    return make_term(epoch=epoch, spread=spread, **(given | fields))


def ids_of(
    term: Term, wall_ns: int, strategy: IdStrategy = "sequential", skip_ids: int = SKIP
) -> range:
    """The ids of `LOST_ORDERS` orders, the first of the term."""
    core = SequencerCore(term, takeover_skip_ids=skip_ids, id_strategy=strategy)
    batch = core.assemble(make_orders(LOST_ORDERS), wall_ns)
    return range(batch.first_id, batch.last_id + 1)


@given(
    spread=spreads, other=spreads, elapsed_ns=st.integers(0, 10**17),
    later_ns=st.integers(2 * SECOND_NS, 10**17),
)  # fmt: skip
def test_life_that_begins_later_begins_above_all_that_the_lost_one_gave(
    spread: int, other: int, elapsed_ns: int, later_ns: int
) -> None:
    lost = ids_of(life(spread), WALL_NS + elapsed_ns)
    # However many orders per second it went on to take, below a thousand times of what is possible.
    # Times are stored in microseconds, so of those one may be missing.
    given_since = ((later_ns - SECOND_NS) // 1_000 - 1) * IDS_PER_SECOND // 10**6
    again = ids_of(life(other), WALL_NS + elapsed_ns + later_ns)
    assert again.start >= lost.start + given_since - 1


@given(spread=spreads, other=spreads, step_ns=st.integers(-(10**15), 0))
def test_lives_whose_clocks_show_nothing_are_parted_by_their_spread(
    spread: int, other: int, step_ns: int
) -> None:
    assume(abs(spread - other) >= LOST_ORDERS)
    lost, again = (ids_of(life(each), WALL_NS + step_ns) for each in (spread, other))
    assert set(lost).isdisjoint(again)


@given(spread=spreads, other=spreads)
def test_lives_of_time_based_ids_in_one_millisecond_are_parted_and_hold_that_millisecond(
    spread: int, other: int
) -> None:
    half = 2 ** (TIME_ID_BITS - 1)
    assume(abs(spread % half - other % half) >= LOST_ORDERS)
    lost, again = (ids_of(life(each), WALL_NS + SECOND_NS, "time") for each in (spread, other))
    assert set(lost).isdisjoint(again)
    for ids in (lost, again):
        assert ids[0] >> TIME_ID_BITS == ids[-1] >> TIME_ID_BITS == WALL_NS // 10**6 + 1_000


def test_first_leader_of_all_begins_at_one_and_the_next_one_does_not() -> None:
    empty = {"last_id": 0, "committed_at_us": HEAD_US}
    assert ids_of(life(77, epoch=1, **empty), WALL_NS).start == 1
    # There may have been rows, which the copy never got.
    assert ids_of(life(77, epoch=2, **empty), WALL_NS).start == 1 + SKIP + 77


def test_ids_go_on_by_one_behind_the_first_batch_of_a_term() -> None:
    core = SequencerCore(life(77), takeover_skip_ids=SKIP)
    first = core.assemble(make_orders(2), WALL_NS + SECOND_NS)
    assert first.first_id == HEAD + 1 + SKIP + 77 + IDS_PER_SECOND
    assert core.assemble(make_orders(1), WALL_NS + 9 * SECOND_NS).first_id == first.last_id + 1


@pytest.mark.parametrize("strategy", ["sequential", "time"])
@pytest.mark.parametrize("ahead", [LOST_ORDERS, SEEN_AHEAD_MAX - 10**6])
def test_frames_above_the_head_are_begun_behind(strategy: IdStrategy, ahead: int) -> None:
    planned = ids_of(life(77), WALL_NS, strategy).start
    seen_id = planned + ahead
    assert ids_of(life(77, seen_id=seen_id), WALL_NS, strategy).start > seen_id + SKIP


@pytest.mark.parametrize("strategy", ["sequential", "time"])
@pytest.mark.parametrize("seen_id", [HEAD, HEAD + 1, ID_MAX, 2**62])
def test_frames_that_show_ids_out_of_reach_move_nothing(strategy: IdStrategy, seen_id: int) -> None:
    planned = ids_of(life(77), WALL_NS, strategy)
    assert ids_of(life(77, seen_id=seen_id), WALL_NS, strategy) == planned


def test_frames_above_an_empty_chain_are_begun_behind() -> None:
    """A copy from before the first order: its topic knows better."""
    term = life(77, epoch=1, last_id=0, seen_id=2_000)
    assert ids_of(term, WALL_NS).start == 2_000 + 1 + SKIP + 77


def test_without_a_skip_ids_go_on_but_behind_the_frames() -> None:
    assert ids_of(life(77), WALL_NS + SECOND_NS, skip_ids=0).start == HEAD + 1
    seen = life(77, seen_id=HEAD + 10)
    assert ids_of(seen, WALL_NS + SECOND_NS, skip_ids=0).start == HEAD + 11


@given(
    walls=st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=20), spread=spreads
)  # fmt: skip
def test_take_overs_with_any_clocks_leave_most_ids_for_orders(
    walls: list[int], spread: int
) -> None:
    """A clock that jumps to the end of time, and back: committed_at does not follow it back."""
    last_id, committed_at_us = HEAD, HEAD_US
    for number, wall_ns in enumerate(walls):
        term = life(spread, epoch=number + 2, last_id=last_id, committed_at_us=committed_at_us)
        batch = SequencerCore(term, takeover_skip_ids=SKIP).assemble(make_orders(1), wall_ns)
        assert batch.first_id > last_id
        last_id, committed_at_us = batch.last_id, batch.committed_at_us
    assert last_id < ID_MAX // 2 + len(walls) * (TERM_SPREAD_IDS + SKIP + 1)


# ------------------------------------------------------------------------ a look at the topic's end


class World:
    """A chain in memory with rows, and a topic that may hold more than it."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.chain = self.database.create(1)
        self.log = MemoryLog()
        self.sink = MemoryFrameSink(self.log)

    def sequencer(self, **settings: Any) -> Sequencer:
        config = SequencerConfig(chain_id=1, database="postgresql://memory", kafka="memory:1")
        return Sequencer(
            tuned(config, **{"recover_seconds": 5, **settings}),
            store=MemoryChainStore(self.database, 1),
            keys=MemoryKeyStore(self.database, 1),
            lease=MemoryLease(self.database, 1),
            sink=self.sink,
            clock=SystemClock(),
        )


async def test_take_over_looks_at_the_topic_and_says_what_it_saw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    lost = make_term(epoch=9)
    ahead = heartbeat_frame(lost, last_id=10**9, last_seal=lost.last_seal)
    other = heartbeat_frame(life(0), last_id=10**10, last_seal=lost.last_seal)
    other = other[:8] + (2).to_bytes(4, "big") + other[12:]  # of another chain
    world.log.append([ahead, b"no frame", other])
    with caplog.at_level(logging.WARNING):
        async with world.sequencer() as sequencer:
            ack = await sequencer.submit("a", b"")
    assert ack.id > 10**9
    assert ack.id < 10**10
    assert "the topic holds frames up to 1000000000, the database rows up to 0" in caplog.text


async def test_take_over_again_looks_at_the_topic_too() -> None:
    world = World()
    async with world.sequencer() as sequencer:
        first = await sequencer.submit("a", b"")
        lost = make_term(epoch=9)
        world.log.append([heartbeat_frame(lost, last_id=10**10, last_seal=lost.last_seal)])
        await sequencer._leadership.renew_term()
        term = sequencer._leadership.term
    assert first.id == 1
    assert term is not None
    assert term.seen_id == 10**10


async def test_take_over_without_a_broker_goes_on_without_a_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.log.is_away = True
    async with world.sequencer(kafka_at_start="optional", stop_seconds=0.1) as sequencer:
        assert (await sequencer.submit("a", b"")).id == 1
    assert "the topic's last frames were not looked at: the broker is away" in caplog.text


async def test_take_over_with_a_broker_that_hangs_waits_for_a_part_of_the_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    is_given_up = asyncio.Event()

    async def hang(topic: str, partition: int, at_most: int) -> list[bytes | None]:
        try:
            await asyncio.Event().wait()
        finally:
            is_given_up.set()
        raise RetryError("never")

    monkeypatch.setattr(world.sink, "last_records", hang)
    async with world.sequencer(lease_seconds=0.5, commit_seconds=0.4) as sequencer:
        assert (await sequencer.submit("a", b"")).id == 1
        await is_given_up.wait()
    assert "the topic's last frames were not looked at: no answer" in caplog.text
