"""Kafka as the stack runs it."""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition

from local_stack import KafkaServer, KafkaServerConfig
from local_stack.process import free_port, is_free
from tests.builders.topics import make_topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def server(server_folder: Path) -> Iterator[KafkaServer]:
    """One of its own for the test that breaks it."""
    port = free_port()
    config = KafkaServerConfig(
        directory=server_folder / "kafka", port=port, controller_port=free_port([port]),
        heap_mb=256, is_long_run=False,
    )  # fmt: skip
    with KafkaServer(config) as made:
        yield made


async def make_topic(server: KafkaServer) -> str:
    topic = f"test-{secrets.token_hex(4)}"
    await make_topics(server.bootstrap, topic)
    return topic


async def write(server: KafkaServer, topic: str, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=server.bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def read(server: KafkaServer, topic: str) -> bytes:
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        record = await consumer.getone()
    finally:
        await consumer.stop()
    value: bytes = record.value
    return value


def test_listeners_are_on_loopback_alone(kafka_server: KafkaServer) -> None:
    for port in (kafka_server.config.port, kafka_server.config.controller_port):
        assert not is_free(port)
        with socket.create_server(("127.0.0.2", port)):
            pass  # a listener on every address would have it too


async def test_asking_for_a_missing_topic_does_not_make_it(kafka_server: KafkaServer) -> None:
    client = AIOKafkaClient(bootstrap_servers=kafka_server.bootstrap)
    await client.bootstrap()
    try:
        await client.add_topic("test-never-made")  # asks for its metadata, as every client does
    finally:
        await client.close()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_server.bootstrap)
    await admin.start()
    topics = await admin.list_topics()
    await admin.close()
    assert "test-never-made" not in topics


@pytest.mark.nightly
async def test_stop_and_kill_keep_the_records(server: KafkaServer) -> None:
    topic = await make_topic(server)
    await write(server, topic, b"kept")
    server.stop()
    assert not server.is_running()
    assert not server.is_answering()
    server.start()
    assert await read(server, topic) == b"kept"
    server.kill()
    server.start()
    assert await read(server, topic) == b"kept"
    server.freeze()
    assert server.is_running()
    assert not server.is_answering(timeout_s=0.5)
    server.thaw()
    assert server.is_answering()
