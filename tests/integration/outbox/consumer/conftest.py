"""A destination of each test's own: topics, a consumer's database, and messages on them."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer

from tests.builders.topics import make_topics

from .redis_server import PROGRAM, RedisServer
from .rig import CREATE, Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from local_stack import KafkaServer

PARTITIONS = 3


@pytest.fixture
async def admin(empty_database: str) -> AsyncIterator[asyncpg.Connection]:
    """The superuser in a fresh database with the consumer's tables, and a business table."""
    connection = await asyncpg.connect(empty_database, timeout=10)
    schema = (files("outbox") / "sql" / "inbox.sql").read_text(encoding="utf-8")
    async with connection.transaction():
        await connection.execute(schema)
    await connection.execute(CREATE)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def rig(
    kafka_server: KafkaServer,
    admin: asyncpg.Connection,
    empty_database: str,
    empty_database_name: str,
) -> AsyncIterator[Rig]:
    # The broker is everybody's: topic and group are this test's alone.
    topic = f"clearing.{empty_database_name}"
    await make_topics(kafka_server.bootstrap, topic, partitions=PARTITIONS)
    await make_topics(kafka_server.bootstrap, f"{topic}.confirms")
    producer = AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    await producer.start()
    yield Rig(kafka_server.bootstrap, empty_database, topic, topic, producer, admin)
    await producer.stop()


@pytest.fixture
def redis_server(server_folder: Path) -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may break."""
    if PROGRAM is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    server = RedisServer(server_folder)
    server.start()
    yield server
    server.kill()
