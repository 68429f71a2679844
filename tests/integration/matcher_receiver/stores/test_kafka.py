"""Frames from a real Kafka."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from chain_kernel.errors import ConnectError, RetryError, TopicError
from local_stack.process import free_port
from matcher_receiver import KafkaFrameSource, KafkaSourceConfig
from tests.builders.topics import make_topics
from tests.deadlines import deadline
from tests.integration.matcher_receiver.conftest import publish_frames
from tests.silent_server import silent_server

if TYPE_CHECKING:
    from local_stack import KafkaServer


@pytest.fixture
async def any_topic(bootstrap: str) -> str:
    name = f"frames-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name)
    return name


def source_of(bootstrap: str, topic: str, **settings: Any) -> KafkaFrameSource:
    config = KafkaSourceConfig(kafka=bootstrap, topic=topic, **settings)
    return KafkaFrameSource(config)


async def read(source: KafkaFrameSource, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with deadline():
        while len(found) < count:
            found += await source.records(1.0)
    return found


async def test_record_larger_than_a_fetch_arrives_whole(bootstrap: str) -> None:
    name = f"frames-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name, configs={"max.message.bytes": "9000000"})
    large = secrets.token_bytes(3_000_000)
    async with source_of(bootstrap, name, fetch_bytes=65_536) as source:
        await publish_frames(bootstrap, name, [b"small", large, b"last"])
        assert await read(source, 3) == [b"small", large, b"last"]


async def test_records_deleted_under_the_reader_lead_back_to_the_live_end(
    bootstrap: str, any_topic: str
) -> None:
    async with source_of(bootstrap, any_topic, fetch_bytes=1_024) as source:
        # More than the reader takes ahead, so that its offset lies in what is deleted.
        await publish_frames(bootstrap, any_topic, [b"x" * 1_000] * 50)
        assert await source.records(5.0)
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.delete_records({TopicPartition(any_topic, 0): RecordsToDelete(50)})
        await admin.close()
        async with deadline():
            while await source.records(1.0):
                pass
        await publish_frames(bootstrap, any_topic, [b"after"])
        assert (await read(source, 1))[-1] == b"after"


async def test_start_with_a_topic_that_is_missing_says_so_and_makes_none(bootstrap: str) -> None:
    name = f"missing-{secrets.token_hex(4)}"
    with pytest.raises(TopicError, match=name):
        await source_of(bootstrap, name).start()
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    assert name not in await admin.list_topics()
    await admin.close()


@pytest.mark.nightly
async def test_topic_that_is_deleted_is_no_broker_that_is_away(
    bootstrap: str, any_topic: str
) -> None:
    async with source_of(bootstrap, any_topic) as source, deadline():
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.delete_topics([any_topic])
        await admin.close()
        said = ""
        while "is not there" not in said:
            try:
                await source.records(1.0)
            except RetryError as error:
                said = str(error)
        assert any_topic in said


async def test_start_with_two_partitions_is_refused(bootstrap: str) -> None:
    name = f"wide-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name, partitions=2)
    with pytest.raises(TopicError, match="2 partitions"):
        await source_of(bootstrap, name).start()


async def test_start_with_a_compacted_topic_is_refused(bootstrap: str) -> None:
    name = f"compacted-{secrets.token_hex(4)}"
    await make_topics(bootstrap, name, configs={"cleanup.policy": "compact"})
    with pytest.raises(TopicError, match="compact"):
        await source_of(bootstrap, name).start()


async def test_start_with_a_closed_port_is_refused(kafka_server: KafkaServer) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError, match=address):
        await source_of(address, "any", connect_seconds=3.0).start()


async def test_start_with_a_silent_port_ends_by_the_deadline() -> None:
    began = asyncio.get_running_loop().time()
    async with silent_server() as port:
        source = source_of(f"127.0.0.1:{port}", "any", connect_seconds=1.0, close_seconds=1.0)
        with pytest.raises(ConnectError):
            await source.start()
    assert asyncio.get_running_loop().time() - began < 6
