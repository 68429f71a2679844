from __future__ import annotations

import asyncio

import pytest

from chain_kernel.errors import QueueFull, StoppedError
from sequencer.submission import Batcher, Entry
from tests.builders.orders import make_orders
from tests.deadlines import deadline


def entry(rows: int = 1, size: int = 10) -> Entry:
    return Entry(make_orders(rows), size, asyncio.get_running_loop().create_future())


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


async def test_take_stops_at_the_byte_limit_but_returns_at_least_one() -> None:
    queue = batcher(bytes_max=25)
    large, small = entry(size=60), entry(size=20)
    queue.add_nowait(large)
    queue.add_nowait(small)
    assert queue.take() == [large]
    assert queue.take() == [small]


async def test_add_nowait_without_room_is_refused() -> None:
    queue = batcher(queue=25)
    queue.add_nowait(entry(size=20))
    with pytest.raises(QueueFull):
        queue.add_nowait(entry(size=10))


async def test_one_entry_larger_than_the_queue_is_taken_when_it_is_empty() -> None:
    queue = batcher(queue=25)
    queue.add_nowait(entry(size=90))
    assert queue.bytes == 90


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


async def test_next_batch_waits_for_the_first_entry() -> None:
    queue = batcher()
    taking = asyncio.create_task(queue.next_batch())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.add_nowait(one := entry())
    assert await taking == [one]


async def test_next_batch_once_closed_hands_out_the_rest_then_nothing() -> None:
    queue = batcher()
    queue.add_nowait(one := entry())
    queue.close()
    assert await queue.next_batch() == [one]
    assert await queue.next_batch() == []


async def test_fail_answers_everyone_waiting_for_room_too() -> None:
    queue = batcher(queue=10)
    entries = [entry(size=10) for _ in range(3)]
    answers = [one.done for one in entries]
    tasks = [asyncio.create_task(queue.add(one)) for one in entries]
    await asyncio.sleep(0)
    queue.fail(StoppedError("over"))
    await asyncio.gather(*tasks)
    for answer in answers:
        assert answer is not None
        with pytest.raises(StoppedError):
            answer.result()


async def test_next_batch_with_linger_waits_for_others_until_the_batch_is_full() -> None:
    queue = Batcher(rows_max=3, bytes_max=1_000, queue_bytes_max=1_000, linger_seconds=30)
    queue.add_nowait(entry())
    taking = asyncio.create_task(queue.next_batch())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.add_nowait(entry(rows=2))
    assert len(await taking) == 2


async def test_next_batch_with_linger_gives_up_waiting_after_its_time() -> None:
    queue = Batcher(rows_max=3, bytes_max=1_000, queue_bytes_max=1_000, linger_seconds=0.001)
    queue.add_nowait(one := entry())
    assert await queue.next_batch() == [one]


async def test_linger_counts_from_when_the_first_order_was_queued() -> None:
    queue = Batcher(rows_max=3, bytes_max=1_000, queue_bytes_max=1_000, linger_seconds=30)
    queue.add_nowait(first := entry())
    first.queued_at_seconds -= 30  # a commit that took so long was under way
    queue.add_nowait(second := entry())
    async with deadline():
        assert await queue.next_batch() == [first, second]


async def test_any_number_that_waits_keeps_the_queue_within_its_bytes() -> None:
    queue = batcher(rows_max=50, queue=2_000)
    entries = [entry(size=10 + n % 90) for n in range(20_000)]
    tasks = [asyncio.create_task(queue.add(one)) for one in entries]
    await asyncio.sleep(0)
    taken: list[Entry] = []
    while len(taken) < len(entries):
        assert 0 < queue.bytes <= 2_000
        assert queue.bytes == sum(one.size_bytes for one in entries[len(taken) :][: queue.rows])
        taken += queue.take()
    await asyncio.gather(*tasks)
    assert taken == entries
