from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.consumer.in_hand import ConsumeProgress, PartitionProgress

PLACE = ("trades", 0)


def test_smallest_unfinished_with_a_gap_in_what_is_finished_stays_before_the_gap() -> None:
    held = PartitionProgress(10)
    assert [held.receive(offset) for offset in (10, 11, 12, 13)] == [True] * 4
    held.finish(11)
    held.finish(13)
    assert held.smallest_unfinished == 10
    held.finish(10)
    assert held.smallest_unfinished == 12
    held.finish(12)
    assert held.smallest_unfinished == 14


def test_smallest_unfinished_where_compaction_left_offsets_out_passes_them() -> None:
    held = PartitionProgress(0)
    for offset in (5, 9, 40):
        assert held.receive(offset)
    assert held.smallest_unfinished == 5
    held.finish(9)
    held.finish(5)
    assert held.smallest_unfinished == 40
    held.finish(40)
    assert held.smallest_unfinished == 41
    held.pass_to(50)
    assert held.smallest_unfinished == 50
    assert not held.receive(45)


def test_an_offset_below_those_received_is_not_new() -> None:
    held = PartitionProgress(7)
    assert not held.receive(6)
    assert held.receive(7)
    assert not held.receive(7)
    assert held.unfinished == 1


def test_finish_of_a_partition_that_came_back_counts_only_what_was_received_again() -> None:
    progress = ConsumeProgress()
    progress.assign(PLACE, 3)
    before = progress.of(PLACE)
    assert before is not None
    before.receive(3)
    before.receive(4)
    progress.revoke([PLACE])
    assert progress.of(PLACE) is None
    progress.assign(PLACE, 3)
    again = progress.of(PLACE)
    assert again is not None
    again.finish(4)  # of an earlier time; not received again yet
    assert progress.smallest_unfinished() == {PLACE: 3}
    again.receive(3)
    again.receive(4)
    again.finish(3)
    assert progress.smallest_unfinished() == {PLACE: 4}


def test_to_commit_names_only_what_has_moved() -> None:
    progress = ConsumeProgress()
    progress.assign(PLACE, 0)
    progress.assign(("trades", 1), 5)
    held = progress.of(PLACE)
    assert held is not None
    assert progress.to_commit() == {}
    held.receive(0)
    assert progress.to_commit() == {}
    held.finish(0)
    assert progress.to_commit() == {PLACE: 1}
    progress.committed({PLACE: 1, ("gone", 0): 9})
    assert progress.to_commit() == {}
    assert progress.smallest_unfinished() == {PLACE: 1, ("trades", 1): 5}


@given(st.data())
def test_smallest_unfinished_is_what_a_plain_count_says(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 60), max_size=30)))
    held = PartitionProgress(0)
    received: list[int] = []
    finished: set[int] = set()
    waiting = list(offsets)
    lowest = 0
    while waiting or len(finished) < len(received):
        open_ones = [offset for offset in received if offset not in finished]
        if waiting and (not open_ones or data.draw(st.booleans())):
            offset = waiting.pop(0)
            assert held.receive(offset)
            received.append(offset)
        else:
            offset = data.draw(st.sampled_from(open_ones))
            held.finish(offset)
            held.finish(offset)  # a second time changes nothing
            finished.add(offset)
        open_ones = [offset for offset in received if offset not in finished]
        expected = min(open_ones) if open_ones else (received[-1] + 1 if received else 0)
        assert held.smallest_unfinished == expected
        assert held.smallest_unfinished >= lowest
        assert held.unfinished == len(open_ones)
        lowest = held.smallest_unfinished


@given(st.lists(st.integers(0, 50)), st.sets(st.integers(0, 50)))
def test_what_lies_below_the_smallest_unfinished_is_finished(
    received: list[int], finished: set[int]
) -> None:
    """The promise of mode 11: a crash repeats, it never skips."""
    held = PartitionProgress(0)
    new = [offset for offset in received if held.receive(offset)]
    for offset in finished:
        held.finish(offset)
    assert all(offset in finished for offset in new if offset < held.smallest_unfinished)


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_finish_in_the_reverse_order_ends_behind_the_last(count: int) -> None:
    held = PartitionProgress(0)
    for offset in range(count):
        held.receive(offset)
    for offset in reversed(range(count)):
        assert held.smallest_unfinished == 0
        held.finish(offset)
    assert held.smallest_unfinished == count
