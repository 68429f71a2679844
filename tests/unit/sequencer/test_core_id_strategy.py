"""Ids only rise, whatever the clock does, and no batch straddles a partition."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.errors import SettingError
from chain_kernel.limits import ID_MAX
from chain_kernel.model import TERM_SPREAD_IDS, is_linked
from sequencer.core import (
    DAY_IDS,
    TIME_ID_BITS,
    TIME_PARTITION_IDS_MIN,
    IdStrategy,
    SequencerCore,
    first_id,
)
from tests.builders.orders import make_orders

from .builders import WALL_NS, make_term

WALL_MS = WALL_NS // 1_000_000
# Clocks that stop, step back by years, and lie beyond what an id can hold.
clocks = st.lists(
    st.one_of(st.just(WALL_NS), st.integers(0, 2**63 - 1), st.integers(-(10**18), 10**10)),
    min_size=1,
    max_size=20,
)


def time_core(
    *, last_id: int = 0, partition_ids: int = DAY_IDS, skip_ids: int = 0
) -> SequencerCore:
    term = make_term(last_id=last_id, partition_ids=partition_ids)
    return SequencerCore(term, takeover_skip_ids=skip_ids, id_strategy="time")


def test_time_based_id_holds_the_millisecond_of_its_batch() -> None:
    batch = time_core().assemble(make_orders(3), WALL_NS)
    assert batch.first_id == WALL_MS << 20
    assert [event.id - batch.first_id for event in batch.events] == [0, 1, 2]
    assert batch.last_id >> TIME_ID_BITS == WALL_MS
    assert batch.pid == 0


def test_time_based_ids_behind_a_leader_with_a_clock_ahead_stay_above_its_ids() -> None:
    ahead = time_core().assemble(make_orders(2), WALL_NS + 60 * 10**9)
    core = time_core(last_id=ahead.last_id, skip_ids=1_000)
    assert core.assemble(make_orders(1), WALL_NS).first_id == ahead.last_id + 1_001


@pytest.mark.parametrize("partition_ids", [10_000_000, TIME_PARTITION_IDS_MIN - 1])
def test_time_based_ids_with_small_partitions_are_refused(partition_ids: int) -> None:
    with pytest.raises(SettingError, match="--partition-ids 90596966400000 is a day"):
        time_core(partition_ids=partition_ids)
    make = SequencerCore(make_term(partition_ids=partition_ids), takeover_skip_ids=0)
    assert make.assemble(make_orders(1), WALL_NS).first_id == 1


@given(
    walls=clocks,
    counts=st.lists(st.integers(1, 40), min_size=20, max_size=20),
    strategy=st.sampled_from(["sequential", "time"]),
    last_id=st.integers(0, 2**61),
    skip_ids=st.sampled_from([0, 7, 100_000]),
)
def test_ids_with_any_clock_rise_are_linked_and_keep_to_one_partition_a_batch(
    walls: list[int], counts: list[int], strategy: IdStrategy, last_id: int, skip_ids: int
) -> None:
    term = make_term(last_id=last_id, partition_ids=TIME_PARTITION_IDS_MIN)
    core = SequencerCore(term, takeover_skip_ids=skip_ids, id_strategy=strategy)
    batches = [
        core.assemble(make_orders(count), wall_ns)
        for wall_ns, count in zip(walls, counts, strict=False)
    ]
    assert is_linked(last_id, [event for batch in batches for event in batch.events])
    assert batches[0].first_id > last_id + (skip_ids if last_id else 0)
    for earlier, later in pairwise(batches):
        assert earlier.committed_at_us <= later.committed_at_us
    for batch in batches:
        assert batch.last_id - batch.first_id == batch.row_count - 1
        assert batch.first_id // TIME_PARTITION_IDS_MIN == batch.last_id // TIME_PARTITION_IDS_MIN


@given(
    least_id=st.integers(1, ID_MAX // 2),
    wall_ns=st.integers(0, 2**63),
    row_count=st.integers(1, 1_000),
    strategy=st.sampled_from(["sequential", "time"]),
    spread=st.integers(0, TERM_SPREAD_IDS - 1),
)
def test_first_id_is_never_below_the_least_one_and_leaves_room_for_partitions(
    least_id: int, wall_ns: int, row_count: int, strategy: IdStrategy, spread: int
) -> None:
    first = first_id(
        strategy,
        term=make_term(partition_ids=DAY_IDS, spread=spread),
        least_id=least_id,
        wall_ns=wall_ns,
        row_count=row_count,
    )
    assert first >= least_id
    assert first + row_count <= ID_MAX - 3 * DAY_IDS


@pytest.mark.parametrize(("row_count", "first"), [(3, DAY_IDS - 3), (4, DAY_IDS)])
def test_batch_that_just_fits_into_a_partition_stays_there(row_count: int, first: int) -> None:
    term, least_id = make_term(partition_ids=DAY_IDS), DAY_IDS - 3
    given = {"least_id": least_id, "wall_ns": WALL_NS, "row_count": row_count}
    assert first_id("sequential", term=term, **given) == first


@pytest.mark.parametrize(("days_left", "is_followed"), [(5, True), (3, False)])
def test_clock_near_the_end_of_all_ids_is_not_followed(days_left: int, is_followed: bool) -> None:
    term, wall_ns = make_term(partition_ids=DAY_IDS), (ID_MAX - days_left * DAY_IDS >> 20) * 10**6
    first = first_id("time", term=term, least_id=1, wall_ns=wall_ns, row_count=1)
    assert (first > 1) is is_followed
