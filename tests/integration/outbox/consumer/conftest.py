"""A destination of each test's own: topics, a consumer's database, and messages on them."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from aiokafka import AIOKafkaProducer

from local_stack import KafkaServer, PostgresServer
from local_stack.postgres import SUPERUSER
from tests.builders.topics import make_topics
from tests.opened import connected

from .redis_server import PROGRAM, RedisServer
from .rig import CREATE, Rig

PARTITIONS = 3


@pytest.fixture
def database(postgres_server: PostgresServer, database_with: Callable[..., str]) -> str:
    """The superuser's DSN of a fresh database with the consumer's tables."""
    return postgres_server.dsn(SUPERUSER, database_with("inbox"))


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    """The superuser in that database, which has a business table besides."""
    async with connected(database) as connection:
        await connection.execute(CREATE)
        yield connection


@pytest.fixture
async def rig(
    kafka_server: KafkaServer,
    admin: asyncpg.Connection,
    database: str,
    orderchain_fresh_name: str,
) -> AsyncIterator[Rig]:
    # The broker is everybody's: topic and group are this test's alone.
    topic = f"clearing.{orderchain_fresh_name}"
    await make_topics(kafka_server.bootstrap, topic, partitions=PARTITIONS)
    await make_topics(kafka_server.bootstrap, f"{topic}.confirms")
    async with AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap) as producer:
        yield Rig(kafka_server.bootstrap, database, topic, topic, producer, admin)


@pytest.fixture
def redis_server(server_folder: Path) -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may break."""
    if PROGRAM is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    server = RedisServer(server_folder)
    server.start()
    yield server
    server.kill()
