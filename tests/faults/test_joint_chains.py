"""One broker of three goes while many chains of a process read and write jointly."""

import asyncio
import secrets

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.builders.joint_chains import joint_chains
from tests.builders.topics import make_topics
from tests.deadlines import deadline

from .brokers import COPIES, Brokers
from .conftest import MakeChain
from .inspector import inspect, inspect_topic

CHAINS = 9
"""Each broker leads the topics of about three of them, and as many intakes."""


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_chains_go_on_while_a_broker_is_away_and_once_it_is_back(
    chain_on_three_brokers: MakeChain, three_brokers: Brokers, fault: str
) -> None:
    chains = [await chain_on_three_brokers(number + 1) for number in range(CHAINS)]
    run = secrets.token_hex(4)
    topics = [f"in-{run}-{number}" for number in range(CHAINS)]
    await make_topics(three_brokers.bootstrap, *topics, copies=COPIES)
    producer = AIOKafkaProducer(bootstrap_servers=three_brokers.bootstrap, acks="all")
    gone = three_brokers.brokers[0]

    async def send(value: bytes) -> None:
        """Send an order to each chain, again where no broker answers: its key adds it once."""
        async with deadline():
            for topic in topics:
                while True:
                    try:
                        await producer.send_and_wait(topic, value, key=value)
                        break
                    except KafkaError:
                        pass

    async with producer, joint_chains(chains, topics, three_brokers.bootstrap) as joint:
        await send(b"one")
        await joint.until_keys(["one"])
        await joint.until_published()
        await asyncio.to_thread(gone.kill if fault == "kill" else gone.freeze)
        await send(b"two")
        await joint.until_keys(["one", "two"])
        await joint.until_published()
        await asyncio.to_thread(gone.start if fault == "kill" else gone.thaw)
        await send(b"three")
        await joint.until_keys(["one", "two", "three"])
        await joint.until_published()
        epochs = [sequencer.stats().epoch for sequencer in joint.sequencers]
    assert epochs == [1] * CHAINS
    for chain in chains:
        await inspect(chain)
        await inspect_topic(chain)
