"""Each exported class with async methods is refused in another loop than the one it is open in."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Final

import pytest

import gapfill
import matcher_receiver
import orderchain
import outbox
import sequencer
from chain_kernel.errors import ConnectError, RetryError
from chain_kernel.model import Mark
from chainctl.schema.parts import PARTS
from local_stack.postgres import SUPERUSER
from orderchain.testing import (
    LinkDial,
    LossyLink,
    MemoryChainStore,
    MemoryCheckpointStore,
    MemoryDatabase,
    MemoryFrameSink,
    MemoryFrameSource,
    MemoryGapSource,
    MemoryKeyStore,
    MemoryLease,
    MemoryLog,
)
from outbox import draw_message_ids
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.doubles.memory_topic import MemoryRecordSource, MemoryTopic
from tests.other_loops import refusal_elsewhere

from .conftest import Sender
from .service.service_client import client, service_config

AWAY: Final = "postgresql://user@127.0.0.1:1/none?sslmode=disable"
"""A session that was asked for there belongs to its loop."""

STORES: Final = matcher_receiver.PostgresCheckpointStore, matcher_receiver.PostgresHeadReports

FREE: Final = {
    "Filter": "knows nothing",
    "MemoryFilter": "a dictionary",
    "HttpSenderCalls": "a connection for each call",
    "MessageClient": "a connection for each call",
    "FileSnapshotStore": "files, in threads",
}
"""Classes that hold nothing of a loop, and why."""

OPENERS: Final = {"start", "__aenter__"}
ACTS: Final = {"stop", "submit_nowait"}
"""Methods that are refused, too, though they are no coroutines."""


async def handle(*_: object) -> None:
    """What each parameter is given that has no better value below."""


GIVEN: Final[dict[str, Any]] = {
    "orders": [sequencer.Order("k", b"x")],
    "keys": ["k"],
    "payloads": [b"x"],
    "message_ids": draw_message_ids(1),
    "places": {("topic", 0): 1},
    "time_us": 1,
    "after": Mark(id=0, batch_last_id=0, seal=bytes(32), epoch=0),
}


def calls_of(door: type) -> list[str]:
    """The methods that do something in a loop."""
    names = {name for name in dir(door) if not name.startswith("_")} | {"__aexit__", "__anext__"}
    return sorted(
        name
        for name in names - OPENERS
        if name in ACTS or is_async(inspect.unwrap(getattr(door, name, None)))  # type: ignore[arg-type]
        if hasattr(door, name)
    )


def is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def exported(*packages: ModuleType) -> Iterator[type]:
    """The classes at the doors of packages that have such methods."""
    for package in packages:
        for name in package.__all__:
            door = getattr(package, name)
            if inspect.isclass(door) and calls_of(door):
                yield door


def call(door: object, name: str) -> Awaitable[object] | object:
    """Call a method, with arguments that it never comes to look at."""
    method: Callable[..., Any] = getattr(door, name)
    known = inspect.signature(method).parameters.values()
    needed = [
        each for each in known if each.default is each.empty and each.kind != each.VAR_POSITIONAL
    ]
    made = method(**{each.name: GIVEN.get(each.name, handle) for each in needed})
    if isinstance(made, AbstractAsyncContextManager):
        return made.__aenter__()
    return anext(made) if inspect.isasyncgen(made) else made


def leader() -> sequencer.Sequencer:
    """A sequencer of a chain in memory."""
    database = MemoryDatabase(1)
    database.create(1)
    return orderchain.open_sequencer(
        orderchain.SequencerConfig(chain_id=1),
        store=MemoryChainStore(database, 1), keys=MemoryKeyStore(database, 1),
        lease=MemoryLease(database, 1), sink=MemoryFrameSink(MemoryLog()),
    )  # fmt: skip


def receiver(database: MemoryDatabase) -> orderchain.Receiver:
    """A receiver of a chain in memory."""
    return orderchain.open_receiver(
        orderchain.ReceiverConfig(chain_id=1),
        frames=MemoryFrameSource(MemoryLog(), LossyLink(LinkDial(), Random(1))),
        gap_source=MemoryGapSource.of_database(database, 1),
        checkpoints=MemoryCheckpointStore(database, 1, "mine"),
    )


@asynccontextmanager
async def begun(door: Any, first: Callable[[], Awaitable[object]]) -> AsyncIterator[object]:
    """A door in use: a server that is away is asked `first`. It is closed by its own loop."""
    with suppress(RetryError, ConnectError):
        await first()
    yield door
    await door.close()


@asynccontextmanager
async def doors_of_chains(folder: Path) -> AsyncIterator[list[object]]:
    """What works on chains, in memory or on servers that are away."""
    database = MemoryDatabase(1)
    database.create(1)
    reads = gapfill.GapReaderConfig(database=AWAY, chain_id=1)
    keeps = matcher_receiver.CheckpointConfig(database=AWAY, chain_id=1, name="mine")
    leads = orderchain.SequencerConfig(chain_id=1, database=AWAY)
    listens = orderchain.ReceiverConfig(chain_id=1, gap_databases=(AWAY,))
    readers: list[Any] = [
        gapfill.GapReader(reads),
        gapfill.PreferredSources([gapfill.GapReader(reads)]),
    ]
    shadow = matcher_receiver.PostgresShadowStore(keeps, "another")
    places = [*(kind(keeps) for kind in STORES), shadow]
    shared = sequencer.SharedConnections([leads])
    frames = matcher_receiver.ChainFrames(listens, MemoryGapSource.of_database(database, 1))
    (path := folder / "orders.csv").write_text("order_id\n1\n")
    async with AsyncExitStack() as stack:
        opened: list[object] = [
            await stack.enter_async_context(leading := leader()),
            await stack.enter_async_context(receiver(database)),
            *[
                await stack.enter_async_context(begun(each, partial(each.standing, 0)))
                for each in readers
            ],
            *[await stack.enter_async_context(begun(each, each.load)) for each in places],
            await stack.enter_async_context(begun(shared, shared.__aenter__)),
            await stack.enter_async_context(begun(frames, frames.start)),
            file := stack.enter_context(orderchain.FileIntake(path)),
        ]
        await file.has_new(None, 1)
        source = MemoryRecordSource(MemoryTopic(1))
        topic = sequencer.TopicIntakeConfig(kafka="memory:1", topic="orders")
        intake = sequencer.TopicIntake(topic, leading, source=source)
        running = asyncio.create_task(intake.run())
        await asyncio.sleep(0)  # it has begun
        try:
            yield [*opened, intake]
        finally:
            intake.stop()
            await running
        assert leading.stats().head_persisted == 0


@asynccontextmanager
async def doors_of_messages(sender: Sender) -> AsyncIterator[list[object]]:
    """What sends, serves and consumes messages, on real servers."""
    async with sender.admin.transaction():
        await sender.admin.execute(PARTS["inbox"].text())
    destination = await sender.set_up()
    topics = destination.topic, f"checks.{sender.name}"
    await make_topics(sender.kafka, topics[1])
    checked = outbox.CheckedConfig(sender="payments", check_topic=topics[1])
    consumes = outbox.ConsumerConfig(
        name=sender.name, topics=topics[:1], kafka=sender.kafka, database=sender.dsns[SUPERUSER]
    )
    calls = outbox.HttpSenderCalls(lambda _: client("payments"), 1.0)
    asks = outbox.CallbackConfig(
        database=AWAY, kafka=sender.kafka, check_topic=topics[1], confirm_topics=topics[:1]
    )
    callback = outbox.CallbackService(asks, calls)
    check_back = outbox.CheckBack(sender.config(), handle)  # type: ignore[arg-type]
    log = outbox.InboxLog(AWAY, "clearing")
    redis = outbox.RedisFilter(outbox.RedisFilterConfig(url="redis://127.0.0.1:1", consumer="c"))
    frames = matcher_receiver.KafkaFrameSource(
        matcher_receiver.KafkaSourceConfig(kafka=sender.kafka, topic=topics[0])
    )
    async with AsyncExitStack() as stack:
        opened: list[AbstractAsyncContextManager[object]] = [
            outbox.Relay(sender.config()),
            outbox.FireAfterCommit(sender.kafka, []),
            outbox.CheckedSender(sender.config(), checked),
            outbox.MessageService(service_config(sender), outbox.Clients([client("payments")])),
            outbox.Consumer(consumes),
            frames,
            begun(callback, callback.check),
            begun(check_back, check_back.check_once),
            begun(log, lambda: log.applied(GIVEN["message_ids"])),
            begun(redis, lambda: redis.see(GIVEN["message_ids"])),
        ]
        yield [await stack.enter_async_context(each) for each in opened]


@pytest.mark.merge
async def test_each_door_is_refused_in_another_loop_than_its_own(
    sender: Sender, tmp_path: Path
) -> None:
    async with deadline(), doors_of_chains(tmp_path) as some, doors_of_messages(sender) as others:
        doors = {type(each).__name__: each for each in (*some, *others)}
        packages = orderchain, outbox, sequencer, matcher_receiver, gapfill
        known = {door.__name__ for door in exported(*packages)}
        assert known == doors.keys() | FREE.keys(), "a door that is new is opened here, or free"
        taken = []
        for whose, door in doors.items():
            for name in calls_of(type(door)):
                said = refusal_elsewhere(partial(call, door, name))
                if "was 'from another event loop or thread'" not in said:
                    taken.append(f"{whose}.{name}: {said}")
        assert taken == []
