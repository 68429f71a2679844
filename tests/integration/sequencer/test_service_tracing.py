"""A batch's trace over real servers: its commit, its frames, their delivery; and fills."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from opentelemetry.trace import StatusCode

from chain_kernel.ports import FrameSource
from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from chain_kernel.tracing import TracedRecord, find_tracing
from gapfill import GapReader, GapReaderConfig
from matcher_receiver import ChainFrames, ReceiverConfig, ReceiverTuning
from orderchain import Order, Receiver, Run, open_receiver, open_sequencer
from tests.builders.created_chain import Chain
from tests.builders.spans import id_of, parent_of, recorded_spans, trace_of, values_of
from tests.deadlines import deadline, until

from .conftest import MakeChain

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

QUIET = {"lease_seconds": 30.0, "heartbeat_seconds": 60.0}
"""No heartbeat comes in between."""

FORGED = b"00-\xff\xffnot a trace"


class Losing:
    """The frames of a chain, of which it drops as many as it was asked to."""

    def __init__(self, frames: FrameSource) -> None:
        self.frames = frames
        self.to_lose = 0
        self.lost: list[bytes | None] = []
        self.passed: list[bytes | None] = []

    @property
    def place(self) -> tuple[str, int] | None:
        return self.frames.place

    @property
    def has_rows(self) -> bool:
        return self.frames.has_rows

    async def start(self) -> None:
        await self.frames.start()

    async def records(self, timeout_seconds: float) -> list[bytes | None]:
        while found := await self.frames.records(timeout_seconds):
            lost, passed = found[: self.to_lose], found[self.to_lose :]
            self.to_lose -= len(lost)
            self.lost += lost
            self.passed += passed
            if passed:
                return passed
        return []

    async def close(self) -> None:
        await self.frames.close()


class World:
    """A sequencer's chain, and a receiver that may lose frames of it."""

    def __init__(self, chain: Chain, role_dsn: Callable[[str], str]) -> None:
        self.chain = chain
        self.config = ReceiverConfig(
            chain_id=chain.chain_id,
            name="traced",
            database=role_dsn(RECEIVER_WRITER),
            kafka=chain.config.kafka,
            tuning=ReceiverTuning(poll_after_seconds=600.0, prove_seconds=600.0),
        )
        self.gap_source = GapReader(
            GapReaderConfig(database=role_dsn(GAP_READER), chain_id=chain.chain_id)
        )
        self.frames = Losing(ChainFrames(self.config, self.gap_source))

    def receiver(self) -> Receiver:
        return open_receiver(self.config, frames=self.frames, gap_source=self.gap_source)

    async def lose_next(self, order: Any) -> None:
        """Lose the frame of what `order` submits."""
        self.frames.to_lose, count = 1, len(self.frames.lost)
        await order
        await until(lambda: len(self.frames.lost) != count)

    async def record(self, number: int) -> ConsumerRecord:
        """Return a record of the topic, as the broker has it."""
        place = TopicPartition(self.chain.topic, 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=self.chain.config.kafka, enable_auto_commit=False
        ) as consumer:
            consumer.assign([place])
            consumer.seek(place, number)
            return await consumer.getone(place)

    async def publish(self, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.chain.config.kafka) as producer:
            await producer.send_and_wait(self.chain.topic, value, partition=0, headers=headers)


async def taken(receiver: Receiver, until_id: int) -> list[Run]:
    runs: list[Run] = []
    async with deadline():
        while not runs or runs[-1].last_id < until_id:
            runs.append(await anext(receiver))
    return runs


async def test_commit_publication_and_delivery_are_one_trace_and_a_fill_has_a_span(
    make_chain: MakeChain, role_dsn: Callable[[str], str]
) -> None:
    chain = await make_chain(**QUIET)
    world = World(chain, role_dsn)
    with recorded_spans() as spans:
        async with open_sequencer(chain.config) as sequencer, world.receiver() as receiver:
            first = await sequencer.submit_many([Order(f"k{n}", b"order") for n in range(3)])
            await taken(receiver, first[-1].id)
            waiting = asyncio.ensure_future(taken(receiver, first[-1].id + 2))
            await world.lose_next(sequencer.submit("lost", b""))
            third = await sequencer.submit("third", b"")
            runs = await waiting
            assert runs[-1].last_id == third.id
            epoch = sequencer.stats().epoch

    commit, publish, deliver = (
        spans.named(f"orderchain.{name}")[0] for name in ("commit", "publish", "deliver")
    )
    assert values_of(commit) == values_of(publish) == values_of(deliver)
    assert values_of(commit) == {
        "chain_id": chain.chain_id,
        "first_id": first[0].id,
        "last_id": first[-1].id,
        "rows": 3,
        "epoch": epoch,
    }
    assert trace_of(commit) == trace_of(publish) == trace_of(deliver)
    assert [parent_of(one) for one in (commit, publish, deliver)] == [
        None, id_of(commit), id_of(publish)
    ]  # fmt: skip
    # One trace per batch; the frame that was lost has no delivery, and its gap has a fill.
    assert len({trace_of(one) for one in spans.named("orderchain.commit")}) == 3
    delivered = {trace_of(one) for one in spans.named("orderchain.deliver")}
    assert trace_of(spans.named("orderchain.commit")[1]) not in delivered
    fill = spans.only("orderchain.fill")
    assert values_of(fill) == {
        "chain_id": chain.chain_id,
        "after_id": first[-1].id,
        "until_id": runs[0].last_id,
        "rows": 1,
        "cause": "frame",
        "source": "primary",
        "outcome": "filled",
    }
    assert fill.status.status_code is StatusCode.UNSET


async def test_frame_with_a_forged_trace_is_delivered_in_a_trace_of_its_own(
    make_chain: MakeChain, role_dsn: Callable[[str], str]
) -> None:
    chain = await make_chain(**QUIET)
    world = World(chain, role_dsn)
    with recorded_spans() as spans:
        async with open_sequencer(chain.config) as sequencer, world.receiver() as receiver:
            first = await sequencer.submit("first", b"")
            await taken(receiver, first.id)
            waiting = asyncio.ensure_future(taken(receiver, first.id + 1))
            await world.lose_next(sequencer.submit("second", b""))
            (lost,) = world.frames.lost
            assert isinstance(lost, TracedRecord)
            await world.publish(bytes(lost), [("traceparent", FORGED), ("other", b"")])
            await waiting
            assert receiver.stats().dropped == {}
    second = spans.named("orderchain.deliver")[-1]
    assert parent_of(second) is None
    assert trace_of(second) not in {trace_of(one) for one in spans.named("orderchain.publish")}


async def test_without_a_provider_there_are_no_headers_and_the_frames_are_the_same(
    make_chain: MakeChain, role_dsn: Callable[[str], str]
) -> None:
    chain = await make_chain(**QUIET)
    world = World(chain, role_dsn)

    async def send(key: str) -> int:
        async with open_sequencer(chain.config) as sequencer, world.receiver() as receiver:
            ack = await sequencer.submit(key, b"order")
            await taken(receiver, ack.id)
            return ack.id

    assert find_tracing() is None
    await send("untraced")
    assert (await world.record(0)).headers == ()
    assert {type(record) for record in world.frames.passed} == {bytes}
    with recorded_spans():
        world = World(chain, role_dsn)
        await send("traced")
    numbers = range(len(await chain.records()))
    with_headers = [record for n in numbers if (record := await world.record(n)).headers]
    assert [name for name, _ in with_headers[0].headers] == ["traceparent"]
