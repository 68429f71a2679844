from __future__ import annotations

import asyncio
import weakref

import pytest

from chain_kernel.errors import Busy, QueueFull
from sequencer import Order
from sequencer.stats import SequencerCounters
from sequencer.submission import Batcher, Entry
from tests.builders.orders import make_orders
from tests.deadlines import deadline


def entry(rows: int = 1, size: int = 10) -> Entry:
    return Entry(make_orders(rows), size, asyncio.get_running_loop().create_future())


class Orders(list[Order]):
    """A list that can be referred to weakly."""


def batcher(*, rows_max: int = 10, bytes_max: int = 1_000, queue: int = 100) -> Batcher:
    return Batcher(rows_max=rows_max, bytes_max=bytes_max, queue_bytes_max=queue)


async def test_take_returns_what_arrived_in_order_up_to_the_row_limit() -> None:
    queue = batcher()
    entries = [entry(rows=4) for _ in range(4)]
    for one in entries:
        queue.add_nowait(one)
    assert queue.has_full_batch()
    assert queue.take() == entries[:2]
    assert queue.take() == entries[2:]
    assert queue.take() == []
    assert (queue.rows, queue.bytes) == (0, 0)


async def test_full_batch_is_announced_once() -> None:
    queue, calls = batcher(), list[int]()
    queue.when_full = lambda: calls.append(queue.rows)
    for rows in (4, 4, 4, 4):
        queue.add_nowait(entry(rows=rows))
    assert calls == [12]


async def test_batch_taken_as_it_fills_lets_each_entry_in_once() -> None:
    queue, taken = batcher(queue=30, rows_max=9), list[Entry]()
    first, second, third = (entry(rows=9, size=30) for _ in range(3))
    queue.add_nowait(first)
    tasks = [asyncio.create_task(queue.add(one)) for one in (second, third)]
    await asyncio.sleep(0)
    queue.when_full = lambda: taken.extend(queue.take())
    assert queue.take() == [first]
    async with deadline():
        await asyncio.gather(*tasks)
    assert taken == [second]
    assert queue.take() == [third]
    assert (queue.rows, queue.bytes) == (0, 0)


async def test_add_without_room_waits_in_the_order_of_the_calls() -> None:
    queue = batcher(queue=30, rows_max=1)
    first = entry(size=30)
    queue.add_nowait(first)
    waiting = [entry(size=20), entry(size=5)]
    tasks = [asyncio.create_task(queue.add(one)) for one in waiting]
    await asyncio.sleep(0)
    # The small one would fit behind the first, but may not overtake the large one.
    with pytest.raises(QueueFull):
        queue.add_nowait(entry(size=1))
    assert queue.take() == [first]
    await asyncio.gather(*tasks)
    assert [queue.take()[0], queue.take()[0]] == waiting


async def test_add_cancelled_while_waiting_was_never_submitted() -> None:
    queue = batcher(queue=10)
    queue.add_nowait(entry(size=10))
    task = asyncio.create_task(queue.add(entry(size=10)))
    await asyncio.sleep(0)
    task.cancel()
    later = asyncio.create_task(queue.add(kept := entry(size=10)))
    await asyncio.sleep(0)
    queue.take()
    await later
    assert queue.take() == [kept]


async def test_next_batch_with_linger_waits_for_others_until_the_batch_is_full() -> None:
    queue = Batcher(rows_max=3, bytes_max=1_000, queue_bytes_max=1_000, linger_seconds=30)
    queue.add_nowait(entry())
    taking = asyncio.create_task(queue.next_batch())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.add_nowait(entry(rows=2))
    assert len(await taking) == 2


async def test_linger_counts_from_when_the_first_order_was_queued() -> None:
    queue = Batcher(rows_max=3, bytes_max=1_000, queue_bytes_max=1_000, linger_seconds=30)
    queue.add_nowait(first := entry())
    first.queued_at_seconds -= 30  # a commit that took so long was under way
    queue.add_nowait(second := entry())
    async with deadline():
        assert await queue.next_batch() == [first, second]


async def test_entries_whose_time_ends_are_refused_wherever_they_wait() -> None:
    counters = SequencerCounters()
    queue = Batcher(rows_max=9, bytes_max=99, queue_bytes_max=30, counters=counters)
    patient, late, waiting, last = (entry(size=15) for _ in range(4))
    queue.add_nowait(patient)
    # The one that waits is refused first: the other one's end makes room for it.
    late.within, waiting.within = 0.5, 0.01
    queue.add_nowait(late)
    answer = late.done
    assert answer is not None
    async with deadline():
        for refused in (queue.add(waiting), answer):
            with pytest.raises(Busy, match=r"within 0\.[0-9]+ s"):
                await refused
        await queue.add(last)
    assert counters.busy == 2
    assert (queue.rows, queue.bytes) == (2, 30)
    assert queue.take() == [patient, last]


@pytest.mark.parametrize("bounds", [(1, 1, 1), (1, 2, 3), (3, 2, 1), (2, None, 1), (None, 1, 1)])
async def test_each_order_is_refused_at_its_own_end(bounds: tuple[int | None, ...]) -> None:
    queue = batcher(queue=20)
    entries = [entry() for _ in bounds]  # the last one waits for room
    for one, hundredths in zip(entries, bounds, strict=True):
        one.within = hundredths and hundredths / 100
    adding = [asyncio.create_task(queue.add(one)) for one in entries]
    async with deadline():
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        for one, outcome in zip(entries, outcomes, strict=True):
            if one.within is not None and outcome is None and one.done is not None:
                with pytest.raises(Busy):
                    await one.done
    assert queue.take() == [one for one in entries if one.within is None]
    assert (queue.rows, queue.bytes) == (0, 0)


@pytest.mark.parametrize("within", [0.0001, 0.01])
async def test_orders_whose_time_ends_at_once_are_refused_and_the_next_one_is_taken(
    within: float,
) -> None:
    """A timer of uvloop that is due in less than half a millisecond does not know when it is."""
    queue = batcher(queue=30)
    entries = [entry(size=15) for _ in range(3)]
    for one in entries:
        one.within = within
    answers = [one.done for one in entries]
    adding = [asyncio.create_task(queue.add(one)) for one in entries]
    async with deadline():
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        for answer, outcome in zip(answers, outcomes, strict=True):
            if outcome is None:
                assert answer is not None
                with pytest.raises(Busy):
                    await answer
            else:
                assert isinstance(outcome, Busy)
    queue.add_nowait(last := entry())
    assert queue.take() == [last]


class Counted(float):
    """Seconds that count how often they are compared, and so are the ends that they lead to."""

    compared = 0

    def __radd__(self, other: float) -> Counted:
        return Counted(other + float(self))

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) > other


async def test_refusals_look_at_no_order_that_may_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = batcher(rows_max=30_000, bytes_max=100_000, queue=100_000)
    patient = [entry(size=1) for _ in range(20_000)]
    for one in patient:
        one.within = Counted(60)
        queue.add_nowait(one)
    monkeypatch.setattr(Counted, "compared", 0)
    async with deadline():
        for _ in range(50):
            late = entry(size=100)
            late.within, answer = Counted(0.0005), late.done
            await queue.add(late)
            assert answer is not None
            with pytest.raises(Busy):
                await answer
    assert Counted.compared < 20_000  # one pass over the queue
    assert (queue.rows, queue.bytes) == (20_000, 20_000)
    assert queue.take() == patient


async def test_what_was_refused_or_cancelled_is_not_kept_while_others_wait() -> None:
    queue = batcher(queue=2_000)
    queue.add_nowait(first := entry(size=1_999))
    found: list[weakref.ref[object]] = []
    async with deadline():
        for number in range(200):
            late = entry(size=1 if number % 2 else 1_000)  # the second one waits for room
            late.within = 0.0005
            orders = Orders(late.orders)
            late.orders = orders
            found.append(weakref.ref(orders))
            answer = late.done
            assert answer is not None
            if number % 4 == 0:
                late.within = 60
            adding = asyncio.wait_for(queue.add(late), 0 if number % 4 == 0 else None)
            outcome = (await asyncio.gather(adding, return_exceptions=True))[0]
            if outcome is None:
                with pytest.raises(Busy):
                    await answer
            else:
                assert isinstance(outcome, TimeoutError if number % 4 == 0 else Busy)
            del late, orders, adding, outcome
    assert sum(each() is not None for each in found) <= 2
    assert queue.take() == [first]
    assert queue.take() == []


async def test_order_that_was_put_back_is_refused_at_its_end_however_often_it_was_taken() -> None:
    queue = batcher(rows_max=1_000, bytes_max=10_000, queue=10_000)
    entries = [entry() for _ in range(1_000)]
    for one in entries[1:]:
        one.within = 60
    entries[0].within = 0.01
    for one in entries:
        queue.add_nowait(one)
    answer = entries[0].done
    assert answer is not None
    for _ in range(20):
        queue.put_back(queue.take())
    async with deadline():
        with pytest.raises(Busy):
            await answer
    queue.put_back(queue.take())
    assert queue.take() == entries[1:]


async def test_order_after_a_refusal_is_refused_at_its_own_end_too() -> None:
    queue = batcher()
    patient, first, second = (entry() for _ in range(3))
    patient.within, first.within, second.within = 60, 0.01, 0.02
    queue.add_nowait(patient)
    for late in (first, second):
        queue.add_nowait(late)
        answer = late.done
        assert answer is not None
        async with deadline():
            with pytest.raises(Busy):
                await answer
    assert queue.take() == [patient]


async def test_busy_loop_that_is_late_to_refuse_commits_no_late_order() -> None:
    queue = batcher()
    late, patient = entry(), entry()
    late.within = 0.001
    answer = late.done
    assert answer is not None
    queue.add_nowait(late)
    queue.add_nowait(patient)
    ends = asyncio.get_running_loop().time() + 0.001
    while asyncio.get_running_loop().time() < ends:
        pass  # without a turn of the loop
    assert queue.take() == [patient]
    with pytest.raises(Busy):
        await answer


async def test_queue_that_is_empty_after_a_refusal_is_not_closed() -> None:
    queue = Batcher(rows_max=9, bytes_max=99, queue_bytes_max=99, linger_seconds=1)
    late = entry()
    late.within = 0.01
    answer = late.done
    assert answer is not None
    async with deadline():
        batch = asyncio.create_task(queue.next_batch())
        queue.add_nowait(late)
        with pytest.raises(Busy):
            await answer
        queue.add_nowait(next_one := entry(rows=9))
        assert await batch == [next_one]


async def test_entry_that_was_taken_in_time_is_not_refused_later() -> None:
    queue = batcher()
    taken, refused = entry(), entry()
    taken.within, refused.within = 0.01, 0.02
    queue.add_nowait(taken)
    assert queue.take() == [taken]
    queue.add_nowait(refused)
    answer = refused.done
    assert answer is not None
    async with deadline():
        with pytest.raises(Busy):
            await answer
    assert taken.done is not None
    assert not taken.done.done()
