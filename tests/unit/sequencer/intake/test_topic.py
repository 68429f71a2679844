"""Records of a topic become rows of a chain, each once, whatever goes wrong in between."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chain_kernel.clock import time_of
from chain_kernel.errors import IntakeLost, StoppedError
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.start_at import StartAt
from sequencer import Sequencer, TopicIntake, TopicIntakeConfig
from sequencer.intake import topic as topic_intake
from tests.deadlines import deadline, in_time, until
from tests.doubles.memory_topic import MemoryRecordSource, MemoryTopic
from tests.unit.sequencer.builders import World

LEASE: dict[str, Any] = {"lease_seconds": 0.2, "commit_seconds": 0.1}
"""The process that comes after a leader that could not hand over waits for so long."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_intake, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(topic_intake, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(topic_intake, "_RETRY_SECONDS_MAX", 0.01)


class Feed:
    """A topic, and intakes from it into the world's chain."""

    def __init__(self, world: World, partitions: int = 3) -> None:
        self.world = world
        self.topic = MemoryTopic(partitions)
        self.source = MemoryRecordSource(self.topic)

    def intake(self, sequencer: Sequencer, **settings: Any) -> TopicIntake:
        config = TopicIntakeConfig(
            **{"kafka": "memory:1", "topic": "orders", "records_max": 6, **settings}
        )
        return TopicIntake(config, sequencer, source=self.source)

    @asynccontextmanager
    async def running(
        self, tuning: dict[str, Any] | None = None, **settings: Any
    ) -> AsyncIterator[TopicIntake]:
        """A sequencer with an intake that runs beside the test, and is stopped at its end."""
        async with self.world.sequencer(**LEASE, **(tuning or {})) as sequencer:
            intake = self.intake(sequencer, **settings)
            running = asyncio.create_task(intake.run())
            try:
                yield intake
            finally:
                intake.stop()
                async with deadline():
                    await running

    def positions(self) -> dict[int, int]:
        marks = self.world.chain.intake
        return {int(source.rpartition(":")[2]): mark.position for source, mark in marks.items()}

    def is_taken(self) -> bool:
        return self.positions() == self.topic.end

    def keys(self) -> list[str]:
        return self.world.keys()


@pytest.fixture
def feed(world: World) -> Feed:
    return Feed(world)


async def test_records_become_rows_with_key_payload_and_time(feed: Feed) -> None:
    feed.topic.add(0, b"client#1", b"a", 1_700_000_000_123)
    feed.topic.add(0, None, b"b", 5)
    feed.topic.add(0, "k\u00e9y".encode(), b"", -1)
    async with feed.running() as intake:
        await until(feed.is_taken)
    first, second, third = feed.world.rows()
    assert (first.key, first.payload, first.event_time_ns) == (
        "client#1", b"a", 1_700_000_000_123_000_000,
    )  # fmt: skip
    assert (second.key, second.payload, second.event_time_ns) == ("orders/0#1", b"b", 5_000_000)
    assert (third.key, third.payload) == ("k\u00e9y", b"")
    assert third.event_time_ns > 1_700_000_000 * 10**9
    assert intake.stats().records == 3


async def test_records_that_are_no_orders_become_rejects_and_stop_nothing(feed: Feed) -> None:
    feed.topic.add(0, b"a", b"1")
    bad = {
        feed.topic.add(0, b"gone", None): ("gone", "value was not given, expected an order"),
        feed.topic.add(0, b"\xff\xfe", b"1"): (None, "expected UTF-8 text"),
        feed.topic.add(0, b"", b"1"): (None, "key was '0 bytes'"),
        feed.topic.add(0, b"k" * 513, b"1"): (None, "key was '513 bytes'"),
        feed.topic.add(0, b"n\0l", b"1"): (None, "without NUL"),
        feed.topic.add(0, b"big", bytes(PAYLOAD_BYTES_MAX + 1)): ("big", "262145 bytes"),
        feed.topic.add(0, b"late", b"1", 2**62): ("late", "event_time_ns"),
        feed.topic.add(0, b"a", b"2"): ("a", "became id 1"),
        feed.topic.add(0, b"orders/0#9999", b"1"): ("orders/0#9999", "does not begin with orders/"),
    }
    feed.topic.add(0, b"a", b"1")
    feed.topic.add(0, None, b"1")
    async with feed.running(records_max=3) as intake:
        await until(feed.is_taken)
    assert feed.keys() == ["a", "orders/0#11"]
    found = {
        position: (reject.key, reject.reason)
        for (source, position), reject in feed.world.chain.rejects.items()
        if source == "topic:orders:0"
    }
    assert found.keys() == bad.keys()
    for offset, (key, part) in bad.items():
        assert found[offset][0] == key
        assert part in found[offset][1]
    assert (intake.stats().records, intake.stats().rejects) == (12, 9)


async def test_records_of_more_bytes_than_a_batch_are_taken_in_parts(feed: Feed) -> None:
    large = [feed.topic.add(0, None, bytes(100_000)) for _ in range(5)]
    small = [feed.topic.add(0, None, b"" if at % 2 else None) for at in range(3_000)]
    async with feed.running({"batch_bytes_max": PAYLOAD_BYTES_MAX}, records_max=9_000) as intake:
        await until(feed.is_taken)
    assert feed.keys() == [f"orders/0#{offset}" for offset in (*large, *small[1::2])]
    sizes = [sum(len(row.payload) for row in batch.events) for batch in feed.world.chain.batches]
    assert max(sizes) == 200_000
    assert (intake.stats().records, intake.stats().rejects) == (3_005, 1_500)


@pytest.mark.parametrize("start_at", [StartAt("end"), StartAt(time=time_of(2_000_000_000))])
async def test_start_at_another_place_leaves_out_what_is_before_once_and_never_again(
    feed: Feed, start_at: StartAt
) -> None:
    feed.topic.add(0, b"old", b"1", 1_000)
    async with feed.running(start_at=start_at):
        await until(feed.is_taken)
        feed.topic.add(0, b"new", b"1", 2_000)
        await until(feed.is_taken)
    feed.topic.add(1, b"while stopped", b"1")
    feed.topic.add(feed.topic.add_partition(), b"in a new partition", b"1")
    async with feed.running(start_at=start_at):
        await until(feed.is_taken)
    assert feed.keys() == ["new", "while stopped", "in a new partition"]


def truncate(topic: MemoryTopic) -> None:
    topic.end[0] = 2
    topic.logs[0] = topic.logs[0][:2]


def recreate_shorter(topic: MemoryTopic) -> None:
    topic.clear()


def recreate_longer(topic: MemoryTopic) -> None:
    topic.clear()
    for number in range(50):
        topic.add(0, f"other{number}".encode(), b"1")


def delete_unread(topic: MemoryTopic) -> None:
    for _ in range(5):
        topic.add(0, b"never read", b"1")
    topic.delete_before(0, 8)


def lose_partition(topic: MemoryTopic) -> None:
    for part in (topic.logs, topic.first, topic.end):
        del part[2]


LOSSES = [
    (truncate, "topic:orders:0: read up to offset 5, but it ends at 2"),
    (recreate_shorter, "topic:orders:0: read up to offset 5, but it ends at 0"),
    (recreate_longer, "the record at 4 is another one: the topic was made again"),
    (delete_unread, "topic:orders:0: read up to offset 5, but it begins at 8"),
    (lose_partition, "the topic has fewer partitions now"),
]


@pytest.mark.parametrize(("lose", "message"), LOSSES)
@pytest.mark.parametrize("while_running", [True, False])
async def test_topic_that_lost_what_comes_next_stops_the_intake_and_skips_nothing(
    feed: Feed, lose: Callable[[MemoryTopic], None], message: str, while_running: bool
) -> None:
    for number in range(5):
        feed.topic.add(0, f"k{number}".encode(), b"1")
    async with feed.world.sequencer() as sequencer:
        intake = feed.intake(sequencer)
        running = asyncio.create_task(intake.run())
        await until(feed.is_taken)
        if while_running:
            feed.topic.is_away = True
            await until(lambda: intake.stats().interruptions > 0)
            lose(feed.topic)
            feed.topic.is_away = False
        else:
            intake.stop()
            await running
            lose(feed.topic)
            running = asyncio.create_task(feed.intake(sequencer).run())
        with pytest.raises(IntakeLost, match=message):
            await in_time(running)
    assert feed.keys() == [f"k{number}" for number in range(5)]
    assert feed.positions()[0] == 5


async def test_intake_that_is_stopped_counts_what_it_has_handed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped while it waits for the oldest of all portions that may be in flight."""
    feed, released, begin = Feed(world, partitions=1), asyncio.Event(), world.store.begin

    async def held(*values: Any, **more: Any) -> Any:
        await released.wait()
        return await begin(*values, **more)

    monkeypatch.setattr(world.store, "begin", held)
    async with world.sequencer(batch_rows_max=6) as sequencer:
        intake = feed.intake(sequencer)
        running = asyncio.create_task(intake.run())
        await until(feed.is_taken)
        for number in range(40):
            feed.topic.add(0, f"k{number}".encode(), b"1")
        await until(lambda: sequencer.stats().queue_rows == 12)
        intake.stop()
        await until(lambda: "orderchain intake" not in map(Task.get_name, asyncio.all_tasks()))
        released.set()
        await in_time(running)
    assert intake.stats().records == len(feed.keys()) == 18


@pytest.mark.parametrize("is_leading_task", [True, False])
async def test_intake_whose_task_is_cancelled_says_so(feed: Feed, is_leading_task: bool) -> None:
    async with feed.world.sequencer(**LEASE) as sequencer:
        before = asyncio.all_tasks()
        running = asyncio.create_task(feed.intake(sequencer).run())
        await until(feed.is_taken)
        name = "until_stopped" if is_leading_task else "_read"
        (task,) = [
            task
            for task in asyncio.all_tasks() - before
            if task.get_coro().__qualname__.endswith(f".{name}")  # type: ignore[union-attr]
        ]
        task.cancel()
        with pytest.raises(StoppedError, match="was cancelled"):
            await in_time(running)
