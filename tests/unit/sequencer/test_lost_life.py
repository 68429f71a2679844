"""Two lives of one chain from the same head: a primary was lost, a copy of it goes on."""

import asyncio
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chain_kernel.errors import RetryError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import TERM_SPREAD_IDS, Term
from sequencer import SequencerTuning
from sequencer.core import (
    IDS_PER_SECOND,
    SEEN_AHEAD_MAX,
    TIME_ID_BITS,
    TIME_PARTITION_IDS_MIN,
    IdStrategy,
    SequencerCore,
)
from tests.builders.orders import make_orders

from .builders import WALL_NS, World, make_term

SKIP = SequencerTuning().takeover_skip_ids
HEAD = 5_000
HEAD_US = WALL_NS // 1_000
LOST_ORDERS = 200
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
def test_later_life_begins_above(spread: int, other: int, elapsed_ns: int, later_ns: int) -> None:
    lost = ids_of(life(spread), WALL_NS + elapsed_ns)
    # However many orders per second it went on to take, below a thousand times of what is possible.
    # Times are stored in microseconds, so of those one may be missing.
    given_since = ((later_ns - SECOND_NS) // 1_000 - 1) * IDS_PER_SECOND // 10**6
    again = ids_of(life(other), WALL_NS + elapsed_ns + later_ns)
    assert again.start >= lost.start + given_since - 1


@given(spread=spreads, other=spreads, step_ns=st.integers(-(10**15), 0))
def test_lives_are_parted_by_their_spread(spread: int, other: int, step_ns: int) -> None:
    assume(abs(spread - other) >= LOST_ORDERS)
    lost, again = (ids_of(life(each), WALL_NS + step_ns) for each in (spread, other))
    assert set(lost).isdisjoint(again)


@given(spread=spreads, other=spreads)
def test_lives_of_time_based_ids_are_parted(spread: int, other: int) -> None:
    half = 2 ** (TIME_ID_BITS - 1)
    assume(abs(spread % half - other % half) >= LOST_ORDERS)
    lost, again = (ids_of(life(each), WALL_NS + SECOND_NS, "time") for each in (spread, other))
    assert set(lost).isdisjoint(again)
    for ids in (lost, again):
        assert ids[0] >> TIME_ID_BITS == ids[-1] >> TIME_ID_BITS == WALL_NS // 10**6 + 1_000


def test_life_that_skips_no_ids_goes_on_at_the_next_one() -> None:
    assert ids_of(life(77), WALL_NS + SECOND_NS, skip_ids=0).start == HEAD + 1


def test_life_near_the_end_of_all_ids_skips_only_what_was_in_flight() -> None:
    last_id = ID_MAX - 4 * TIME_PARTITION_IDS_MIN
    assert ids_of(life(77, last_id=last_id), WALL_NS).start == last_id + 1 + SKIP


@pytest.mark.parametrize("strategy", ["sequential", "time"])
@pytest.mark.parametrize("ahead", [LOST_ORDERS, SEEN_AHEAD_MAX - 10**6])
def test_frames_above_the_head_are_begun_behind(strategy: IdStrategy, ahead: int) -> None:
    planned = ids_of(life(77), WALL_NS, strategy).start
    seen_id = planned + ahead
    assert ids_of(life(77, seen_id=seen_id), WALL_NS, strategy).start == seen_id + 1 + SKIP + 77


@pytest.mark.parametrize("strategy", ["sequential", "time"])
@pytest.mark.parametrize("seen_id", [HEAD, HEAD + 1, ID_MAX, 2**62])
def test_frames_of_ids_out_of_reach_move_nothing(strategy: IdStrategy, seen_id: int) -> None:
    planned = ids_of(life(77), WALL_NS, strategy)
    assert ids_of(life(77, seen_id=seen_id), WALL_NS, strategy) == planned


@given(
    walls=st.lists(st.integers(0, 2**63 - 1), min_size=2, max_size=20), spread=spreads
)  # fmt: skip
def test_any_clocks_leave_most_ids_for_orders(walls: list[int], spread: int) -> None:
    """A clock that jumps to the end of time, and back: committed_at does not follow it back."""
    last_id, committed_at_us = HEAD, HEAD_US
    for number, wall_ns in enumerate(walls):
        term = life(spread, epoch=number + 2, last_id=last_id, committed_at_us=committed_at_us)
        batch = SequencerCore(term, takeover_skip_ids=SKIP).assemble(make_orders(1), wall_ns)
        assert batch.first_id > last_id
        last_id, committed_at_us = batch.last_id, batch.committed_at_us
    assert last_id < ID_MAX // 2 + len(walls) * (TERM_SPREAD_IDS + SKIP + 1)


async def test_take_over_with_a_broker_that_hangs_waits_for_a_part_of_the_lease(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
