"""Chains that share a producer: what befalls the topic of one delays no other."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from chain_kernel.errors import OrderchainError, RetryError
from local_stack import KafkaServer
from sequencer.config import SequencerConfig, SequencerTuning
from sequencer.stores import kafka
from sequencer.stores.kafka import KafkaFrameSink
from sequencer.stores.shared_producer import SharedProducer
from tests.builders.topics import make_topics, records_of
from tests.deadlines import deadline
from tests.opened import administering

CHAINS = 4
FRAME = b"frame" * 400
BEATS = 20


class Chains:
    """Sinks of several chains over one producer."""

    def __init__(self, kafka: str) -> None:
        run = secrets.token_hex(4)
        self.kafka = kafka
        config = SequencerConfig(
            chain_id=1, database="postgresql://none", kafka=kafka,
            tuning=SequencerTuning(publish_seconds=2.0),
        )  # fmt: skip
        self.shared = SharedProducer(config, CHAINS)
        self.topics = [f"shared-{run}-{number}" for number in range(CHAINS)]
        self.sinks = [KafkaFrameSink(config, shared=self.shared) for _ in self.topics]

    async def start(self) -> None:
        await make_topics(self.kafka, *self.topics)
        for sink, topic in zip(self.sinks, self.topics, strict=True):
            async with deadline():
                while True:
                    try:
                        await sink.start(topic, 0)
                        await sink.send([b"first"])
                        break
                    except OrderchainError:
                        pass  # the broker learns of a topic a moment later

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()
        await self.shared.close()


@pytest.fixture
async def chains(kafka_server: KafkaServer) -> AsyncIterator[Chains]:
    chains = Chains(kafka_server.bootstrap)
    await chains.start()
    yield chains
    await chains.close()


async def until_refused(chains: Chains, frame: bytes) -> None:
    """Send for the first chain until it is refused, while the others send, too."""

    async def refuse() -> None:
        with suppress(RetryError):
            while True:
                await chains.sinks[0].send([frame])

    refusing = asyncio.create_task(refuse())
    async with deadline():
        while not refusing.done():
            await asyncio.gather(*(sink.send([b"beat"]) for sink in chains.sinks[1:]))
    await refusing


async def assert_others_go_on(chains: Chains) -> None:
    """Send for all but the first chain, with the producer that they have had all the time."""
    producer = await chains.shared.opened()
    for number in range(BEATS):
        for sink in chains.sinks[1:]:
            await sink.send([b"%d" % number])
    assert await chains.shared.opened() is producer
    expected = [b"%d" % number for number in range(BEATS)]
    for topic in chains.topics[1:]:
        assert (await records_of(chains.kafka, topic))[-BEATS:] == expected


async def test_deleted_topic_of_one_chain_leaves_the_producer_to_the_others(
    chains: Chains,
) -> None:
    producer = await chains.shared.opened()
    async with administering(chains.kafka) as admin:
        await admin.delete_topics([chains.topics[0]])
    await until_refused(chains, b"lost")
    await assert_others_go_on(chains)
    assert await chains.shared.opened() is producer


async def test_frame_too_large_for_one_topic_leaves_the_producer_to_the_others(
    chains: Chains,
) -> None:
    producer = await chains.shared.opened()
    async with administering(chains.kafka) as admin:
        resource = ConfigResource(
            ConfigResourceType.TOPIC, chains.topics[0], configs={"max.message.bytes": "1500"}
        )
        await admin.alter_configs([resource])
    await until_refused(chains, FRAME)
    await chains.sinks[0].send([b"small"])  # by one of its own, which has read the new limit
    assert chains.sinks[0].frame_bytes_max < len(FRAME)
    await assert_others_go_on(chains)
    assert await chains.shared.opened() is producer


async def test_closed_sink_leaves_the_producer_to_the_others(chains: Chains) -> None:
    await chains.sinks[0].close()
    await assert_others_go_on(chains)


async def test_chain_that_was_closed_starts_again_on_the_same_producer(chains: Chains) -> None:
    producer = await chains.shared.opened()
    await chains.sinks[0].close()
    await chains.sinks[0].start(chains.topics[0], 0)
    await chains.sinks[0].send([b"again"])
    assert await chains.shared.opened() is producer
    assert (await records_of(chains.kafka, chains.topics[0]))[-1] == b"again"


async def test_producer_of_its_own_for_large_frames_is_ended_when_it_is_not_used(
    chains: Chains, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand chains would keep as many, after a large batch of each."""
    sink = chains.sinks[0]
    await sink.send([b"x" * (chains.shared.bytes_max + 1)])
    own = sink._producer
    assert own is not None
    await sink.send([b"small"])
    assert sink._producer is own
    monkeypatch.setattr(kafka, "_APART_SECONDS", 0.0)
    await sink.send([b"small"])
    assert sink._producer is None
