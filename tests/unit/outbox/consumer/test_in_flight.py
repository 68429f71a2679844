"""What is in hand: which messages may be worked on, and how far a partition is read."""

from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain_kernel.clock import time_of
from chain_kernel.start_at import StartAt
from outbox.consumer.in_flight import (
    ConsumeProgress,
    KeyQueues,
    PartitionEnds,
    PartitionProgress,
    begin_offset,
    chosen_offset,
)

PLACE = ("trades", 0)


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


END = StartAt("end")
TIME = StartAt(time=time_of(1_700_000_000_123_999_999))


def test_chosen_offset_is_the_first_the_end_or_that_of_the_millisecond() -> None:
    assert TIME.time_ms == 1_700_000_000_123
    for start, at_time, offset in (
        (StartAt("beginning"), None, 3),
        (END, None, 9),
        (TIME, 5, 5),
        (TIME, None, 9),  # after every record
    ):
        assert chosen_offset(start, PartitionEnds(first=3, end=9, at_time=at_time)) == offset


@pytest.mark.parametrize(
    ("first_start", "committed", "begin"),
    [
        (5, 7, 7), (5, 9, 9), (None, 7, 7),  # a committed offset goes before every start
        (5, None, 5), (9, None, 9), (None, None, 3),  # it has expired, or the partition is new
        (5, 2, 3), (5, 10, 3), (2, None, 3), (10, None, 3),  # the broker does not hold it
    ],
)  # fmt: skip
def test_a_consumer_begins_at_its_offset_else_where_it_began_else_at_the_oldest_record(
    first_start: int | None, committed: int | None, begin: int
) -> None:
    assert begin_offset(first_start, committed, PartitionEnds(first=3, end=9)) == begin


@given(st.integers(0, 100), st.integers(0, 100), *[st.none() | st.integers(0, 250)] * 2)
def test_a_consumer_never_skips_what_is_there(
    first: int, length: int, first_start: int | None, committed: int | None
) -> None:
    ends = PartitionEnds(first=first, end=first + length)
    begin = begin_offset(first_start, committed, ends)
    known = first_start if committed is None else committed
    assert ends.first <= begin <= min(ends.end, max(known or 0, ends.first))


@dataclass(frozen=True)
class Item:
    key: str
    number: int

    @property
    def queue_key(self) -> bytes:
        return self.key.encode()

    @property
    def size(self) -> int:
        return self.number


def items(*keys: str) -> list[Item]:
    return [Item(key, number) for number, key in enumerate(keys)]


def test_put_back_keeps_the_order_between_keys() -> None:
    given_items = items("a", "b", "c", "b")
    queues: KeyQueues[Item] = KeyQueues()
    queues.add(given_items)
    queues.put_back(queues.take(3))
    assert queues.take(9) == given_items


def test_drop_forgets_what_is_not_taken() -> None:
    a0, a1, b2 = items("a", "a", "b")
    queues: KeyQueues[Item] = KeyQueues()
    queues.add([a0, a1, b2])
    assert queues.take(1) == [a0]
    queues.take(0)
    queues.drop(lambda item: item.key == "a")
    assert queues.held == 2
    assert queues.held_bytes == 0 + 2
    queues.release([a0])
    assert queues.take(5) == [b2]
    queues.release([b2])
    assert queues.held == 0


@given(st.lists(st.sampled_from("abc"), max_size=40), st.data())
def test_each_key_goes_in_order_and_by_one_worker_at_a_time(
    keys: list[str], data: st.DataObject
) -> None:
    queues: KeyQueues[Item] = KeyQueues()
    given_items = items(*keys)
    coming = list(given_items)
    working: list[list[Item]] = []
    done: dict[str, list[int]] = defaultdict(list)
    while coming or working or queues.has_ready:
        acts = ["add"] * bool(coming) + ["take"] * queues.has_ready
        acts += ["release", "release", "put back"] * bool(working)
        act = data.draw(st.sampled_from(acts))
        if act == "add":
            queues.add([coming.pop(0)])
        elif act == "take":
            taken = queues.take(data.draw(st.integers(1, 4)))
            busy = {item.key for worker in working for item in worker}
            assert busy.isdisjoint(item.key for item in taken)
            working += [taken] * bool(taken)
        else:
            worker = working.pop(data.draw(st.integers(0, len(working) - 1)))
            if act == "put back":
                at = data.draw(st.integers(0, len(worker) - 1))  # the last ones first
                queues.put_back(worker[at:])
                working += [worker[:at]] * (at > 0)
            else:
                for item in worker:
                    done[item.key].append(item.number)
                queues.release(worker)
        assert queues.held == len(given_items) - len(coming) - sum(map(len, done.values()))
        came = given_items[: len(given_items) - len(coming)]
        gone = sum(sum(numbers) for numbers in done.values())
        assert queues.held_bytes == sum(item.size for item in came) - gone
    for key, numbers in done.items():
        assert numbers == [item.number for item in given_items if item.key == key]
    assert sum(map(len, done.values())) == len(given_items)
