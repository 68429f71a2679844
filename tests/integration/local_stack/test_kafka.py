"""Kafka as the stack runs it."""

import socket

import pytest
from aiokafka.client import AIOKafkaClient

from local_stack import KafkaServer
from local_stack.process import is_free
from tests.opened import administering

pytestmark = pytest.mark.kafka


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
    async with administering(kafka_server.bootstrap) as admin:
        topics = await admin.list_topics()
    assert "test-never-made" not in topics
