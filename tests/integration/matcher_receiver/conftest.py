"""A stored chain, its topic, a producer, and receivers over all of it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import asyncpg
import pytest

from chain_kernel.sql import GAP_READER, RECEIVER_WRITER
from gapfill import GapReader, GapReaderConfig
from local_stack import KafkaServer
from matcher_receiver import (
    CheckpointConfig,
    KafkaFrameSource,
    KafkaSourceConfig,
    PostgresCheckpointStore,
    Receiver,
    ReceiverConfig,
)
from orderchain import open_receiver
from tests.builders.stored_chain import StoredChain
from tests.builders.topics import make_topics, send_records
from tests.tuned import tuned

RoleDsn = Callable[[str], str]
Publish = Callable[[Iterable[bytes | None]], Awaitable[None]]
MakeReceiver = Callable[..., Receiver]
Open = Callable[..., Receiver]
"""Opens a receiver by its name, or the shadow of another one."""


@pytest.fixture
async def admin(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


@pytest.fixture
def chain_id(database_name: str) -> int:
    """A chain, and so a topic, of this test alone: all tests share the broker."""
    return int(database_name[-7:], 16) + 1


@pytest.fixture
async def stored(admin: asyncpg.Connection, chain_id: int) -> StoredChain:
    """An empty chain that was created."""
    return await StoredChain.create(admin, chain_id)


@pytest.fixture
def bootstrap(kafka_server: KafkaServer) -> str:
    """The broker of the whole run; a test that breaks one brings its own."""
    return kafka_server.bootstrap


@pytest.fixture
async def topic(bootstrap: str, stored: StoredChain) -> str:
    await make_topics(bootstrap, stored.topic)
    return stored.topic


@pytest.fixture
def publish(bootstrap: str, topic: str) -> Publish:
    """Publish record values to the chain's topic."""

    async def publish_values(values: Iterable[bytes | None]) -> None:
        await send_records(bootstrap, topic, *values, key=b"")

    return publish_values


@pytest.fixture
def make_receiver(bootstrap: str, topic: str, role_dsn: RoleDsn, chain_id: int) -> MakeReceiver:
    """Make receivers of the chain; the settings are those of ReceiverConfig."""

    def make(gaps: GapReader | None = None, **settings: Any) -> Receiver:
        name = settings.setdefault("name", "test")
        checkpoints = CheckpointConfig(
            database=role_dsn(RECEIVER_WRITER), chain_id=chain_id, name=name
        )
        config = GapReaderConfig(database=role_dsn(GAP_READER), chain_id=chain_id, page_rows=50)
        return Receiver(
            tuned(ReceiverConfig(chain_id=chain_id), **settings),
            KafkaFrameSource(KafkaSourceConfig(kafka=bootstrap, topic=topic, request_seconds=1.0)),
            gaps or GapReader(config),
            PostgresCheckpointStore(checkpoints),
        )

    return make


@pytest.fixture
def opened(role_dsn: RoleDsn, chain_id: int) -> Open:
    def make(name: str, shadow_of: str | None = None, **settings: Any) -> Receiver:
        config = ReceiverConfig(
            chain_id=chain_id,
            name=name,
            database=role_dsn(RECEIVER_WRITER),
            gap_databases=(role_dsn(GAP_READER),),
        )
        return open_receiver(
            tuned(config, poll_after_seconds=0.05, **settings), shadow_of=shadow_of
        )

    return make
