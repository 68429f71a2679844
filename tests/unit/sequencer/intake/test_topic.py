"""Records of a topic become rows of a chain, each once, whatever goes wrong in between."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from chain_kernel.errors import (
    BrokerAway,
    ConnectError,
    Fenced,
    IntakeLost,
    IntakeMoved,
    RetryError,
    StoppedError,
)
from chain_kernel.limits import PAYLOAD_BYTES_MAX
from chain_kernel.model import IntakeMark, is_linked
from chain_kernel.testing.memory_log import MemoryRecordSource, MemoryTopic
from chain_kernel.testing.memory_store import CommitFault
from sequencer import Sequencer, TopicIntake, TopicIntakeConfig
from sequencer.intake import topic as topic_intake
from tests.deadlines import deadline, in_time
from tests.unit.sequencer.test_service import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LEASE: dict[str, Any] = {"lease_seconds": 0.2, "commit_seconds": 0.1}
"""The process that comes after a leader that could not hand over waits for so long."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_intake, "_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(topic_intake, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(topic_intake, "_RETRY_SECONDS_MAX", 0.01)


@pytest.fixture
def world() -> World:
    return World()


class Feed:
    """A topic, and intakes from it into the world's chain."""

    def __init__(self, world: World, partitions: int = 3) -> None:
        self.world = world
        self.topic = MemoryTopic(partitions)
        self.source = MemoryRecordSource(self.topic)

    def intake(self, sequencer: Sequencer, **settings: Any) -> TopicIntake:
        config = TopicIntakeConfig(
            **{"kafka": "memory:1", "topic": "orders", "batch_rows": 6, **settings}
        )
        return TopicIntake(config, sequencer, source=self.source)

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[TopicIntake]:
        """A sequencer with an intake that runs beside the test, and is stopped at its end."""
        async with self.world.sequencer(**LEASE) as sequencer:
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
        return [row.key for row in self.world.rows()]


async def until(condition: Callable[[], bool]) -> None:
    async with deadline():
        while not condition():  # noqa: ASYNC110 - the memory has no events for all that is asked
            await asyncio.sleep(0.001)


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


async def test_partitions_share_the_chain_and_keep_their_order(feed: Feed) -> None:
    for partition in range(3):
        for _ in range(100):
            feed.topic.add(partition, None, b"x")
    async with feed.running():
        await until(feed.is_taken)
    keys = feed.keys()
    for partition in range(3):
        mine = [key for key in keys if key.startswith(f"orders/{partition}#")]
        assert mine == [f"orders/{partition}#{offset}" for offset in range(100)]
        # None of them had to wait for another one's end.
        assert keys.index(f"orders/{partition}#10") < 60
    assert is_linked(0, feed.world.rows())


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
    async with feed.running(batch_rows=3) as intake:
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


async def test_topic_of_nothing_but_rejects_is_logged_in_a_few_lines(
    feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3_000):
        feed.topic.add(number % 3, b"gone", None)
    async with feed.running(batch_rows=3) as intake:
        await until(lambda: intake.stats().rejects == 3_000)
    # Per partition one at once, and one at the end.
    assert len(caplog.messages) <= 6
    counts = [re.findall(r"rejected ([\d,]+) record", line) for line in caplog.messages]
    assert sum(int(count.replace(",", "")) for (count,) in counts) == 3_000


async def test_restart_at_any_place_adds_nothing_twice_and_misses_nothing(feed: Feed) -> None:
    for number in range(60):
        feed.topic.add(number % 3, None, b"x")
        feed.topic.add(number % 3, f"k{number % 20}".encode(), b"same")
    for rows in range(0, 80, 8):
        async with feed.running(batch_rows=3):
            await until(lambda rows=rows: len(feed.world.rows()) >= rows)  # type: ignore[misc]
    async with feed.running():
        await until(feed.is_taken)
    keys = feed.keys()
    expected = {f"orders/{n % 3}#{2 * (n // 3)}" for n in range(60)} | {f"k{n}" for n in range(20)}
    assert set(keys) == expected
    assert len(keys) == len(expected)
    assert not feed.world.chain.rejects


async def test_topic_of_nothing_but_repeats_and_markers_moves_its_offsets(feed: Feed) -> None:
    feed.topic.add(1, b"a", b"1")
    feed.topic.add(1, b"a", b"1")
    feed.topic.add_marker(1)
    feed.topic.add_marker(2)
    async with feed.running():
        await until(feed.is_taken)
    assert feed.keys() == ["a"]
    # Retention may now take all of it: there is nothing in it that was not read.
    feed.topic.delete_before(1, 3)
    feed.topic.delete_before(2, 1)
    feed.topic.add(2, b"b", b"1")
    async with feed.running():
        await until(feed.is_taken)
    assert feed.keys() == ["a", "b"]


async def test_start_latest_leaves_out_what_is_there_once_and_never_again(feed: Feed) -> None:
    feed.topic.add(0, b"old", b"1")
    async with feed.running(start="latest"):
        await until(feed.is_taken)
        feed.topic.add(0, b"new", b"1")
        await until(feed.is_taken)
    feed.topic.add(1, b"while stopped", b"1")
    feed.topic.add(feed.topic.add_partition(), b"in a new partition", b"1")
    async with feed.running(start="latest"):
        await until(feed.is_taken)
    assert feed.keys() == ["new", "while stopped", "in a new partition"]


async def test_partition_added_while_running_is_read_whole(feed: Feed) -> None:
    async with feed.running(start="latest") as intake:
        await until(feed.is_taken)
        feed.topic.add(feed.topic.add_partition(), b"a", b"1")
        await until(lambda: feed.keys() == ["a"])
    assert intake.stats().interruptions == 1


async def test_connection_lost_before_the_first_question_holds_up_no_intake(feed: Feed) -> None:
    feed.topic.add(0, b"a", b"1")
    async with feed.world.sequencer(**LEASE) as sequencer:
        await feed.world.store.close()
        intake = feed.intake(sequencer)
        running = asyncio.create_task(intake.run())
        await until(feed.is_taken)
        intake.stop()
        await running
    assert feed.keys() == ["a"]


async def test_broker_away_at_the_start_is_refused(feed: Feed) -> None:
    feed.topic.is_away = True
    async with feed.world.sequencer() as sequencer:
        with pytest.raises(ConnectError):
            await feed.intake(sequencer).run()


async def test_broker_away_when_a_standby_takes_over_is_waited_for(feed: Feed) -> None:
    feed.topic.add(0, b"a", b"1")
    feed.topic.is_away = True
    async with feed.world.sequencer(standby=True) as sequencer:
        intake = feed.intake(sequencer)
        running = asyncio.create_task(intake.run())
        await until(lambda: intake.stats().interruptions > 1 or running.done())
        feed.topic.is_away = False
        await until(lambda: feed.is_taken() or running.done())
        intake.stop()
        await running
    assert feed.keys() == ["a"]


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


class SlowSource(MemoryRecordSource):
    """Says what the bounds were before another leader took all that the topic holds."""

    def __init__(self, topic: MemoryTopic, take: Callable[[], None]) -> None:
        super().__init__(topic)
        self._take = take

    async def open(self) -> dict[int, tuple[int, int]]:
        bounds = await super().open()
        self._take()
        return bounds


async def test_bounds_that_are_older_than_the_marks_are_no_loss(feed: Feed) -> None:
    """As of a process that was paused between the two."""

    def take() -> None:
        for partition in (1, 2):
            if not feed.topic.end[partition]:
                offset = feed.topic.add(partition, f"k{partition}".encode(), b"x")
                source = f"topic:orders:{partition}"
                feed.world.chain.intake[source] = IntakeMark(
                    source=source, position=offset + 1, digest=b""
                )

    feed.source = SlowSource(feed.topic, take)
    async with feed.running():
        feed.topic.add(0, b"mine", b"x")
        await until(lambda: feed.keys() == ["mine"])


async def test_intake_of_a_leader_that_was_replaced_ends_with_it_and_takes_nothing(
    feed: Feed,
) -> None:
    sequencer = await feed.world.sequencer(lease_seconds=0.1, commit_seconds=0.05).__aenter__()
    running = asyncio.create_task(feed.intake(sequencer).run())
    feed.topic.add(0, b"a", b"1")
    await until(feed.is_taken)
    await feed.world.steal()
    feed.topic.add(0, b"b", b"1")
    with pytest.raises(Fenced):
        await in_time(running)
    with pytest.raises(Fenced):
        await sequencer.__aexit__(None, None, None)
    assert feed.keys() == ["a"]
    assert feed.positions()[0] == 1


async def test_idle_intake_learns_that_the_sequencer_was_closed(feed: Feed) -> None:
    async with feed.world.sequencer() as sequencer:
        running = asyncio.create_task(feed.intake(sequencer).run())
        await until(feed.is_taken)
    with pytest.raises(StoppedError):
        await in_time(running)


async def test_database_away_for_too_long_ends_the_intake_and_the_next_one_goes_on(
    feed: Feed,
) -> None:
    sequencer = await feed.world.sequencer(recover_seconds=0.02, **LEASE).__aenter__()
    running = asyncio.create_task(feed.intake(sequencer).run())
    for number in range(30):
        feed.topic.add(0, f"k{number}".encode(), b"1")
    await until(lambda: len(feed.world.rows()) > 6)
    feed.world.store.faults.append(CommitFault.REFUSED)
    feed.world.database.is_away = True
    feed.topic.add(1, b"more", b"1")
    with pytest.raises((StoppedError, RetryError), match=r"away|refused"):
        await in_time(running)
    with pytest.raises(RetryError, match=r"away|refused"):
        await sequencer.__aexit__(None, None, None)
    feed.world.database.is_away = False
    async with feed.running():
        await until(feed.is_taken)
    assert sorted(feed.keys()) == sorted(["more", *(f"k{number}" for number in range(30))])


async def test_cancelled_intake_leaves_what_it_handed_over_to_be_committed(feed: Feed) -> None:
    for number in range(500):
        feed.topic.add(0, f"k{number}".encode(), b"1")
    async with feed.world.sequencer() as sequencer:
        running = asyncio.create_task(feed.intake(sequencer).run())
        await until(lambda: len(feed.world.rows()) > 20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    taken = len(feed.keys())
    assert feed.positions()[0] == taken < 500
    async with feed.running():
        await until(feed.is_taken)
    assert feed.keys() == [f"k{number}" for number in range(500)]


REFUSING: dict[str, Any] = {"when_kafka_is_away": "refuse", "kafka_away_seconds": 0.005}


async def until_refused(sequencer: Sequencer, world: World) -> None:
    """Take the chain's broker away, and submit until that is noticed."""
    world.log.is_away = True
    async with deadline():
        for number in count():
            try:
                await sequencer.submit(f"before {number}", b"")
            except BrokerAway:
                return
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("refused_first", range(4))
async def test_orders_that_are_refused_while_kafka_is_away_are_taken_when_it_is_back(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, refused_first: int
) -> None:
    """Whichever call of an intake is the first to be refused: none is passed by, none added."""
    for partition in range(3):
        feed.topic.add(partition, f"old {partition}".encode(), b"1")
    async with feed.world.sequencer(**REFUSING, **LEASE) as sequencer:
        queue_each, calls = sequencer.queue_each, count()

        async def refuse_from(*given: Any, **more: Any) -> Any:
            if next(calls) == refused_first:
                await until_refused(sequencer, feed.world)
            return await queue_each(*given, **more)

        monkeypatch.setattr(sequencer, "queue_each", refuse_from)
        intake = feed.intake(sequencer, start="latest")
        running = asyncio.create_task(intake.run())
        await until(lambda: intake.stats().interruptions > 0 or feed.is_taken())
        for partition in range(3):
            feed.topic.add(partition, f"new {partition}".encode(), b"1")
        await until(lambda: intake.stats().interruptions > 1)
        feed.world.log.is_away = False
        await until(feed.is_taken)
        intake.stop()
        await in_time(running)
    rows = feed.world.rows()
    keys = [row.key for row in rows if not row.key.startswith("before")]
    assert sorted(keys) == [f"new {partition}" for partition in range(3)]


async def test_second_intake_of_a_topic_is_kept_apart_and_adds_nothing(feed: Feed) -> None:
    """Its records are those of the first one: without remembered keys they would be rows twice."""
    for number in range(30):
        feed.topic.add(0, f"k{number}".encode(), b"1")
    async with feed.world.sequencer(key_window_rows=0, **LEASE) as sequencer:
        first = feed.intake(sequencer, batch_rows=2)
        second = feed.intake(sequencer, batch_rows=2)
        second._source = MemoryRecordSource(feed.topic)
        running = [asyncio.create_task(intake.run()) for intake in (first, second)]
        await until(feed.is_taken)
        await until(lambda: any(task.done() for task in running))
        first.stop()
        second.stop()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert IntakeMoved in map(type, outcomes)
    assert feed.keys() == [f"k{number}" for number in range(30)]


async def test_intake_that_is_begun_again_beside_the_same_sequencer_takes_each_record_once(
    feed: Feed,
) -> None:
    """The one before was cancelled, and what it had handed over was not committed yet."""
    for number in range(200):
        feed.topic.add(number % 3, f"k{number}".encode(), b"1")
    async with feed.world.sequencer(key_window_rows=0, **LEASE) as sequencer:
        for taken in range(0, 150, 10):
            running = asyncio.create_task(feed.intake(sequencer, stop_seconds=0.0001).run())
            await until(lambda taken=taken: len(feed.world.rows()) > taken)  # type: ignore[misc]
            running.cancel()
            await asyncio.wait([running])
        while not feed.is_taken():
            running = asyncio.create_task(feed.intake(sequencer).run())
            await until(lambda running=running: running.done() or feed.is_taken())  # type: ignore[misc]
            running.cancel()
            (outcome,) = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(outcome, (IntakeMoved, asyncio.CancelledError))
    assert sorted(feed.keys()) == sorted(f"k{number}" for number in range(200))


@pytest.mark.parametrize("is_leading_task", [True, False])
async def test_intake_whose_task_is_cancelled_by_somebody_else_says_so(
    feed: Feed, is_leading_task: bool
) -> None:
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
